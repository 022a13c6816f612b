//go:build load

package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Maximum numbers of connections that the injector keeps for reviews and for metrics.
const keptReviews, keptMetrics = 500, 100

// A group is a number of connections that are opened concurrently.
type group struct {
	name    string
	n       int    // number of connections; 0 reuses the connections of the preceding group
	metrics bool   // connect to the port for metrics
	within  bool   // send inside a TLS connection
	sends   string // text to send on each connection
	reads   bool   // wait for the beginning of a response
}

// These groups have more connections than the limits permit.
var (
	betweenRequests = group{name: "between two requests", n: 600, within: true, sends: startOfHead + "\r\n", reads: true}
	inTheBody       = group{name: "long header section, within a body", sends: longHead + "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat(" ", 31<<10)}
)

// groups use 10 000 connections, or fewer if the connections are expensive, but always more than
// the limit.
var groups = []group{
	{name: "idle", n: 10_000},
	{name: "incomplete TLS handshake", n: 2000, sends: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc"},
	{name: "incomplete ClientHello of 64 KiB", n: 2000, sends: "\x16\x03\x01\x40\x00\x01\x00\xff\xf0" + strings.Repeat("\x00", 16380) + strings.Repeat("\x16\x03\x01\x40\x00"+strings.Repeat("\x00", 16<<10), 2)},
	betweenRequests,
	inTheBody,
	{name: "unread long response", n: 100, within: true, sends: posted(greedyReview)},
	{name: "idle, port for metrics", n: 2000, metrics: true},
	{name: "incomplete header section, port for metrics", n: 2000, metrics: true, sends: longHead + strings.Repeat("a:\r\nb:\r\n", 8000)},
}

const startOfHead = "POST /inject HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n"

// longHead is an incomplete header section with the maximum length and number of fields.
var longHead = func() string {
	var b strings.Builder
	b.WriteString("POST /inject HTTP/1.1\r\nHost: a\r\n")
	for i := 0; b.Len() < 5000; i++ {
		fmt.Fprintf(&b, "%x:\r\n", i)
	}
	return b.String()
}()

// greedyReview is a short review with a long response.
var greedyReview = strings.Replace(goodReview, `"name":"web",`, `"name":"web","readinessProbe":{"httpGet":{"port":8080,"path":"/`+strings.Repeat("a", 30_000)+`"}},`, 1)

func posted(body string) string {
	return fmt.Sprintf("POST /inject HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// open opens the connections of a group, or reuses those of the preceding group, and sends the
// text.
func (h group) open(t *testing.T, p *served, all []net.Conn) []net.Conn {
	t.Helper()
	addr := p.reviews
	if h.metrics {
		addr = p.metrics
	}
	if h.n > 0 {
		all = make([]net.Conn, h.n)
	}
	const at = 8 // number of concurrent handshakes
	var busy sync.WaitGroup
	for k := range at {
		busy.Go(func() {
			for i := k; i < len(all); i += at {
				if h.n > 0 {
					c, err := net.Dial("tcp", addr)
					if err != nil {
						t.Errorf("%s: connection %d: %v", h.name, i, err)
						return
					}
					_ = c.(*net.TCPConn).SetReadBuffer(4096)
					if all[i] = c; h.within {
						all[i] = tls.Client(c, &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}})
					}
				}
				_ = all[i].SetDeadline(time.Now().Add(10 * time.Second))
				_, _ = io.WriteString(all[i], h.sends) // the server can close the connection, because other connections exceed the limit
				if h.reads {
					_, _ = all[i].Read(make([]byte, 1))
				}
			}
		})
	}
	busy.Wait()
	return all
}

// An apiServer sends a review every few milliseconds on a persistent connection.
type apiServer struct {
	client  http.Client
	url     string
	asked   int
	longest time.Duration
	wrong   error
}

func (a *apiServer) ask() {
	began := time.Now()
	r, err := a.client.Post(a.url, "application/json", strings.NewReader(goodReview))
	if err == nil {
		_, err = io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if err == nil && r.StatusCode != 200 {
			err = errors.New(r.Status)
		}
	}
	if err != nil && a.wrong == nil {
		a.wrong = fmt.Errorf("review %d: %w", a.asked, err)
	}
	a.asked++
	a.longest = max(a.longest, time.Since(began))
}

// sendReviews sends reviews until stop is called. stop waits for the last response.
func (a *apiServer) sendReviews() (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			a.ask()
			select {
			case <-end:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() { close(end); <-done }
}

// forgetPeak resets the peak memory usage of the process.
func (p *served) forgetPeak(t *testing.T) {
	t.Helper()
	harness.NoError(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0))
}

func (p *served) files(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	harness.NoError(t, err)
	return len(all)
}

// The test opens many connections in different states. The number of open connections and the memory
// must not exceed the limits. An API server must receive the responses in time, both on an existing
// connection and on a new connection.
func TestManyPeersStayWithinLimits(t *testing.T) {
	const patience = 5 * time.Second // timeoutSeconds of deploy/base
	p := startInjector(t, buildInjector(t))
	files := p.files(t)
	var all []net.Conn
	for i, h := range groups {
		p.forgetPeak(t)
		api := &apiServer{url: "https://" + p.reviews + "/inject", client: http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.roots}}}}
		api.ask()
		stop := api.sendReviews()
		began := time.Now()
		all = h.open(t, p, all)
		took := time.Since(began)
		stop()
		api.client.CloseIdleConnections()
		api.ask() // send a review on a new connection
		kept := p.files(t)
		t.Logf("%d %s: duration %v, peak memory %d MB; %d reviews, the longest took %v", len(all), h.name, took, p.peak(t)>>20, api.asked, api.longest)
		if api.wrong != nil {
			t.Errorf("%s: API server: %v", h.name, api.wrong)
		}
		most := keptReviews
		if h.metrics {
			most = keptMetrics
		}
		for begin := time.Now(); kept > files+most+10 && time.Since(begin) < 5*time.Second; kept = p.files(t) {
			time.Sleep(10 * time.Millisecond) // wait until the server has closed the excess connections
		}
		if kept > files+most+10 {
			t.Errorf("%s: got %d open files, want at most %d in addition to the initial %d", h.name, kept, most+10, files)
		}
		if got := p.peak(t); got > injectorMemory {
			t.Errorf("%s: got a peak of %d MB of memory, want at most %d", h.name, got>>20, injectorMemory>>20)
		}
		if i+1 < len(groups) && groups[i+1].n == 0 {
			continue
		}
		for _, c := range all {
			if to, ok := c.(*tls.Conn); ok {
				c = to.NetConn() // close the TCP connection without a close_notify alert
			}
			if c != nil {
				c.Close()
			}
		}
		api.client.CloseIdleConnections()
		for begin := time.Now(); p.files(t) > files+10; time.Sleep(10 * time.Millisecond) {
			if time.Since(begin) > 10*time.Second {
				t.Fatalf("%s: got %d open files after the connections were closed, want about %d", h.name, p.files(t), files)
			}
		}
	}
}
