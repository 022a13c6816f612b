package status

import (
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// ready is the readiness of a pod in these tests.
var ready = observation.Readiness{Phase: observation.PhaseReady, Probes: []observation.ProbeReadiness{
	{Kind: "tcpSocket", Target: "127.0.0.1:8080", Phase: observation.PhaseReady, Tries: 3},
}}

// idle returns the Board of a healthy pod without requests.
func idle() *Board {
	b := board(ready, Drain{})
	b.sources.Load = func() (int, int) { return 0, 0 }
	return b
}

// sampled calls each, waits for one interval and takes a sample, n times.
func (b *Board) sampled(n int, each func()) {
	for range n {
		each()
		time.Sleep(Interval)
		b.sample()
	}
}

// observe records n requests with the same result.
func (b *Board) observe(n int, reason observation.Reason, took time.Duration) {
	for range n {
		b.Observe(newObservation(reason, took))
	}
}

// observeErrors records n responses from the app with the status 500.
func (b *Board) observeErrors(n int) {
	o := newObservation(observation.OK, time.Millisecond)
	o.Status = 500
	for range n {
		b.Observe(o)
	}
}

// loaded sets the number of running and queued requests.
func (b *Board) loaded(running, waiting int) {
	b.sources.Load = func() (int, int) { return running, waiting }
}

// holding sets the number of requests in the app, their phase, and the time at which they got their slots.
func (b *Board) holding(n int, phase observation.Phase, since time.Time) {
	app := observation.AppRequests{Pending: n, Oldest: since}
	if phase == observation.Streaming {
		app = observation.AppRequests{Responding: n}
	}
	b.sources.App = func(time.Duration) observation.AppRequests { return app }
}

// stall simulates n requests without a response, of which n-1 have waited for 10 s. The oldest has the path /slow.
func (b *Board) stall(n int) {
	at := time.Now().Add(-10 * time.Second)
	b.sources.App = func(long time.Duration) (app observation.AppRequests) {
		app.Pending, app.Oldest = n, at
		if long <= 10*time.Second {
			app.Long = n - 1
		}
		return app
	}
	b.sources.Slots = func() ([]observation.Holder, int) {
		return []observation.Holder{
			{Method: "GET", Path: "/download", Phase: observation.Streaming.String()},
			{Method: "GET", Path: "/slow", Phase: observation.Waiting.String()},
		}, 0
	}
}

// hold sets the last requests with a held slot, and holds one of the two slots.
func (b *Board) hold(last observation.HeldRequests) {
	b.sources.Slots = func() ([]observation.Holder, int) { return nil, 1 }
	b.sources.App = func(time.Duration) observation.AppRequests { return observation.AppRequests{Held: last} }
}

// rejectCertificates records 12 clients that rejected the certificate.
func (b *Board) rejectCertificates() {
	b.sources.Bounds = bound.NewRecorder()
	for range 12 {
		b.sources.Bounds.Fail(bound.TLSRejected, "10.0.0.1:1234", errors.New("unknown CA"))
	}
}

// queued returns the observation of a request that waited for a slot.
func queued(waited, took time.Duration) *observation.Observation {
	o := newObservation(observation.OK, waited+took)
	o.Slot = o.Start.Add(waited)
	return o
}

// fillQueue records fast requests without a queue, and then a minute in which requests wait in the queue for a second.
// took is the time of each of these requests in the app.
func (b *Board) fillQueue(took time.Duration) {
	b.sampled(50, func() { b.observe(10, observation.OK, 50*time.Millisecond) })
	b.loaded(2, 20)
	b.sampled(60, func() {
		for range 40 {
			b.Observe(queued(time.Second, took))
		}
	})
}

// disconnect records a client that disconnects before the response, after the given times in the queue and in the app.
func (b *Board) disconnect(queued, took time.Duration) {
	o := newObservation(observation.ClientGone, queued+took)
	o.Begun, o.Slot = false, o.Start.Add(queued)
	b.Observe(o)
}

// loseClients records a minute in which every second client disconnects before the response.
func (b *Board) loseClients() {
	b.sampled(60, func() {
		b.observe(1, observation.OK, time.Millisecond)
		o := newObservation(observation.ClientGone, 2*time.Second)
		o.Begun = false
		b.Observe(o)
	})
}

// A ruleTest describes a pod with one problem, and the expected result of the rules.
type ruleTest struct {
	name, rule string
	fail       func(*Board)
	numbers    string
	confidence confidence
	since      time.Duration // time since the start of the problem
}

var ruleTests = []ruleTest{
	{"failures with two reasons", "app-fails", func(b *Board) {
		b.sampled(30, func() {
			b.observe(2, observation.OK, time.Millisecond)
			b.observe(1, observation.AppReset, time.Millisecond)
			b.observe(1, observation.AppGarbage, time.Millisecond)
		})
	}, "50 % of 120 requests in the last 30s (30 app-reset, 30 app-garbage); last failure: GET /path: test error", high, 30 * time.Second},
	{"database", "not-http", func(b *Board) { b.observe(1, observation.AppGarbage, 0) }, "", high, 0},
	{"another address", "not-listening", func(b *Board) {
		o := newObservation(observation.AppUnreachable, 0)
		o.Err = syscall.ECONNREFUSED
		b.Observe(o)
	}, "", high, 0},
	{"expired certificate", "tls", func(b *Board) {
		b.sources.TLS = func() TLS {
			return TLS{On: true, Port: 8112, Names: []string{"a.example"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
		}
	}, "on, port 8112, certificate for a.example, expired 1h0m0s ago (1999-12-31 23:00 UTC), rejected by clients", high, time.Hour},
	{"certificate that was not renewed", "tls-expires", func(b *Board) {
		b.sources.TLS = func() TLS {
			return TLS{On: true, NotBefore: time.Now().Add(-80 * time.Hour), NotAfter: time.Now().Add(23 * time.Hour)}
		}
	}, "in 23h0m0s", medium, time.Hour},
	{"certificate with a lifetime of a day", "tls-expires", func(b *Board) {
		b.sources.TLS = func() TLS {
			return TLS{On: true, NotBefore: time.Now().Add(-20 * time.Hour), NotAfter: time.Now().Add(4 * time.Hour)}
		}
	}, "in 4h0m0s", medium, 2 * time.Hour},
	{"missing key", "tls", func(b *Board) {
		b.sources.TLS = func() TLS { return TLS{Error: "tls.key: no such file"} }
		b.sampled(2, func() {})
	}, "tls.key: no such file", high, time.Second},
	{"no response", "app-hangs", func(b *Board) {
		b.sampled(10, func() { b.observe(1, observation.OK, time.Millisecond) })
		b.loaded(2, 5)
		b.holding(2, observation.Waiting, time.Now())
		b.sampled(40, func() {})
	}, "2 requests in the application, the oldest for 40s; 5 queued; last response 40s ago", high, 40 * time.Second},
	{"one long request", "app-hangs", func(b *Board) {
		b.loaded(1, 0)
		b.holding(1, observation.Waiting, time.Now())
		b.sampled(31, func() {})
	}, "1 request in the application, the oldest for 31s; 0 queued; no response since the start", low, 31 * time.Second},
	{"responses to kubelet probes only", "app-hangs", func(b *Board) {
		probe := newObservation(observation.OK, time.Millisecond)
		probe.Kind = observation.KubeletRequest
		b.loaded(2, 5)
		b.holding(2, observation.Waiting, time.Now())
		b.sampled(40, func() { b.Observe(probe) })
	}, "2 requests in the application, the oldest for 40s; 5 queued; no response since the start", low, 40 * time.Second},
	{"no response in two minutes", "app-hangs", func(b *Board) {
		b.loaded(2, 5)
		b.holding(2, observation.Waiting, time.Now())
		b.sampled(120, func() {})
	}, "2 requests in the application, the oldest for 2m0s; 5 queued; no response since the start", high, 2 * time.Minute},
	{"timeouts only", "app-hangs", func(b *Board) {
		b.sampled(40, func() { b.observe(1, observation.RequestTimeout, time.Second) })
	}, "30 requests did not receive a response in the last 30s (timeout or client disconnect); no response since the start", high, 40 * time.Second},
	{"disconnects only", "app-hangs", func(b *Board) {
		b.sampled(10, func() { b.observe(5, observation.OK, time.Millisecond) })
		b.sampled(31, func() { b.observe(1, observation.ClientGone, 2*time.Second) })
	}, "30 requests did not receive a response in the last 30s (timeout or client disconnect); last response 31s ago", high, 31 * time.Second},
	{"three disconnects after an idle period", "app-hangs", func(b *Board) {
		b.sampled(10, func() { b.observe(5, observation.OK, time.Millisecond) })
		b.sampled(60, func() {})
		b.sampled(3, func() { b.observe(1, observation.ClientGone, 2*time.Second) })
	}, "3 requests did not receive a response in the last 30s (timeout or client disconnect); last response 1m3s ago", low, 3 * time.Second},
	{"ten disconnects after an idle period", "app-hangs", func(b *Board) {
		b.sampled(10, func() { b.observe(5, observation.OK, time.Millisecond) })
		b.sampled(60, func() {})
		b.sampled(5, func() { b.observe(2, observation.ClientGone, 2*time.Second) })
	}, "10 requests did not receive a response in the last 30s (timeout or client disconnect); last response 1m5s ago", high, 5 * time.Second},
	{"a disconnect every 9 seconds", "app-hangs", func(b *Board) {
		b.sampled(10, func() { b.observe(5, observation.OK, time.Millisecond) })
		b.sampled(5, func() {
			b.observe(1, observation.ClientGone, 2*time.Second)
			b.sampled(8, func() {})
		})
	}, "3 requests did not receive a response in the last 30s (timeout or client disconnect); last response 45s ago", high, 45 * time.Second},
	{"a timeout every 25 seconds", "app-hangs", func(b *Board) {
		b.sampled(10, func() { b.observe(20, observation.OK, 10*time.Millisecond) })
		b.sampled(14, func() {
			b.sampled(24, func() {})
			b.disconnect(0, 25*time.Second)
		})
	}, "12 requests did not receive a response in the last 5m0s (timeout or client disconnect); last response 5m50s ago", high, 326 * time.Second},
	{"full queue that is empty for a moment", "app-hangs", func(b *Board) {
		b.sampled(10, func() { b.observe(5, observation.OK, time.Millisecond) })
		b.holding(2, observation.Waiting, time.Now())
		b.sampled(40, func() { b.Observe(refused(observation.QueueTimeout, time.Second)) })
	}, "2 requests in the application, the oldest for 40s; 0 queued; last response 40s ago", high, 40 * time.Second},
	{"requests that are usually long", "app-hangs", func(b *Board) {
		b.observe(1, observation.OK, 50*time.Second)
		b.loaded(1, 3)
		b.holding(1, observation.Waiting, time.Now())
		b.sampled(40, func() {})
	}, "1 request in the application, the oldest for 40s; 3 queued; other requests took up to 55s; last response 39s ago", low, 40 * time.Second},
	{"hang without a limit and client timeouts", "app-hangs", func(b *Board) {
		b.sampled(10, func() { b.observe(1, observation.OK, time.Millisecond) })
		b.holding(3, observation.Waiting, time.Now())
		b.sampled(120, func() {})
	}, "3 requests in the application, the oldest for 2m0s; 0 queued; last response 2m0s ago", medium, 120 * time.Second},
	{"one request hangs for 10 minutes", "app-hangs", func(b *Board) {
		b.sampled(10, func() { b.observe(1, observation.OK, time.Millisecond) })
		b.holding(1, observation.Waiting, time.Now())
		b.sampled(600, func() {})
	}, "1 request in the application, the oldest for 10m0s; 0 queued; last response 10m0s ago", medium, 600 * time.Second},
	{"long polls without other requests", "app-hangs", func(b *Board) {
		b.sampled(200, func() {
			b.observe(8, observation.OK, time.Millisecond)
			b.observe(1, observation.OK, 12*time.Minute)
		})
		b.holding(3, observation.Waiting, time.Now())
		b.sampled(660, func() {})
	}, "3 requests in the application, the oldest for 11m0s; 0 queued; other requests took up to 12m21s; last response 11m0s ago", low, 660 * time.Second},
	{"held slots without a response", "app-hangs", func(b *Board) {
		b.hold(observation.HeldRequests{Expired: time.Now().Add(time.Hour), Waited: 10 * time.Second})
		b.sampled(10, func() { b.observe(20, observation.OK, 20*time.Millisecond) })
		b.sampled(45, func() {
			for range 400 {
				b.Observe(refused(observation.QueueFull, time.Millisecond))
			}
			if b.taken%10 == 0 {
				b.observe(1, observation.ClientGone, time.Millisecond) // received the slot shortly before its timeout
			}
		})
	}, "5 requests did not receive a response in the last 45s (timeout or client disconnect); last response 45s ago", high, 45 * time.Second},
	{"slots held for 30 seconds", "app-hangs", func(b *Board) {
		b.hold(observation.HeldRequests{Expired: time.Now().Add(time.Hour), Waited: 10 * time.Second})
		b.sampled(10, func() { b.observe(20, observation.OK, 20*time.Millisecond) })
		b.sampled(10, func() {})
		b.sampled(20, func() {
			if b.taken%10 == 0 {
				b.observe(2, observation.ClientGone, time.Millisecond)
			}
		})
	}, "4 requests did not receive a response in the last 30s (timeout or client disconnect); last response 30s ago", high, 20 * time.Second},
	{"short client timeouts without any response for a time that is sufficient for most requests", "app-hangs", func(b *Board) {
		b.sampled(60, func() { b.observe(3, observation.ClientGone, 300*time.Millisecond) })
	}, "90 requests did not receive a response in the last 30s (timeout or client disconnect); no response since the start", medium, 60 * time.Second},
	{"refused probe", "not-ready", func(b *Board) {
		since := time.Now().Add(-time.Minute)
		b.sources.Readiness = func() observation.Readiness {
			return observation.Readiness{Phase: observation.PhaseFailing, Since: since, Probes: []observation.ProbeReadiness{
				{Kind: "tcpSocket", Phase: observation.PhaseFailing, Word: observation.WordRefused, Tries: 3},
			}}
		}
	}, "probe 0 (tcpSocket) failing: refused", high, time.Minute},
	{"often unready", "readiness-flaps", func(b *Board) {
		for range 5 {
			time.Sleep(4 * time.Minute)
			b.BecameUnready()
		}
	}, "4 times in the last 15 minutes, most recently 0s ago", medium, 12 * time.Minute},
	{"crashes", "app-fails", func(b *Board) {
		b.sampled(60, func() { b.observe(18, observation.OK, time.Millisecond) })
		b.sampled(30, func() {
			b.observe(18, observation.OK, time.Millisecond)
			b.observe(2, observation.AppReset, time.Millisecond)
		})
	}, "5 % of 1140 requests in the last minute (60 app-reset); last failure: GET /path: test error", high, 30 * time.Second},
	{"errors", "app-errors", func(b *Board) {
		b.sampled(100, func() { b.observe(10, observation.OK, time.Millisecond) })
		b.sampled(30, func() { b.observeErrors(10) })
	}, "50 % of 600 application responses in the last minute (5xx status or gRPC error)", high, 30 * time.Second},
	{"errors of a few calls", "app-errors", func(b *Board) {
		o := newObservation(observation.OK, time.Millisecond)
		o.RPC = observation.GRPCStatusOf(14)
		b.sampled(3, func() {
			b.Observe(o)
			b.sampled(99, func() {})
		})
	}, "100 % of 3 application responses in the last 5 minutes (5xx status or gRPC error); most recently 1m39s ago", high, 300 * time.Second},
	{"timeouts", "timeouts", func(b *Board) {
		b.sampled(60, func() {
			b.observe(9, observation.OK, time.Millisecond)
			b.observe(1, observation.IdleTimeout, time.Second)
		})
	}, "10 % of 600 requests in the last minute (60 idle-timeout); last failure: GET /path: test error", high, time.Minute},
	{"client timeouts", "unanswered", (*Board).loseClients, "50 % of 120 requests in the last minute: the client disconnected after 2s in the application (p50); most recently /path", medium, time.Minute},
	{"timeouts of a few clients", "unanswered", func(b *Board) {
		b.loaded(2, 1)
		b.loseClients()
		b.sampled(60, func() {
			b.observe(18, observation.OK, time.Millisecond)
			o := newObservation(observation.ClientGone, 2*time.Second)
			o.Begun = false
			b.Observe(o)
		})
	}, "5 % of 1140 requests in the last minute: the client disconnected after 2s in the application (p50); most recently /path", low, 2 * time.Minute},
	{"client timeouts that are similar to the response time of a slow path", "unanswered", func(b *Board) {
		b.sampled(60, func() {
			b.observe(99, observation.OK, time.Millisecond)
			b.observe(1, observation.OK, 2*time.Second)
			for range 50 {
				b.disconnect(0, 2*time.Second)
			}
		})
	}, "33 % of 9000 requests in the last minute: the client disconnected after 2s in the application (p50); most recently /path", low, time.Minute},
	{"client timeouts while connections wait", "client-connections", func(b *Board) {
		b.sources.Connections = func() Connections {
			return Connections{Clients: bound.Pool{Open: 5, Limit: 5, Waiting: 2, Reached: time.Now().Add(-5 * time.Second)}, ClientsLimit: SourceSetting}
		}
		b.sampled(60, func() {
			b.observe(1, observation.OK, 10*time.Second)
			b.disconnect(0, time.Millisecond)
		})
	}, "5 open, 2 waiting, 0 evicted, waited 0s in total; reached 5s ago; source of the limit: MAX_CONNECTIONS", medium, 64 * time.Second},
	{"client timeouts and a queue", "unanswered", func(b *Board) {
		b.loaded(2, 5)
		b.loseClients()
	}, "50 % of 120 requests in the last minute: the client disconnected after 2s in the application (p50); most recently /path", medium, time.Minute},
	{"client timeouts shorter than the response time", "unanswered", func(b *Board) {
		b.sampled(60, func() {
			b.observe(1, observation.OK, 300*time.Millisecond)
			b.observe(3, observation.ClientGone, 100*time.Millisecond)
		})
	}, "75 % of 240 requests in the last minute: the client disconnected after 108ms in the application (p50); the application needs 304ms (p50); most recently /path", medium, time.Minute},
	{"client timeouts shorter than the usual response time", "unanswered", func(b *Board) {
		b.sampled(60, func() { b.observe(2, observation.OK, 5*time.Second) })
		b.sampled(60, func() { b.observe(3, observation.ClientGone, 2*time.Second) })
	}, "100 % of 180 requests in the last minute: the client disconnected after 2s in the application (p50); the application needs 5.8s (p50); most recently /path", medium, time.Minute},
	{"short client timeouts without any response", "unanswered", func(b *Board) {
		b.sampled(60, func() { b.observe(3, observation.ClientGone, 100*time.Millisecond) })
	}, "100 % of 180 requests in the last minute: the client disconnected after 108ms in the application (p50); no other request received a response; most recently /path", low, time.Minute},
	{"long polls", "app-hangs", func(b *Board) {
		b.sampled(100, func() { b.observe(2, observation.OK, 45*time.Second) })
		b.loaded(3, 0)
		b.holding(3, observation.Waiting, time.Now())
		b.sampled(40, func() {})
	}, "3 requests in the application, the oldest for 40s; 0 queued; other requests took up to 46s; last response 40s ago", low, 40 * time.Second},
	{"errors of one path", "app-errors", func(b *Board) {
		b.sampled(60, func() {
			b.observe(9, observation.OK, time.Millisecond)
			b.observeErrors(1)
		})
	}, "10 % of 600 application responses in the last minute (5xx status or gRPC error)", low, time.Minute},
	{"errors that ended", "app-errors", func(b *Board) {
		b.sampled(30, func() { b.observeErrors(1) })
		b.sampled(40, func() {})
	}, "100 % of 20 application responses in the last minute (5xx status or gRPC error); most recently 40s ago", high, 70 * time.Second},
	{"slower than usual", "app-slow", func(b *Board) {
		b.sampled(100, func() { b.observe(10, observation.OK, 50*time.Millisecond) })
		b.sampled(35, func() { b.observe(1, observation.OK, 400*time.Millisecond) })
	}, "p50 431ms, p99 431ms in the last minute; usual p50 54ms", high, 35 * time.Second},
	{"slower than usual for a long time", "app-slow", func(b *Board) {
		b.sampled(100, func() { b.observe(10, observation.OK, 50*time.Millisecond) })
		b.sampled(1000, func() { b.observe(10, observation.OK, 400*time.Millisecond) })
	}, "p50 431ms, p99 431ms in the last minute; usual p50 54ms", high, 1000 * time.Second},
	{"more slow requests than usual", "app-slow", func(b *Board) {
		b.sampled(100, func() {
			b.observe(9, observation.OK, 50*time.Millisecond)
			b.observe(1, observation.OK, 400*time.Millisecond)
		})
		b.sampled(35, func() {
			b.observe(4, observation.OK, 50*time.Millisecond)
			b.observe(6, observation.OK, 400*time.Millisecond)
		})
	}, "p50 431ms, p99 431ms in the last minute; usual p50 54ms; the number of slow requests may have increased", low, 35 * time.Second},
	{"fast and slow requests become slower", "app-slow", func(b *Board) {
		b.sampled(100, func() {
			b.observe(9, observation.OK, 50*time.Millisecond)
			b.observe(1, observation.OK, 400*time.Millisecond)
		})
		b.sampled(35, func() {
			b.observe(9, observation.OK, 400*time.Millisecond)
			b.observe(1, observation.OK, 3200*time.Millisecond)
		})
	}, "p50 431ms, p99 3.4s in the last minute; usual p50 54ms", high, 35 * time.Second},
	{"slow since the start", "app-slow", func(b *Board) {
		b.loaded(1, 0)
		b.sampled(100, func() {
			b.holding(1, observation.Waiting, time.Now())
			b.observe(1, observation.OK, 2*time.Second)
		})
	}, "p50 2s, p99 2s in the last minute; this may be normal for the application", low, 100 * time.Second},
	{"slow except for one second", "app-slow", func(b *Board) {
		b.loaded(1, 0)
		b.holding(1, observation.Waiting, time.Now().Add(time.Hour))
		b.sampled(100, func() { b.observe(1, observation.OK, 2*time.Second) })
		b.sampled(1, func() { b.observe(1, observation.OK, 800*time.Millisecond) })
	}, "p50 2s, p99 2s in the last minute; this may be normal for the application", low, 101 * time.Second},
	{"limit of 2", "limit-low", func(b *Board) { b.fillQueue(50 * time.Millisecond) },
		"p99 1s in the queue, p50 54ms in the application in the last minute; 20 queued, the oldest for 0s; limit 2; p50 54ms below the limit", medium, 59 * time.Second},
	{"full queue", "rejected", func(b *Board) {
		b.sampled(10, func() {
			b.Observe(refused(observation.QueueTimeout, time.Second))
			for range 4 {
				b.Observe(refused(observation.QueueFull, time.Second))
			}
		})
	}, "5.0 requests per second rejected (queue-full)", high, 9 * time.Second},
	{"full queue and one path without responses", "stalled", func(b *Board) {
		b.stall(2)
		b.sampled(10, func() {
			b.observe(10, observation.OK, 20*time.Millisecond)
			b.Observe(refused(observation.QueueFull, time.Millisecond))
		})
	}, "1 of 2 slots used by 1 request without a response for more than 1s, such as GET /slow", medium, 9 * time.Second},
	{"full queue and long requests that are usual", "rejected", func(b *Board) {
		b.stall(2)
		b.sampled(10, func() {
			b.observe(10, observation.OK, 20*time.Second)
			b.Observe(refused(observation.QueueFull, time.Millisecond))
		})
	}, "1.0 requests per second rejected (queue-full)", high, 9 * time.Second},
	{"queue and one path without responses", "stalled", func(b *Board) {
		b.stall(3)
		b.loaded(2, 5)
		b.sampled(60, func() {
			b.observe(10, observation.OK, 20*time.Millisecond)
			b.Observe(refused(observation.ClientGone, time.Second))
		})
	}, "2 of 2 slots used by 2 requests without a response for more than 1s, such as GET /slow", medium, 59 * time.Second},
	{"full queue until 20 seconds ago", "rejected", func(b *Board) {
		b.sampled(30, func() { b.observe(20, observation.OK, 20*time.Millisecond) })
		b.sampled(10, func() {
			b.observe(20, observation.OK, 20*time.Millisecond)
			b.Observe(refused(observation.QueueTimeout, time.Second))
			b.observe(8, observation.QueueFull, time.Millisecond)
		})
		b.sampled(20, func() {})
	}, "10 % of 890 requests rejected in the last minute (queue-full); most recently 20s ago", medium, 29 * time.Second},
	{"memory budget", "memory", func(b *Board) {
		b.sampled(10, func() { b.Observe(refused(observation.Overload, time.Second)) })
	}, "1.0 requests per second rejected (overload)", high, 9 * time.Second},
	{"memory in use", "memory", func(b *Board) {
		b.sources.Memory = func() (int64, int64) { return 9 << 20, 10 << 20 }
	}, "9.0 MiB of 10.0 MiB", high, 0},
	{"slots of disconnected clients", "stalled", func(b *Board) {
		b.sources.Slots = func() ([]observation.Holder, int) { return nil, 1 }
		b.fillQueue(50 * time.Millisecond)
	}, "1 of 2 slots used by 1 aborted request", medium, 59 * time.Second},
	{"WebSockets in all slots", "queue-wait", func(b *Board) {
		b.sampled(10, func() { b.observe(10, observation.OK, 20*time.Millisecond) })
		b.loaded(2, 5)
		b.sources.Waiter = func() time.Time { return time.Now().Add(-8 * time.Second) }
		b.sources.App = func(time.Duration) observation.AppRequests { return observation.AppRequests{Upgraded: 2} }
		b.sampled(60, func() {})
	}, "p99 100µs in the queue, p50 23ms in the application in the last 1m10s; 5 queued, the oldest for 8s; limit 2; " +
		"slots are held by 2 upgraded connections and 0 responses in progress", medium, 59 * time.Second},
	{"uploads in all slots", "queue-wait", func(b *Board) {
		b.sampled(10, func() { b.observe(10, observation.OK, 20*time.Millisecond) })
		b.loaded(2, 5)
		b.sources.Waiter = func() time.Time { return time.Now().Add(-8 * time.Second) }
		b.sampled(60, func() {})
	}, "p99 100µs in the queue, p50 23ms in the application in the last 1m10s; 5 queued, the oldest for 8s; limit 2", medium, 59 * time.Second},
	{"WebSockets and a long request in the slots", "queue-wait", func(b *Board) {
		b.sampled(10, func() { b.observe(10, observation.OK, 20*time.Millisecond) })
		b.loaded(2, 5)
		b.sources.Waiter = func() time.Time { return time.Now().Add(-8 * time.Second) }
		app := observation.AppRequests{Upgraded: 1, Pending: 1, Oldest: time.Now()}
		b.sources.App = func(time.Duration) observation.AppRequests { return app }
		b.sampled(60, func() {})
	}, "p99 100µs in the queue, p50 23ms in the application in the last 1m10s; 5 queued, the oldest for 8s; limit 2; " +
		"slots are held by 1 upgraded connection and 0 responses in progress", medium, 59 * time.Second},
	{"slower at the limit", "queue-wait", func(b *Board) { b.fillQueue(100 * time.Millisecond) },
		"p99 1s in the queue, p50 108ms in the application in the last minute; 20 queued, the oldest for 0s; limit 2", medium, 59 * time.Second},
	{"local ports", "resources", func(b *Board) {
		b.sources.Connections = limited(5 * time.Second).sources.Connections
	}, "3 times since the start, most recently 5s ago (connection to the user container: cannot assign requested address)", high, 5 * time.Second},
	{"connections of clients", "client-connections", func(b *Board) {
		c := limited(5 * time.Minute).sources.Connections()
		b.sources.Connections = func() Connections {
			return Connections{OpenFilesLimit: 1024, Clients: c.Clients, ClientsLimit: SourceFiles}
		}
	}, "345 open, 1 waiting, 0 evicted, waited 0s in total; reached 5m0s ago; limit on open files: 1024", low, 5 * time.Minute},
	{"connections to the app", "app-connections", func(b *Board) {
		c := limited(5 * time.Second).sources.Connections()
		b.sources.Connections = func() Connections { return Connections{App: c.App} }
	}, "300 open, 7 waiting, 0 evicted, waited 0s in total; reached 5s ago; no limit on open files", medium, 5 * time.Second},
	{"connections to the app for 40 minutes", "app-connections", func(b *Board) {
		c := limited(0).sources.Connections()
		b.sources.Connections = func() Connections {
			c.App.Reached = time.Now()
			return Connections{App: c.App}
		}
		b.sampled(2400, func() {})
	}, "300 open, 7 waiting, 0 evicted, waited 0s in total; reached 0s ago; no limit on open files", medium, 2399 * time.Second},
	{"control frames for 5 minutes", "bounds", func(b *Board) {
		b.sources.Bounds = bound.NewRecorder()
		b.sampled(300, func() { b.sources.Bounds.Hit(bound.ControlFrames, "10.0.0.1:1234") })
	}, "h2-control-frames: closed 300 connections in the last hour, most recently 1s ago, peer 10.0.0.1:1234", medium, 300 * time.Second},
	{"control frames", "bounds", func(b *Board) {
		b.sources.Bounds = bound.NewRecorder()
		b.sources.Bounds.Hit(bound.BodyTimeout, "10.0.0.9:1")
		time.Sleep(2 * time.Hour)
		for range 12 {
			b.sources.Bounds.Hit(bound.SilentConnection, "10.0.0.3:1234")
			b.sources.Bounds.Hit(bound.ControlFrames, "10.0.0.1:1234")
		}
		for range 10 {
			b.sources.Bounds.Hit(bound.ConcurrentStreams, "10.0.0.2:1234")
		}
		b.sources.Bounds.Hit(bound.BodyTimeout, "10.0.0.9:1")
		time.Sleep(3 * time.Second)
	}, "h2-control-frames: closed 12 connections in the last hour, most recently 3s ago, peer 10.0.0.1:1234; " +
		"h2-concurrent-streams: closed 10 streams in the last hour, most recently 3s ago, peer 10.0.0.2:1234", medium, 3 * time.Second},
	{"rejected certificate", "bounds", (*Board).rejectCertificates, "tls-rejected: closed 12 connections in the last hour, most recently 0s ago, peer 10.0.0.1:1234 (unknown CA)", medium, 0},
	{"blocked output", "log-lost", func(b *Board) {
		b.sources.Lost = func() (uint64, uint64) { return 12, 0 }
		b.sampled(3, func() {})
	}, "12 lines in the last 5 minutes", high, 3 * time.Second},
	{"no collector", "spans-lost", func(b *Board) {
		b.sources.Lost = func() (uint64, uint64) { return 0, 1 }
		b.sources.SpanError = func() string { return "connection refused" }
		b.sampled(3, func() {})
	}, "1 span in the last 5 minutes; last error: connection refused", high, 3 * time.Second},
}

func TestClientErrorIsNotReportedAsBound(t *testing.T) {
	b := idle()
	b.rejectCertificates()
	problems := b.snapshot().Problems
	harness.Equal(t, len(problems), 1, "problems")
	harness.Equal(t, problems[0].Problem, "client requests failed with the error tls-rejected", "problem")
}

func TestRulesFindProblems(t *testing.T) {
	tested := map[string]bool{}
	for _, c := range ruleTests {
		tested[c.rule] = true
		t.Run(c.name, func(t *testing.T) { synctest.Test(t, c.run) })
	}
	for i := range rules {
		if !tested[rules[i].name] {
			t.Errorf("%s: got no test, want one", rules[i].name)
		}
	}
}

func (c *ruleTest) run(t *testing.T) {
	b := idle()
	c.fail(b)
	s := b.snapshot()
	if len(s.Problems) == 0 {
		t.Fatalf("got no problem, want %s", c.rule)
	}
	p := s.Problems[0]
	harness.Equal(t, p.Name, c.rule)
	harness.Equal(t, p.Numbers, c.numbers)
	harness.Equal(t, p.Confidence, c.confidence)
	harness.Equal(t, s.Now.Sub(p.Since), c.since, "since")
	if p.Problem == "" || !strings.HasSuffix(p.Action, ".") {
		t.Errorf("got problem %q and action %q, want both", p.Problem, p.Action)
	}
	harness.Equal(t, s.Problem, p.Problem)
	checkScreen(t, s.text(), "problem: "+p.Problem)
}

// checkScreen reports an error if the output of why does not fit on a screen, or if it does not contain want.
func checkScreen(t *testing.T, text, want string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > maxLines {
		t.Errorf("got %d lines, want at most %d:\n%s", len(lines), maxLines, text)
	}
	for _, line := range lines {
		if n := len([]rune(line)); n > maxWidth {
			t.Errorf("got a line of %d characters, want at most %d: %s", n, maxWidth, line)
		}
	}
	harness.Contains(t, strings.Join(strings.Fields(text), " "), want, "output")
}

func TestGuideListsProblems(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/metrics.md")
	harness.NoError(t, err)
	_, table, _ := strings.Cut(string(guide), "| problem | condition |")
	table, _, _ = strings.Cut(table, "\n\n")
	var got []string
	for row := range strings.Lines(table) {
		names, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		got = append(got, strings.FieldsFunc(names, func(r rune) bool { return strings.ContainsRune("`, -\n", r) && r != '-' })...)
	}
	var want []string
	for i := range rules {
		want = append(want, rules[i].name)
	}
	harness.Equal(t, got[1:], want, "problems in docs/metrics.md")
}

// A healthy pod has a few errors, timeouts, slow requests and disconnected clients.
func TestHealthyPodHasNoProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.loaded(1, 1)
		b.holding(1, observation.Streaming, time.Now())
		b.sampled(10, func() {
			b.observeErrors(1)
			b.observe(1, observation.AppReset, time.Second)
			b.observe(1, observation.RequestTimeout, time.Second)
			b.observe(3, observation.ClientGone, time.Second)
			b.Observe(queued(50*time.Millisecond, 20*time.Millisecond))
			b.sampled(6, func() { b.observe(5, observation.OK, 20*time.Millisecond) })
		})
		b.sampled(400, func() {}) // no requests, and a long download
		s := b.snapshot()
		harness.Equal(t, len(s.Problems), 0, s.Problem)
		checkScreen(t, s.text(), "no problems found")
	})
}

