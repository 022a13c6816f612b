//go:build cluster

package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// clients is a group of clients that send requests and record the results until they are
// stopped.
type clients struct {
	s      *space
	target string // address of the server as host:port
	host   string // Host header of streams; empty for the target
	ctx    context.Context
	end    context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex // protects the following fields
	entries []ledger.Entry
	remarks []string // details of the first requests without a response
}

// pause returns the delay between two requests. The delay is long, because the cluster and all
// clients run on one small machine.
func pause(r *rand.Rand) time.Duration { return time.Duration(20+r.IntN(60)) * time.Millisecond }

// newClients returns an empty group of clients for an address.
func newClients(s *space, target string) *clients {
	c := &clients{s: s, target: target}
	c.ctx, c.end = context.WithCancel(context.Background())
	s.t.Cleanup(func() { c.end(); c.group.Wait() })
	return c
}

func (c *clients) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", c.target)
}

// addClient starts a client. If fresh is true, the client uses a new connection for each request.
func (c *clients) addClient(name string, fresh bool, change func(*ledger.Client)) {
	v := &ledger.Client{Name: c.s.name + "." + name, Dial: c.dial, Requests: ledger.Usual(), Rand: rand.New(rand.NewPCG(uint64(len(name)), 1))}
	if change != nil {
		change(v)
	}
	c.group.Go(func() {
		defer v.Leave()
		for c.ctx.Err() == nil {
			begun := time.Now()
			if e := v.Ask(v.Next()); e.Verdict != ledger.FromApp && e.Verdict != ledger.FromSidecar {
				c.remark(fmt.Sprintf("%s: %s %s after %v: %s", begun.Format(time.TimeOnly), e.ID, e.Verdict, time.Since(begun).Round(time.Millisecond), e.Word))
			}
			if fresh {
				v.Leave()
			}
			select {
			case <-c.ctx.Done():
			case <-time.After(pause(v.Rand)):
			}
		}
		c.note(v.Entries...)
	})
}

// addClients starts one client of each kind: HTTP/1.1 with reused and with new connections, POST,
// HTTP/2, gRPC, WebSocket and server-sent events.
func (c *clients) addClients() {
	c.addClient("kept", false, func(v *ledger.Client) {
		v.Requests = []ledger.Request{ledger.Get("/bytes/3000", 3000), ledger.Get("/slow?ms=20", 5)}
	})
	c.addClient("fresh", true, func(v *ledger.Client) { v.Requests = []ledger.Request{ledger.Get("/bytes/3000", 3000)} })
	c.addClient("post", false, func(v *ledger.Client) {
		v.Requests = []ledger.Request{ledger.Post("/sink", 10000), ledger.Post("/sink", 10000).InChunks()}
	})
	c.addClient("h2c", false, func(v *ledger.Client) {
		v.Requests = []ledger.Request{ledger.Get("/bytes/3000", 3000).OverH2(), ledger.Post("/sink", 10000).OverH2()}
	})
	c.addClient("grpc", false, speakGRPC)
	c.streams()
}

// speakGRPC makes a client send gRPC calls to an echo method.
func speakGRPC(v *ledger.Client) {
	v.Fields = append(v.Fields, [2]string{"Content-Type", "application/grpc"}, [2]string{"Te", "trailers"})
	v.Requests = []ledger.Request{{Method: http.MethodPost, Path: "/grpc/echo", Body: 500, H2: true, Want: 500}}
}

// streams starts a WebSocket client and a client of server-sent events. Each stream lasts 500
// ms.
func (c *clients) streams() {
	for name, ask := range map[string]func(context.Context, string) error{"ws": c.webSocket, "sse": c.events} {
		c.group.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(len(name))))
			for i := 1; c.ctx.Err() == nil; i++ {
				e := ledger.Entry{ID: fmt.Sprintf("%s.%s-%d", c.s.name, name, i), Method: http.MethodGet, Path: "/" + name, Conn: true}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				begun := time.Now()
				if err := ask(ctx, e.ID); err != nil {
					e.Fail(err, time.Since(begun))
					c.remark(fmt.Sprintf("%s: %s after %v: %v", begun.Format(time.TimeOnly), e.ID, time.Since(begun).Round(time.Millisecond), err))
				} else {
					e.Verdict, e.Status = ledger.FromApp, http.StatusOK
					if name == "ws" {
						e.Status = http.StatusSwitchingProtocols
					}
				}
				cancel()
				c.note(e)
				time.Sleep(pause(r))
			}
		})
	}
}

// webSocket sends five messages, waits for the echo of each of them, and closes the connection.
func (c *clients) webSocket(ctx context.Context, id string) error {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) }}}
	ws, _, err := websocket.Dial(ctx, "ws://"+c.target+ledger.Target("/ws", id), &websocket.DialOptions{
		HTTPClient: client, Host: c.host, HTTPHeader: http.Header{ledger.IDField: {id}}})
	if err != nil {
		return err
	}
	defer ws.CloseNow()
	for i := range 5 {
		sent := fmt.Sprintf("%s %d", id, i)
		if err := ws.Write(ctx, websocket.MessageText, []byte(sent)); err != nil {
			return err
		}
		_, received, err := ws.Read(ctx)
		if err != nil {
			return err
		}
		if string(received) != sent {
			return fmt.Errorf("got %q, want %q", received, sent)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return ws.Close(websocket.StatusNormalClosure, "")
}

// events checks that five complete events arrive in order.
func (c *clients) events(ctx context.Context, id string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.target+ledger.Target("/sse?n=5&ms=100", id), nil)
	if err != nil {
		return err
	}
	r.Header.Set(ledger.IDField, id)
	if c.host != "" {
		r.Host = c.host
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	a, err := client.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("got status %d", a.StatusCode)
	}
	next := 0
	for lines := bufio.NewScanner(a.Body); lines.Scan(); {
		if lines.Text() == fmt.Sprintf("data: %d", next) {
			next++
		}
	}
	if next != 5 {
		return fmt.Errorf("got %d events, want 5", next)
	}
	return nil
}

