package proxy

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/stats"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// fake is an exchange in memory. Its client is connected until the context of the request is
// canceled.
type fake struct {
	state   RequestState
	fields  map[string]string // by canonical name
	request *http.Request
	app     func(state *RequestState) transport.Result // the user container
	woken   chan struct{}
	hangUp  context.CancelFunc
	remote  string // address and port of the client
	open    bool   // the client can send more data after the header section

	repeated string // a field with two lines; the first line is empty

	forwarded int
	answers   []answer
	onAnswer  func() // may be nil
}

// newFake returns a request for path, to which the user container responds with 200 immediately.
// fields contains names and values.
func newFake(path string, fields ...string) *fake {
	ctx, cancel := context.WithCancel(context.Background())
	r := (&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}}).WithContext(ctx)
	f := &fake{fields: map[string]string{}, request: r, woken: make(chan struct{}, 1), hangUp: cancel, remote: "10.0.0.1:1234"}
	for i := 0; i < len(fields); i += 2 {
		f.fields[fields[i]] = fields[i+1]
	}
	f.app = func(*RequestState) transport.Result { return transport.Result{Status: 200, Begun: true} }
	return f
}

func (f *fake) Header(name string) string { return f.fields[name] }
func (f *fake) Repeats(name string) bool  { return name == f.repeated }
func (f *fake) Request() *http.Request    { return f.request }
func (f *fake) Line() transport.Line {
	return transport.Line{
		Method: f.request.Method, Target: f.request.URL.RequestURI(), Major: 1, Minor: 1,
		Remote: f.remote, Open: f.open,
	}
}

func (f *fake) Answer(a transport.Answer) {
	f.answers = append(f.answers, *a.(*answer))
	if f.onAnswer != nil {
		f.onAnswer()
	}
}

func (f *fake) Wait(s transport.State) error {
	state := s.(*RequestState)
	_, err := f.sleepUntil(state, nil)
	return err
}

func (f *fake) Notify() {
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

func (f *fake) Forward(s transport.State) transport.Result {
	state := s.(*RequestState)
	f.forwarded++
	return f.app(state)
}

// expired returns the reason for the error that Expiry returns.
func (d *deadlines) expired() observation.Reason { return reasonOf(d.Expiry()) }

// sleepUntil waits until done is closed or the request ends. It returns true if done is closed, and
// otherwise false and the error of Wait.
func (f *fake) sleepUntil(state *RequestState, done <-chan struct{}) (bool, error) {
	for {
		if f.request.Context().Err() != nil {
			return false, transport.FaultClientGone
		}
		if err := state.Expiry(); err != nil {
			return false, err
		}
		var alarm <-chan time.Time
		if next := state.NextExpiry(); !next.IsZero() {
			alarm = time.After(time.Until(next))
		}
		select {
		case <-done:
			return true, nil
		case <-f.woken:
			if done == nil && f.request.Context().Err() == nil {
				return false, state.Expiry()
			}
		case <-f.request.Context().Done():
		case <-alarm:
		}
	}
}

// worksUntil makes the user container respond with 200 when done is closed, unless the request ends
// earlier.
func (f *fake) worksUntil(done <-chan struct{}) *fake {
	f.app = func(state *RequestState) transport.Result {
		state.enter(observation.Waiting)
		for {
			ok, err := f.sleepUntil(state, done)
			if ok {
				return transport.Result{Status: 200, Begun: true}
			}
			if err != nil {
				return transport.Result{Err: err}
			}
		}
	}
	return f
}

// A testProxy is a Proxy that records its observations.
type testProxy struct {
	*Proxy
	mu   sync.Mutex
	seen []observation.Observation
}

// newTestProxy returns a proxy without a limit or timeouts. Its user container is ready.
func newTestProxy() *testProxy {
	h := &testProxy{}
	h.Proxy = &Proxy{
		Ready: func(context.Context) error { return nil },
		Drain: NewDrain(DrainSettings{Quiet: 30 * time.Second, Deadline: 300 * time.Second}),
		Stats: stats.New(time.Now()),
		Observe: func(o *observation.Observation) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.seen = append(h.seen, *o)
		},
	}
	return h
}

// of returns the observation of f.
func (h *testProxy) of(t *testing.T, f *fake) observation.Observation {
	t.Helper()
	for _, o := range h.seen {
		if o.Exchange == transport.Exchange(f) {
			return o
		}
	}
	t.Fatalf("got no observation of %v %v, want one", f.request.URL, f.fields)
	return observation.Observation{}
}

// serve serves f and returns it.
func (h *testProxy) serve(f *fake) *fake {
	h.Serve(f, &f.state)
	return f
}

// start serves f in a goroutine. The channel is closed when Serve returns.
func (h *testProxy) start(f *fake) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.serve(f)
	}()
	return done
}

// begin is like start in a synctest bubble. It returns when f is blocked.
func (h *testProxy) begin(f *fake) <-chan struct{} {
	done := h.start(f)
	synctest.Wait()
	return done
}

// empty fails the test if a slot is in use or a request is in flight.
func (h *testProxy) empty(t *testing.T) {
	t.Helper()
	if running, waiting := h.Limit.Load(); running != 0 || waiting != 0 {
		t.Errorf("limit: got %d running, %d waiting, want none", running, waiting)
	}
	if n, oldest := h.Drain.Flights(); n != 0 || !oldest.IsZero() {
		t.Errorf("requests in flight: got %d, oldest from %v, want none", n, oldest)
	}
	harness.Equal(t, h.Stats.Report(time.Now()).InFlight, 0, "requests in flight in the statistics")
	harness.Equal(t, h.kubelet.peers, [2]netip.Addr{}, "kubelet slots in use")
}
