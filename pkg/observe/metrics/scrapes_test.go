package metrics

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// megabytes returns about n MiB of metrics.
func megabytes(n int) string {
	line := "a_metric_of_the_app{label=\"with a value\"} 1\n"
	return strings.Repeat(line, n<<20/len(line))
}

// stalledScraper requests the metrics of a server from the given client address and does not read the response.
func stalledScraper(t *testing.T, server *httptest.Server, client string) *harness.Client {
	t.Helper()
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}, Control: harness.Narrow}
	c := harness.DialBy(t, d, server.Listener.Addr().String())
	c.Send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
	_, err := c.Read(make([]byte, 1)) // wait for the first byte of the response
	harness.NoError(t, err)
	return c
}

// If pages were not rendered into memory, two stalled scrapers would prevent other scrapes from returning the metrics
// of an app with 3 MB of metrics for 30 s. Four stalled scrapers would cause responses with 503.
func TestStalledScrapersDoNotBlockOthers(t *testing.T) {
	app := megabytes(3)
	m := merged(t, respond(textType, app), func(o *Merge) { o.timeout = time.Minute })
	server := httptest.NewServer(m.Handler())
	t.Cleanup(server.Close) // called after the stalled scrapers have disconnected
	for i := range 6 {
		stalledScraper(t, server, fmt.Sprintf("127.0.0.%d", 2+i%3))
	}
	for range 3 {
		r, err := http.Get(server.URL + path)
		harness.NoError(t, err)
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != 200 || !strings.HasSuffix(string(b), app) {
			t.Fatalf("got %s and %d bytes, %v, want 200 and %d bytes of the app at the end", r.Status, len(b), err, len(app))
		}
	}
}

// A canceled page must be shorter than its Content-Length, so that the scraper detects the truncation.
func TestCanceledPageIsTruncated(t *testing.T) {
	server := httptest.NewServer(bounded(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, megabytes(6))
	})))
	t.Cleanup(server.Close) // called after the stalled scrapers have disconnected
	first := stalledScraper(t, server, "127.0.0.2")
	stalledScraper(t, server, "127.0.0.3")
	r, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader("H"), first)), nil)
	harness.NoError(t, err)
	if n, err := io.Copy(io.Discard, r.Body); err == nil || n == r.ContentLength {
		t.Errorf("got %d of %d bytes and no error, want a truncated page", n, r.ContentLength)
	}
}

// A stage sends scrapes to a handler that blocks.
type stage struct {
	h       http.Handler
	come    chan string   // clients whose pages are being rendered
	leave   chan struct{} // each value unblocks the handler for one of these clients
	answers chan string   // client and status code of each response
}

func newStage() *stage {
	s := &stage{come: make(chan string, 100), leave: make(chan struct{}), answers: make(chan string, 100)}
	s.h = bounded(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.come <- r.RemoteAddr
		<-s.leave
	}))
	return s
}

func (s *stage) scrape(client string) {
	go func() {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.RemoteAddr = client + ":1000"
		w := httptest.NewRecorder()
		s.h.ServeHTTP(w, r)
		s.answers <- fmt.Sprintf("%s %d", client, w.Code)
	}()
	synctest.Wait()
}

func TestClientScrapeLimitReturns429(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		for range maxPerClient {
			s.scrape("10.0.0.1")
		}
		s.scrape("10.0.0.1")
		harness.Equal(t, <-s.answers, "10.0.0.1 429")
		s.scrape("10.0.0.2")
		s.leave <- struct{}{}
		synctest.Wait()
		harness.Equal(t, len(s.come), maxRendered+1, "scrapes rendered", "including the scrape of another client")
		close(s.leave)
	})
}

func TestScrapesAreServedInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		var want, got []string
		for i := range 20 {
			client := fmt.Sprintf("10.0.0.%d", i)
			want = append(want, client+":1000")
			s.scrape(client)
		}
		for range 20 {
			got = append(got, <-s.come)
			s.leave <- struct{}{}
			synctest.Wait()
		}
		harness.Equal(t, got, want)
	})
}

func TestScrapeWaitTimeoutReturns503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		for i := range maxRendered {
			s.scrape(fmt.Sprintf("10.0.0.%d", i))
		}
		began := time.Now()
		s.scrape("10.0.1.1")
		if got, want := <-s.answers, "10.0.1.1 503"; got != want || time.Since(began) != turnTime {
			t.Errorf("got %s after %v, want %s after %v", got, time.Since(began), want, turnTime)
		}
		close(s.leave)
		synctest.Wait()
		s.scrape("10.0.1.1")
		for range maxRendered {
			<-s.answers
		}
		harness.Equal(t, <-s.answers, "10.0.1.1 200", "scrape after the handler is unblocked")
	})
}

// A stuck response blocks in Write until its write deadline expires.
type stuck struct {
	*httptest.ResponseRecorder
	ended chan struct{}
}

func (s *stuck) Write([]byte) (int, error) {
	<-s.ended
	return 0, os.ErrDeadlineExceeded
}

func (s *stuck) SetWriteDeadline(at time.Time) error {
	if at.Before(time.Now()) {
		close(s.ended)
	}
	return nil
}

// Two pages use all of the memory. A later scrape cancels the oldest page after takeTime.
func TestWaitingScrapesCancelOldestPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := bounded(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, maxPageBytes/2))
		}))
		var all []*stuck
		for i := range 6 {
			s := &stuck{httptest.NewRecorder(), make(chan struct{})}
			all = append(all, s)
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.RemoteAddr = fmt.Sprintf("10.0.0.%d:1000", i)
			go h.ServeHTTP(s, r)
			synctest.Wait()
		}
		ended := func() (n int) {
			for i, s := range all {
				select {
				case <-s.ended:
					if n++; i >= n {
						t.Errorf("got page %d canceled before an older page, want the oldest page first", i)
					}
				default:
				}
			}
			return n
		}
		for i, want := range []int{0, 2, 4, 4} { // the last two scrapes time out
			harness.Equal(t, ended(), want, "after", i, "s", "canceled pages")
			time.Sleep(takeTime + time.Millisecond)
		}
		for _, s := range all[4:] {
			close(s.ended)
		}
	})
}

func TestPageSendsWrittenBytes(t *testing.T) {
	p := &page{header: http.Header{}}
	for range 2 { // the second iteration reuses the memory of the first
		var want strings.Builder
		for i := range 3 * chunkSize / 10 {
			fmt.Fprintf(io.MultiWriter(p, &want), "%dabc\u00e9", i)
		}
		p.WriteHeader(http.StatusTeapot)
		p.Header().Set("X-A", "b")
		w := httptest.NewRecorder()
		p.send(w)
		if w.Body.String() != want.String() || w.Code != http.StatusTeapot || w.Header().Get("X-A") != "b" {
			t.Errorf("got status %d, %d bytes and header %v, want 418 and %d bytes", w.Code, w.Body.Len(), w.Header(), want.Len())
		}
		if got := w.Header().Get("Content-Length"); got != fmt.Sprint(want.Len()) {
			t.Errorf("got Content-Length %s, want %d", got, want.Len())
		}
		p.reset()
		if len(p.header) > 0 || p.size != 0 || p.status != 0 {
			t.Errorf("got header %v, %d bytes and status %d after reset, want an empty page", p.header, p.size, p.status)
		}
	}
}