// Previously, the action after such a hang was to add pods.
func TestActionAfterHangWithoutResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.loaded(0, 0)
		b.sampled(20, func() { b.Observe(refused(observation.QueueFull, time.Millisecond)) })
		b.sampled(30, func() {})
		p := b.snapshot().Problems[0]
		harness.Equal(t, p.Name, "rejected")
		harness.Equal(t, p.Action, actionIfHangs)
	})
}

// Clients may cancel a few requests shortly after the usual time.
func TestFewQuickDisconnectsAreNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.loaded(1, 0)
		b.sampled(60, func() {
			b.observe(9, observation.OK, 5*time.Millisecond)
			b.disconnect(0, 50*time.Millisecond)
		})
		harness.Equal(t, len(b.snapshot().Problems), 0, "problems")
	})
}

// Previously, an idle pod was reported as hanging for five minutes after the clients of a few requests disconnected.
func TestIdlePodDoesNotHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.loaded(0, 0)
		b.sampled(400, func() {})
		for range 4 {
			b.disconnect(0, 5*time.Second)
		}
		b.sampled(90, func() {})
		for _, p := range b.snapshot().Problems {
			if p.Name == "app-hangs" {
				t.Errorf("got %s: %s, want no hang", p.Name, p.Numbers)
			}
		}
	})
}