func (c *clients) note(e ...ledger.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = append(c.entries, e...)
}

func (c *clients) remark(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.remarks) < 10 {
		c.remarks = append(c.remarks, text)
	}
}

// leave stops the clients after their current requests and returns the records of all requests.
func (c *clients) leave() []ledger.Entry {
	c.end()
	c.group.Wait()
	return c.entries
}

// A result counts the requests of one scenario.
type result struct {
	scenario string
	count    [ledger.Verdicts]int
	words    [ledger.Verdicts]map[string]int
}

func (r *result) sent() int {
	n := 0
	for _, c := range r.count {
		n += c
	}
	return n
}

func (r *result) add(v ledger.Verdict, word string) {
	r.count[v]++
	if r.words[v] == nil {
		r.words[v] = map[string]int{}
	}
	r.words[v][word]++
}

var results struct {
	sync.Mutex
	all []*result
}

// reconcile compares the records of the clients, the application and the sidecar, and adds a
// row for the scenario to the results. No request may be lost. reconcile waits up to 10 seconds
// for the logs.
func (c *clients) reconcile(scenario string, x ledger.Exceptions) *result {
	c.s.t.Helper()
	entries := c.leave()
	var row *result
	var lost []string
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		books := ledger.NewBooks()
		for _, l := range c.s.pod.all() {
			for _, line := range l.lines {
				if l.container == sidecarName {
					books.Sidecar(line)
				} else {
					books.App(line)
				}
			}
		}
		row, lost = &result{scenario: scenario}, nil
		for i := range entries {
			e := &entries[i]
			v, word := books.Reconcile(e, x)
			row.add(v, word)
			if v == ledger.Lost {
				lost = append(lost, fmt.Sprintf("%s %s %s: %s", e.Method, e.Path, e.ID, word))
			}
		}
		if lost == nil || time.Now().After(end) {
			break
		}
	}
	results.Lock()
	results.all = append(results.all, row)
	results.Unlock()
	if lost != nil {
		c.s.t.Errorf("%s: lost %d of %d requests:\n%s", scenario, len(lost), row.sent(), strings.Join(lost[:min(10, len(lost))], "\n"))
	}
	c.s.t.Logf("%s: %d requests, application %d, sidecar %d %v, broken %d %v, lost %d", scenario, row.sent(), row.count[ledger.FromApp],
		row.count[ledger.FromSidecar], row.words[ledger.FromSidecar], row.count[ledger.Broken], row.words[ledger.Broken], row.count[ledger.Lost])
	return row
}

// allServed calls reconcile. The application must have responded to all requests.
func (c *clients) allServed(scenario string) {
	c.s.t.Helper()
	row := c.reconcile(scenario, ledger.Exceptions{})
	if n := row.count[ledger.FromApp]; n != row.sent() || n == 0 {
		c.s.t.Errorf("%s: got responses from the application for %d of %d requests, want all; sidecar %v, broken %v:\n%s", scenario, n, row.sent(), row.words[ledger.FromSidecar], row.words[ledger.Broken], strings.Join(c.remarks, "\n"))
	}
}

// ask sends one request on a new connection and returns the status and the body. If there is no
// response, it returns 0 and the error text.
func ask(method, url string, fields ...string) (int, string) {
	return askOver(http.DefaultTransport.(*http.Transport).Clone(), method, url, fields...)
}

func askOver(transport *http.Transport, method, url string, fields ...string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	r.Close = true
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Set(name, value)
		}
	}
	a, err := transport.RoundTrip(r)
	if err != nil {
		return 0, err.Error()
	}
	defer a.Body.Close()
	b := new(strings.Builder)
	if _, err := bufio.NewReader(a.Body).WriteTo(b); err != nil {
		return 0, err.Error()
	}
	return a.StatusCode, b.String()
}

// overTLS returns a transport that does not verify certificates.
func overTLS() *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
}

// atOnce sends n concurrent requests and returns the number of responses by status.
func atOnce(t *testing.T, n int, url string, fields ...string) map[int]int {
	t.Helper()
	statuses := make(chan int, n)
	for range n {
		go func() {
			status, _ := ask(http.MethodGet, url, fields...)
			statuses <- status
		}()
	}
	got := map[int]int{}
	for range n {
		got[<-statuses]++
	}
	return got
}

// flood sends incomplete header sections of 900 KB until the condition is true.
func flood(t *testing.T, address string, is func() bool) {
	t.Helper()
	half := []byte("GET / HTTP/1.1\r\nHost: example\r\n" + strings.Repeat("X-Filler: "+strings.Repeat("x", 990)+"\r\n", 900))
	for end := time.Now().Add(patience); ; {
		var group sync.WaitGroup
		open := make(chan net.Conn, 300)
		for range cap(open) {
			group.Go(func() {
				c, err := net.DialTimeout("tcp", address, 5*time.Second)
				if err != nil {
					return
				}
				c.SetDeadline(time.Now().Add(5 * time.Second))
				_, _ = c.Write(half)
				open <- c
			})
		}
		group.Wait()
		enough := is()
		for range len(open) {
			(<-open).Close()
		}
		if enough || is() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("flood: timeout after %v", patience)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
