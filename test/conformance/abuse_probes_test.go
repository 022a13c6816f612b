package conformance

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A hangingApp never responds to requests for /h and responds immediately to all others.
type hangingApp struct {
	mu              sync.Mutex
	asked, now, max int
}

func (a *hangingApp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/h" {
		io.WriteString(w, byTheApp)
		return
	}
	a.mu.Lock()
	a.asked++
	a.now++
	a.max = max(a.max, a.now)
	a.mu.Unlock()
	<-r.Context().Done()
	a.mu.Lock()
	a.now--
	a.mu.Unlock()
}

func (a *hangingApp) seen() (asked, most int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked, a.max
}

// flood sends n concurrent requests on one HTTP/2 connection and calls got with each status.
// The status of a stream that was reset is its negated error code. flood returns after n
// responses.
func flood(addr string, n int, got func(status int), fields ...string) error {
	return floodFrom("127.0.0.1", addr, n, got, fields...)
}

// floodFrom is like flood, but connects from the given local address.
func floodFrom(from, addr string, n int, got func(status int), fields ...string) error {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(requestsH2(n, fields)); err != nil {
		return err
	}
	return readStatuses(c, n, got)
}

// requestsH2 returns the input of a connection with n requests over HTTP/2, including the
// preface.
func requestsH2(n int, fields []string) []byte {
	all := []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "a.test"}, {Name: ":path", Value: "/h"}}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		all = append(all, hpack.HeaderField{Name: strings.ToLower(name), Value: value})
	}
	var text, block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	writer := http2.NewFramer(&text, nil)
	text.WriteString(http2.ClientPreface)
	writer.WriteSettings()
	for i := range n {
		block.Reset()
		for _, f := range all {
			encoder.WriteField(f)
		}
		writer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	}
	return text.Bytes()
}

// readStatuses reads n responses and calls got with each status. The status of a stream that
// was reset is its negated error code.
func readStatuses(c net.Conn, n int, got func(status int)) error {
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	status := map[uint32]int{}
	for ended := 0; ended < n; {
		f, err := framer.ReadFrame()
		if err != nil {
			return fmt.Errorf("after %d of %d responses: %w", ended, n, err)
		}
		end := f.Header().Flags.Has(http2.FlagDataEndStream)
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				framer.WriteSettingsAck()
			}
			continue
		case *http2.MetaHeadersFrame:
			status[f.StreamID], _ = strconv.Atoi(f.PseudoValue("status"))
		case *http2.DataFrame:
			if l := f.Length; l > 0 {
				framer.WriteWindowUpdate(0, l)
			}
		case *http2.RSTStreamFrame:
			status[f.StreamID], end = -int(f.ErrCode), true
		default:
			continue
		}
		if end {
			ended++
			got(status[f.Header().StreamID])
		}
	}
	return nil
}

// cpu returns the CPU time of the process.
func (p *process) cpu(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond // the values are in ticks of 1/100 s (USER_HZ)
}

// streams is the maximum number of concurrent requests on a connection.
const streams = 250

// probeAnswers counts responses to probes.
type probeAnswers struct {
	refused, dropped atomic.Int64
	others           sync.Map // statuses of the responses, except 503
}