// Clients that disconnect before the usual time are no evidence of a hang, even if there is no response for a long time.
func TestEarlyDisconnectsAreNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.loaded(1, 0)
		b.sampled(3, func() { b.observe(1, observation.OK, 20*time.Second) })
		b.sampled(50, func() {
			b.sampled(9, func() {})
			b.disconnect(0, 8*time.Second)
		})
		for _, p := range b.snapshot().Problems {
			if p.Name == "app-hangs" {
				t.Errorf("got %s: %s, want no hang", p.Name, p.Numbers)
			}
		}
	})
}

// Previously, why reported that clients disconnect after 0.4 s in the application, although they waited in the queue.
func TestQueuedClientsAreNotUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.loaded(2, 5)
		b.sampled(60, func() {
			b.observe(1, observation.OK, 5*time.Second)
			b.disconnect(10*time.Second, 400*time.Millisecond)
		})
		for _, p := range b.snapshot().Problems {
			if p.Name == "unanswered" {
				t.Errorf("got %s: %s, want another problem", p.Name, p.Numbers)
			}
		}
	})
}

// Clients disconnect before a response is complete. Nevertheless, the application does not hang.
func TestClientDisconnectsAreNotReportedAsHang(t *testing.T) {
	stream := func(o *observation.Observation) { o.Begun = true }
	upload := func(o *observation.Observation) { o.Uploading = true }
	for name, change := range map[string]func(*observation.Observation){"stream": stream, "upload": upload} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := idle()
				b.sampled(100, func() {
					o := newObservation(observation.ClientGone, 20*time.Second)
					o.Begun = false
					change(o)
					b.Observe(o)
				})
				harness.Equal(t, len(b.snapshot().Problems), 0, "problems")
			})
		})
	}
}

