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

// megabytes is what an app says with so many megabytes of metrics.
func megabytes(n int) string {
	line := "a_metric_of_the_app{label=\"with a value\"} 1\n"
	return strings.Repeat(line, n<<20/len(line))
}

// deaf asks a server for its metrics from another address and does not read the answer.
func deaf(t *testing.T, server *httptest.Server, client string) *harness.Client {
	t.Helper()
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}, Control: harness.Narrow}
	c := harness.DialBy(t, d, server.Listener.Addr().String())
	c.Send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
	_, err := c.Read(make([]byte, 1)) // it is being sent
	harness.NoError(t, err)
	return c
}

// With 3 MB of the app two scrapers that do not read were enough to leave the app out of
// all other scrapes for half a minute, and four to get them 503.
func TestScrapersThatDoNotReadHoldUpNoOther(t *testing.T) {
	app := megabytes(3)
	m := merged(t, says(textType, app), func(o *Merge) { o.timeout = time.Minute })
	server := httptest.NewServer(m.Handler())
	t.Cleanup(server.Close) // after those that do not read have left
	for i := range 6 {
		deaf(t, server, fmt.Sprintf("127.0.0.%d", 2+i%3))
	}
	for range 3 {
		r, err := http.Get(server.URL + path)
		harness.NoError(t, err)
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != 200 || !strings.HasSuffix(string(b), app) {
			t.Fatalf("got %s and %d bytes, %v, want 200 and the app's %d", r.Status, len(b), err, len(app))
		}
	}
}

// The scraper whose page was given up can tell that it has not got all of it.
func TestAPageThatIsGivenUpIsCutOff(t *testing.T) {
	server := httptest.NewServer(bounded(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, megabytes(6))
	})))
	t.Cleanup(server.Close) // after those that do not read have left
	first := deaf(t, server, "127.0.0.2")
	deaf(t, server, "127.0.0.3")
	r, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader("H"), first)), nil)
	harness.NoError(t, err)
	if n, err := io.Copy(io.Discard, r.Body); err == nil || n == r.ContentLength {
		t.Errorf("got %d bytes of %d and no error, want it cut off", n, r.ContentLength)
	}
}

// A stage is where scrapes of a fake handler take place.
type stage struct {
	h       http.Handler
	come    chan string   // the clients whose pages are rendered
	leave   chan struct{} // lets one of them go on
	answers chan string   // client and status
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

func TestOneScrapeTooManyOfAClientIsRefused(t *testing.T) {
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
		harness.Equal(t, len(s.come), maxRendered+1, "scrapes rendered", "(that of another client too)")
		close(s.leave)
	})
}

func TestScrapesHaveTheirTurnInTheOrderInWhichTheyCame(t *testing.T) {
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

func TestAScrapeWaitsForItsTurnOnlySoLong(t *testing.T) {
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
		harness.Equal(t, <-s.answers, "10.0.1.1 200", "afterwards")
	})
}

// A stuck response takes no byte until its deadline has passed.
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

// Two pages fill the memory. Each scrape that comes then gets that of the oldest, once
// that has been there for takeTime.
func TestTheOldestPagesAreGivenUpForThoseThatWait(t *testing.T) {
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
						t.Errorf("page %d was given up before an older one", i)
					}
				default:
				}
			}
			return n
		}
		for i, want := range []int{0, 2, 4, 4} { // two of the last wait no longer
			harness.Equal(t, ended(), want, "after", i, "s", "pages given up")
			time.Sleep(takeTime + time.Millisecond)
		}
		for _, s := range all[4:] {
			close(s.ended)
		}
	})
}

func TestAPageIsWhatWasWritten(t *testing.T) {
	p := &page{header: http.Header{}}
	for range 2 { // the second time with memory of the first
		var want strings.Builder
		for i := range 3 * chunkSize / 10 {
			fmt.Fprintf(io.MultiWriter(p, &want), "%dabc\u00e9", i)
		}
		p.WriteHeader(http.StatusTeapot)
		p.Header().Set("X-A", "b")
		w := httptest.NewRecorder()
		p.send(w)
		if w.Body.String() != want.String() || w.Code != http.StatusTeapot || w.Header().Get("X-A") != "b" {
			t.Errorf("got %d with %d bytes and %v, want 418 with %d", w.Code, w.Body.Len(), w.Header(), want.Len())
		}
		if got := w.Header().Get("Content-Length"); got != fmt.Sprint(want.Len()) {
			t.Errorf("got a length of %s, want %d", got, want.Len())
		}
		p.reset()
		if len(p.header) > 0 || p.size != 0 || p.status != 0 {
			t.Errorf("got %v, %d bytes and status %d after it, want nothing", p.header, p.size, p.status)
		}
	}
}