// flood sends rounds requests on each of the given number of connections. It returns a
// channel that is closed after all responses.
func (n *probeAnswers) flood(t *testing.T, addr string, connections, rounds int) <-chan struct{} {
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			for range rounds {
				err := flood(addr, streams, func(status int) {
					switch status {
					case 503:
						n.refused.Add(1)
					case -int(http2.ErrCodeInternal): // on a busy machine, a response may take longer than 5 s, and the sidecar then resets the stream
						n.dropped.Add(1)
					default:
						n.others.Store(status, true)
					}
				}, "K-Network-Probe: queue", "User-Agent: kube-probe/1.31")
				if err != nil { // on a busy machine, the request may not arrive within two seconds, and the sidecar then closes the connection
					n.dropped.Add(streams)
					t.Log(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	return done
}

// sendRequestsUntil sends requests until done is closed. It returns the number of requests, the
// maximum number of goroutines, and the maximum latency.
func (p *proxy) sendRequestsUntil(t *testing.T, done <-chan struct{}) (traffic, goroutines int, slowest time.Duration) {
	t.Helper()
	w := dial(t, p.addr())
	for waiting := true; waiting; traffic++ {
		select {
		case <-done:
			waiting = false
		case <-time.After(20 * time.Millisecond):
		}
		sent := time.Now()
		if m := w.ask("/"); m.status() != 200 || m.Body != byTheApp {
			t.Fatalf("request during the probes: got %q, want the response from the app", m.Start)
		}
		slowest = max(slowest, time.Since(sent))
		if traffic%25 == 0 {
			goroutines = max(goroutines, p.footprint().goroutines)
		}
	}
	return traffic, goroutines, slowest
}

// The test sends 10,000 concurrent probes twice while the app hangs. The sidecar must
// send one probe at a time to the app, serve traffic, and use a bounded amount of memory
// for each probe.
func TestConcurrentProbesShareOneAppProbe(t *testing.T) {
	const (
		probes, rounds = 10_000, 2
		// memory in bytes and number of goroutines for a waiting HTTP/2 stream
		bytesEach, goroutinesEach = 24 << 10, 1.05
	)
	p := newProxy(t)
	app := &hangingApp{}
	p.appSpeaking(app, "h1")
	p.start("METRICS_NAMES=default", fmt.Sprintf(`SERVING_READINESS_PROBE={"httpGet":{"port":%d,"path":"/h"},"periodSeconds":1,"timeoutSeconds":1}`, p.port.user))
	if m := dial(t, p.addr()).ask("/warm"); m.status() != 200 {
		t.Fatalf("got %q, want 200", m.Start)
	}
	before, small, cpu := p.footprint(), p.memory("VmHWM"), p.cpu(t)

	began := time.Now()
	var got probeAnswers
	done := got.flood(t, p.addr(), probes/streams, rounds)
	traffic, most, slowest := p.sendRequestsUntil(t, done)
	took := time.Since(began)
	if n := got.refused.Load(); n < probes*rounds-got.dropped.Load() || n < probes {
		t.Errorf("got %d responses to probes, want %d", n, probes*rounds)
	}
	got.others.Range(func(status, _ any) bool {
		t.Errorf("probe: got %v, want 503", status)
		return true
	})
	asked, overlap := app.seen()
	// The application may still process a probe when the next probe begins.
	if limit := int(took/time.Second) + 2; asked > limit || overlap > 2 {
		t.Errorf("the app received %d probes, %d of them concurrent, within %v, want at most %d sequential probes", asked, overlap, took, limit)
	}
	if limit := int(goroutinesEach*probes) + 200; most > limit {
		t.Errorf("got %d goroutines, want at most %d", most, limit)
	}
	grown := p.memory("VmHWM") - small
	if grown > probes*bytesEach && os.Getenv("QUEUE_PROXY_RACE") == "" {
		t.Errorf("memory grew by %d MB, %d bytes for each probe, want at most %d", grown>>20, grown/probes, bytesEach)
	}
	t.Logf("%d probes in %v, %v of CPU each; the app received %d probes; %d goroutines, %d bytes for each probe; %d other requests, maximum latency %v",
		probes*rounds, took.Round(time.Millisecond), (p.cpu(t)-cpu)/(probes*rounds), asked, most, grown/probes, traffic, slowest.Round(time.Millisecond))
	p.awaitReleased("after that", before, few)
}

// Requests that claim to be kubelet probes get at most two slots in addition to the limit, one
// for each client address. All others wait in the queue or get status 503 if the queue is full.
func TestForgedKubeletProbesAreLimited(t *testing.T) {
	const running, waiting, requests = 1, 10, 2000
	p := newProxy(t)
	h := p.holder()
	p.start("METRICS_NAMES=default", fmt.Sprint("CONTAINER_CONCURRENCY=", running), fmt.Sprint("QUEUE_DEPTH=", waiting))
	before := p.footprint()
	var full, through, other atomic.Int64
	var all sync.WaitGroup
	for i := range requests / streams {
		field := []string{"User-Agent: kube-probe/1.31", "K-Kubelet-Probe: 1"}[i%2]
		from := []string{"127.0.0.1", "127.0.0.2"}[i%2]
		all.Go(func() {
			err := floodFrom(from, p.addr(), streams, func(status int) {
				switch status {
				case 503:
					full.Add(1)
				case 200:
					through.Add(1)
				default:
					other.Add(1)
				}
			}, field)
			if err != nil {
				t.Error(err)
			}
		})
	}
	p.poll("all requests that are not queued have a response", func() error {
		if got := full.Load(); got != requests-running-waiting-2 {
			return fmt.Errorf("got %d responses with status 503 and %d other responses", got, through.Load()+other.Load())
		}
		return nil
	})
	h.free("/h")
	all.Wait()
	if got := through.Load(); got != running+waiting+2 || other.Load() > 0 {
		t.Errorf("got %d responses with status 200 and %d with other codes, want %d and 0", got, other.Load(), running+waiting+2)
	}
	h.mu.Lock()
	most := h.max
	h.mu.Unlock()
	if most > running+2 {
		t.Errorf("the app had %d concurrent requests, want at most %d", most, running+2)
	}
	p.checkResources(before)
}