// The application responds after the clients disconnect.
func TestResponsesToDisconnectedClientsAreNotReportedAsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.sampled(100, func() {
			b.hold(observation.HeldRequests{Answered: time.Now()})
			b.observe(1, observation.ClientGone, 2*time.Second)
		})
		for _, p := range b.snapshot().Problems {
			if p.Name == hangs {
				t.Errorf("got problem %+v, want none", p)
			}
		}
	})
}

// During a hang, more pods, a higher limit and longer timeouts do not help.
func TestActionsDuringHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.fillQueue(50 * time.Millisecond)
		b.holding(2, observation.Waiting, time.Now())
		b.sampled(12, func() {
			b.Observe(refused(observation.QueueFull, time.Millisecond))
			b.observe(400, observation.ClientGone, 200*time.Millisecond)
		})
		s := b.snapshot()
		harness.Equal(t, len(s.Problems), 3, "problems")
		for _, p := range s.Problems {
			if strings.Contains(p.Action, "Increase") || strings.Contains(p.Action, "Add pods") {
				t.Errorf("%s: got action %q, want none with Increase or Add pods", p.Name, p.Action)
			}
		}
	})
}

// The application does not respond on one path. The clients of this path disconnect after a short time.
func TestHangOfOnePathNamesPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.sampled(60, func() {
			b.observe(2, observation.OK, 10*time.Millisecond)
			o := newObservation(observation.ClientGone, 300*time.Millisecond)
			o.Target = "/slow?id=1"
			b.Observe(o)
			o = newObservation(observation.ClientGone, time.Second)
			o.Target, o.Begun = "/download", true
			b.Observe(o)
		})
		p := b.snapshot().Problems[0]
		harness.Equal(t, p.Name, "unanswered")
		harness.Contains(t, p.Numbers+"$", "; most recently /slow$", "numbers")
		if !strings.HasPrefix(p.Action, actionIfHangs) {
			t.Errorf("got action %q, want one that starts with %q", p.Action, actionIfHangs)
		}
	})
}

