package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A fleet is a group of clients. Each client has one persistent connection.
type fleet struct {
	clients []*http.Client
	url     string
	failed  sync.Map // number of failures (*atomic.Int64) by text
}

func newFleet(t *testing.T, p *proxy, protocol string, n int) *fleet {
	c := &fleet{url: p.url("/")}
	if strings.HasPrefix(protocol, "tls") {
		c.url = "https://" + p.tlsAddr() + "/"
	}
	for range n {
		client := httpClient(t, protocol)
		client.Timeout = 2 * patience
		c.clients = append(c.clients, client)
	}
	return c
}

// requests sends one request on each connection and returns the number of
// responses with status 200.
func (c *fleet) requests() (ok int64) {
	var good atomic.Int64
	var all sync.WaitGroup
	for _, client := range c.clients {
		all.Go(func() {
			status, err := fetch(client, c.url)
			if err == nil && status == http.StatusOK {
				good.Add(1)
				return
			}
			n, _ := c.failed.LoadOrStore(fmt.Sprint(status, " ", errors.Unwrap(err)), new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		})
	}
	all.Wait()
	return good.Load()
}

// fetch sends a GET request. If the connection is closed without a response, fetch repeats the
// request, because a server can close a connection at any time while it is idle or before its first
// request (RFC 9112 section 9.3.1).
func fetch(client *http.Client, url string) (status int, err error) {
	for range 5 {
		if status, err = fetchOnce(client, url); err == nil {
			break
		}
	}
	return status, err
}

func fetchOnce(client *http.Client, url string) (status int, err error) {
	r, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return r.StatusCode, err
}

func (c *fleet) failures() (s string) {
	c.failed.Range(func(text, n any) bool {
		s += fmt.Sprintf("%d times %v\n", n.(*atomic.Int64).Load(), text)
		return true
	})
	return s
}

// scrapeDuring scrapes the metrics until stop is closed. It returns the number of scrapes.
func (p *proxy) scrapeDuring(stop <-chan struct{}) (scrapes, failed int) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	for {
		status, err := fetchOnce(client, "http://"+local(p.port.metrics)+"/metrics")
		if scrapes++; err != nil || status != http.StatusOK {
			failed++
		}
		select {
		case <-stop:
			return scrapes, failed
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// testFleet opens n connections to a sidecar with a limit on open files, and sends two requests
// on each connection.
func testFleet(t *testing.T, protocol string, files, n int) {
	p := newSerialProxy(t)
	writeCertificate(t, p.dir)
	p.app(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(5 * time.Millisecond)
		io.WriteString(w, "ok")
	}))
	p.startWithFiles(files, "METRICS_NAMES=default")
	c := newFleet(t, p, protocol, n)
	stop, scraped := make(chan struct{}), make(chan struct{})
	var scrapes, failed int
	go func() {
		defer close(scraped)
		scrapes, failed = p.scrapeDuring(stop)
	}()
	ok := c.requests() + c.requests()
	close(stop)
	<-scraped
	if ok != int64(2*n) {
		t.Errorf("got %d responses with status 200, want %d\n%s", ok, 2*n, c.failures())
	}
	if failed > 0 {
		t.Errorf("got %d failures of %d scrapes, want 0", failed, scrapes)
	}
	if p.out.HasLine("failed to open connections: not enough resources") {
		t.Error("the log contains a line about missing file descriptors")
	}
	// The output of why without -o only describes the first problem, which is a slow
	// application on a busy machine. Therefore, the test reads the JSON output.
	out, code := command(t, p.environment(), "why", "-o", "json")
	if code != 0 || !strings.Contains(out, `"problem": "client connections: limit of `) {
		t.Errorf("why: got code %d and\n%swant 0 and the limit of client connections", code, out)
	}
}

func TestLowFileLimitServesManyConnections(t *testing.T) {
	for _, protocol := range []string{"h1", "tls", "h2c", "tls-h2"} {
		t.Run(protocol, func(t *testing.T) { testFleet(t, protocol, 1024, 1500) })
	}
	t.Run("4096 files", func(t *testing.T) { testFleet(t, "h1", 4096, 5000) })
}

// Connections with requests in flight use all descriptors for clients. Idle connections are
// closed, active connections are not closed, and new connections wait.
func TestLowFileLimitClosesIdleConnections(t *testing.T) {
	p := newProxy(t)
	h := p.holder()
	h.free("/")
	p.startWithFiles(256, "METRICS_NAMES=default")
	const limit, idle = 44, 30 // limit is the number of descriptors for clients (see func divide)
	idlers := newFleet(t, p, "h1", idle)
	if ok := idlers.requests(); ok != idle {
		t.Fatalf("got %d responses with status 200, want %d\n%s", ok, idle, idlers.failures())
	}
	var busy []*client
	for i := range limit {
		busy = append(busy, p.sendGet(fmt.Sprint("/busy/", i)))
		h.wait(t, fmt.Sprint("/busy/", i))
	}
	waits := p.sendGet("/")
	p.poll("the connection waits", func() error { return p.hasMetric("queue_proxy_client_connections_waiting 1") })
	p.awaitLog("new connections are waiting")
	for i, w := range busy {
		h.free(fmt.Sprint("/busy/", i))
		if m := w.receive("GET"); m.status() != 200 {
			t.Errorf("busy connection %d: got %q, want 200", i, m.Start)
		}
	}
	if m := waits.receive("GET"); m.status() != 200 {
		t.Errorf("waiting connection: got %q, want 200", m.Start)
	}
	if ok := idlers.requests(); ok != idle {
		t.Errorf("closed idle connections: got %d responses with status 200, want %d\n%s", ok, idle, idlers.failures())
	}
}

// hasMetric returns an error if the metrics do not contain the line.
func (p *proxy) hasMetric(line string) error {
	_, body := get(p.t, httpClient(p.t, "h1"), "http://"+local(p.port.metrics)+"/metrics")
	if !strings.Contains(body, "\n"+line+"\n") {
		return errNotYet
	}
	return nil
}

// The number of requests on one HTTP/2 connection can exceed the number of connections to the
// user container.
func TestLowFileLimitQueuesHTTP2Requests(t *testing.T) {
	p := newProxy(t)
	h := &holder{gates: map[string]chan struct{}{}}
	p.appSpeaking(h, "h1")
	p.startWithFiles(256, "METRICS_NAMES=default")
	const limit, streams = 44, 100 // limit is the number of descriptors for connections to the app (see func divide)
	multi := dialH2(t, p.addr())
	for i := range uint32(streams) {
		multi.open(2*i+1, true, "GET", "/")
	}
	p.poll("requests wait for a connection", func() error {
		return p.hasMetric(fmt.Sprint("queue_proxy_app_connections_waiting ", streams-limit))
	})
	p.awaitLog("requests are waiting for a connection")
	if out, code := command(t, p.environment(), "why"); code != 0 || !strings.Contains(out, "connections to the user container: limit of 44") {
		t.Errorf("why: got code %d and\n%swant 0 and the limit", code, out)
	}
	h.free("/")
	for i := range uint32(streams) {
		if a := multi.answer(2*i + 1); a.status != 200 {
			t.Errorf("stream %d: got %+v, want 200", 2*i+1, a)
		}
	}
	if h.max != limit {
		t.Errorf("got %d requests in the app, want %d", h.max, limit)
	}
}

// setFiles changes the soft limit on open files of the sidecar.
func (p *proxy) setFiles(soft int) {
	p.t.Helper()
	pid := p.cmd.Process.Pid
	var l unix.Rlimit
	err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &l)
	if l.Cur = uint64(soft); err == nil {
		err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &l, nil)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func TestMissingDescriptorsReturnLocalError(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.startWithFiles(256, "CONNECT_RETRY=50ms")
	plain, grpc := dial(t, p.addr()), dial(t, p.addr())
	for _, w := range []*client{plain, grpc} {
		if m := w.ask("/", "K-Network-Probe: queue"); m.status() != 200 {
			t.Fatalf("got %q, want 200", m.Start)
		}
	}
	p.setFiles(5) // set a limit that is lower than the number of open files
	checkOurs(t, p, plain.ask("/bytes/5"), 500, "proxy_internal_error", "local")
	grpc.send("POST /s/m HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n")
	if m := grpc.receive("POST"); m.status() != 200 || m.get("Grpc-Status") != "14" {
		t.Errorf("gRPC: got %q with status %q, want 200 and 14", m.Start, m.get("Grpc-Status"))
	}
	late := p.sendGet("/bytes/5")
	p.poll("the log contains the accept error", func() error {
		if !p.out.HasLine("WARNING", "failed to open connections: not enough resources", "too many open files") {
			return errNotYet
		}
		return nil
	})
	p.setFiles(256)
	if m := late.receive("GET"); m.status() != 200 {
		t.Errorf("connection in the backlog: got %q, want 200", m.Start)
	}
	out, code := command(t, p.environment(), "why")
	if code != 0 || !strings.Contains(out, "no file descriptors available") || !strings.Contains(out, "2 local") {
		t.Errorf("why: got code %d and\n%swant 0, the shortage and 2 failures", code, out)
	}
	if n := strings.Count(p.out.String(), "failed to open connections: not enough resources"); n != 1 {
		t.Errorf("got %d log lines about resources within a minute, want 1", n)
	}
}

func TestMissingPortsReturnLocalError(t *testing.T) {
	if !inNamespace(t, "ip link set lo up; echo 40000 40015 > /proc/sys/net/ipv4/ip_local_port_range") {
		return
	}
	p := newProxy(t)
	h := p.holder()
	p.start("CONNECT_RETRY=50ms", p.standardProbe())
	var busy []*client
	from := func(last byte) *client { // each client has a separate source address and therefore a separate range of local ports
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, last)}}
		c, err := d.Dial("tcp", p.addr())
		if err != nil {
			t.Fatal(err)
		}
		return newClient(t, c)
	}
	for !p.out.HasLine("failed to open connections: not enough resources", "cannot assign requested address") {
		if len(busy) > 16 {
			t.Fatal("got more requests in the app than local ports")
		}
		w, path := from(byte(len(busy)+1)), fmt.Sprint("/busy/", len(busy))
		w.send(request("GET", path))
		busy = append(busy, w)
		p.poll("the app receives the request or the request fails", func() error {
			if !slices.Contains(h.order(), path) && !p.out.HasLine("request failed", path) {
				return errNotYet
			}
			return nil
		})
	}
	last := len(busy) - 1
	checkOurs(t, p, busy[last].receive("GET"), 500, "proxy_internal_error", "local")
	if !p.out.HasLine("failed to open connections: not enough resources", "local ports", "net.ipv4.ip_local_port_range") {
		t.Errorf("got log\n%s\nwant the missing resource and a hint", p.out.String())
	}
	if out, _ := command(t, p.environment(), "why"); !strings.Contains(out, "no local ports available") {
		t.Errorf("why: got\n%swant the missing resource", out)
	}
	if m := from(100).ask("/", "K-Network-Probe: queue"); m.status() != 503 || !strings.Contains(m.Body, " local") {
		t.Errorf("readiness probe: got %q with %q, want 503 with local", m.Start, m.Body)
	}
	for i, w := range busy[:last] {
		h.free(fmt.Sprint("/busy/", i))
		if m := w.receive("GET"); m.status() != 200 {
			t.Errorf("request %d: got %q, want 200", i, m.Start)
		}
	}
}