// If all failures have the same reason, the problem names it.
func TestProblemNamesOnlyReason(t *testing.T) {
	for reason, want := range map[observation.Reason]string{
		observation.AppUnreachable: "the application is unreachable",
		observation.IdleTimeout:    "requests exceed the idle timeout",
	} {
		synctest.Test(t, func(t *testing.T) {
			b := idle()
			b.sampled(60, func() {
				b.observe(1, observation.OK, time.Millisecond)
				b.observe(1, reason, time.Millisecond)
			})
			harness.Equal(t, b.snapshot().Problem, want)
		})
	}
}

func TestHangsReportsMediumConfidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.holding(3, observation.Waiting, time.Now())
		for _, c := range []struct {
			samples int
			want    bool
		}{{100, false}, {20, true}} {
			b.sampled(c.samples, func() {})
			harness.Equal(t, b.Hangs(), c.want, c.samples)
		}
		b.sampled(1, func() { b.observe(1, observation.OK, time.Minute) })
		harness.Equal(t, b.Hangs(), false, "after a response")
	})
}

// The clients disconnect after a short time that is much longer than the usual response time.
func TestShortTimeoutsAreEvidence(t *testing.T) {
	for want, answers := range map[string]int{"app-hangs high": 0, "unanswered low": 1} {
		synctest.Test(t, func(t *testing.T) {
			b := idle()
			b.sampled(120, func() { b.observe(5, observation.OK, 20*time.Millisecond) })
			b.sampled(80, func() {
				b.observe(answers, observation.OK, 20*time.Millisecond)
				b.observe(1, observation.ClientGone, 200*time.Millisecond)
			})
			s := b.snapshot()
			if len(s.Problems) == 0 {
				t.Fatalf("got no problem, want %s", want)
			}
			harness.Equal(t, s.Problems[0].Name+" "+string(s.Problems[0].Confidence), want, "first problem")
		})
	}
}

// The requests of a hang are a small part of all requests in the period, but a large part of a sample.
func TestPercentilesIncludeHungRequestsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.sampled(58, func() { b.observe(100, observation.OK, 20*time.Millisecond) })
		b.sampled(1, func() {
			b.observe(400, observation.OK, 20*time.Millisecond)
			b.observe(20, observation.OK, 46*time.Second)
		})
		s := b.snapshot()
		checkScreen(t, s.text(), "p50 23ms, p99 23ms")
	})
}

func TestQueueNumbersWithoutResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.loaded(2, 20)
		b.sources.Waiter = func() time.Time { return time.Now().Add(-8 * time.Second) }
		b.sampled(38, func() {})
		s := b.snapshot()
		harness.Equal(t, s.Problems[0].Numbers, "no response in the last 38s; 20 queued, the oldest for 8s; limit 2", "numbers")
	})
}

func TestProblemsEndAfterRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.sampled(30, func() { b.observeErrors(10) })
		harness.Equal(t, len(b.snapshot().Problems), 1, "problems")
		b.sampled(60, func() { b.observe(10, observation.OK, time.Millisecond) })
		harness.Equal(t, len(b.snapshot().Problems), 0, "problems after a minute without errors")
	})
}

// The first problem is the cause. It is the problem of the first rule with the highest confidence.
func TestCauseIsFirstProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := idle()
		b.loaded(2, 20)
		b.sampled(100, func() {
			b.holding(2, observation.Waiting, time.Now())
			b.Observe(queued(3*time.Second, 2*time.Second))
			b.Observe(refused(observation.QueueFull, 0))
		})
		var names []string
		s := b.snapshot()
		for _, p := range s.Problems {
			names = append(names, p.Name+" "+string(p.Confidence))
		}
		harness.Equal(t, names, []string{"rejected high", "queue-wait medium", "app-slow low", "limit-low low"})
		checkScreen(t, s.text(), "also: queue-wait, app-slow, limit-low")
	})
}

func TestWhyFitsOnScreen(t *testing.T) {
	b := limited(time.Second)
	long := strings.Repeat("long words ", 100) + strings.Repeat("x", 1000)
	state := observation.LimitState{Limit: 9, Base: 8, Reason: observation.LimitMeasuring, Missing: long}
	b.sources.Adaptive = func() (observation.LimitState, bool) { return state, true }
	b.sources.Pod, b.sources.Namespace, b.sources.Warnings = long, long, func() []string { return []string{long, long} }
	b.sources.TLS = func() TLS { return TLS{On: true, Names: []string{long}, NotAfter: time.Now().Add(time.Hour)} }
	b.sources.Drain = func() Drain { return Drain{Draining: true, InFlight: 1e9, Deadline: time.Now().Add(1e6 * time.Hour)} }
	b.sources.Bounds = bound.NewRecorder()
	for name := range bound.NumNames {
		for range minEvents {
			b.sources.Bounds.Hit(name, "10.0.0.1:1234")
		}
	}
	for r := range observation.NumReasons {
		b.observe(5, r, time.Second)
	}
	b.observeErrors(100)
	b.sources.Slots = func() ([]observation.Holder, int) {
		return slices.Repeat([]observation.Holder{{Method: long, Path: "/" + long, Phase: "waiting", Counted: "counted"}}, 20), 7
	}
	probe := observation.ProbeReadiness{Kind: "httpGet", Target: long, Phase: observation.PhaseFailing, Word: "status", Code: 500, Tries: 9, Detail: long, Warning: long}
	b.sources.Readiness = func() observation.Readiness {
		return observation.Readiness{Phase: observation.PhaseFailing, Probes: slices.Repeat([]observation.ProbeReadiness{probe}, 5)}
	}
	s := b.snapshot()
	checkScreen(t, s.text(), "problem: ")
}

func TestWarningsAreNotTruncated(t *testing.T) {
	long := strings.Repeat("long words ", 25) + "end" // four lines
	for _, c := range []struct {
		n    int
		want string
	}{
		{1, "end pod hello-1"},
		{3, "end pod hello-1"},
		{9, "end 6 warnings not shown; run why -o json pod hello-1"},
	} {
		b := idle()
		b.sources.Warnings = func() []string { return slices.Repeat([]string{long}, c.n) }
		s := b.snapshot()
		checkScreen(t, s.text(), c.want)
		harness.Equal(t, strings.Count(s.text(), "end\n"), min(c.n, 3), c.n, "complete warnings")
	}
}

func TestReadinessActionDependsOnReason(t *testing.T) {
	seen := map[string]bool{}
	for _, word := range observation.ReadinessWords() {
		r := observation.Readiness{Phase: observation.PhaseFailing, Probes: []observation.ProbeReadiness{
			{Phase: observation.PhaseReady}, {Phase: observation.PhaseFailing, Word: word, Code: 503, Tries: 1},
		}}
		action := readinessAction(r)
		if lines := wrap("  action: " + action); len(lines) > 2 {
			t.Errorf("%s: got %d lines %q, want at most 2", word, len(lines), action)
		}
		seen[action] = true
	}
	if len(seen) < 10 {
		t.Errorf("got %d actions, want at least 10", len(seen))
	}
}

func TestDrainIgnoresFailingProbe(t *testing.T) {
	failing := observation.Readiness{Phase: observation.PhaseFailing, Probes: []observation.ProbeReadiness{{Phase: observation.PhaseFailing, Word: observation.WordRefused, Tries: 1}}}
	for draining, want := range map[bool]string{false: "the readiness probe fails", true: ""} {
		s := board(failing, Drain{Draining: draining, InFlight: 1}).snapshot()
		harness.Equal(t, s.Problem, want, "draining", draining)
	}
}

func TestErrorResponsesOfApplicationAreCounted(t *testing.T) {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	o := newObservation(observation.OK, time.Second)
	o.Status = http.StatusInternalServerError
	b.Observe(o)
	s := b.snapshot()
	checkScreen(t, s.text(), ": 1 request, 0 failed; the application returned 1 error")
}
