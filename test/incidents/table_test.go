package incidents

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Reasons why a signal does not report an incident.
const (
	thresholdOfUser   = "A suitable threshold depends on the application."
	loggedAtEnd       = "A request is logged when it ends. Set `REVISION_TIMEOUT_SECONDS`."
	clientsDecide     = "Clients cause the incident, and the pod serves other clients."
	otherPaths        = "The pod serves the other paths. With `REVISION_TIMEOUT_SECONDS`, RequestsTimeOut fires."
	disabledOnPurpose = "The setting is valid. The list of settings on the status page contains it."
)

// requestLog enables the request log.
const requestLog = "REQUEST_LOG=true"

var incidents = []incident{
	{
		name: "application: slow", settings: env(requestLog, "REQUEST_LOG_SLOWER_THAN=100ms"),
		app: func(p *pod) {
			var requests atomic.Int64
			p.serve(func(http.ResponseWriter, *http.Request) {
				if requests.Add(1) > 200 {
					p.sleep(time.Second)
				}
			})
		},
		provoke: clients(4, 0),
		metric:  "app_duration_seconds_sum", abnormal: func(v float64) bool { return v > 1 },
		log:     []string{`"reason":"ok"`, `"appMs"`},
		problem: "app-slow", why: "the application is slow",
		silent: map[string]string{"alert": thresholdOfUser},
	},
	{
		name: "application: returns 500", settings: env(requestLog),
		app:     respond(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }),
		provoke: clients(1, 10*time.Millisecond),
		alerts:  []string{"AppReturnsErrors"},
		metric:  `requests_total{code="5xx",reason="ok"}`,
		log:     []string{`"reason":"ok"`, `"status":500`},
		problem: "app-errors", why: "the application returns errors",
	},
	{
		name:    "application: closes early",
		app:     func(p *pod) { harness.ServeApp(p.t, p.app, func(c *harness.AppConn) { c.Head() }) },
		provoke: clients(1, 10*time.Millisecond),
		alerts:  []string{"AppFails"},
		metric:  `request_failures_total{reason="app-reset"}`,
		log:     []string{"request failed", "app-reset"},
		problem: "app-fails", why: "the application closes connections or resets streams before a response is complete",
	},
	{
		name: "application: hangs", settings: env("CONTAINER_CONCURRENCY=1"),
		app:     respond(hang),
		provoke: clients(3, 0),
		alerts:  []string{"NobodyLeaves", "NoResponses"},
		metric:  "oldest_waiter_age_seconds",
		problem: "app-hangs", why: "the application does not respond",
		silent: map[string]string{"log": loggedAtEnd},
	},
	{
		name: "application: hangs, clients disconnect",
		app:  func(p *pod) { p.serve(func(http.ResponseWriter, *http.Request) { <-p.ctx.Done() }) },
		provoke: func(p *pod) {
			p.run(3, func() {
				p.dial(func(c net.Conn) {
					_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
					p.sleep(2 * time.Second)
				})
			})
		},
		alerts:  []string{"NoResponses"},
		metric:  "app_hangs",
		log:     []string{"request failed", "client-gone"},
		problem: "app-hangs", why: "the application does not respond",
	},
	{
		name: "application: hangs without limit",
		app: func(p *pod) {
			var requests atomic.Int64
			p.serve(func(http.ResponseWriter, *http.Request) {
				p.sleep(5 * time.Millisecond) // longer than the time in the queue
				if requests.Add(1) > 200 {
					<-p.ctx.Done()
				}
			})
		},
		provoke: clients(4, 100*time.Millisecond), // send the first 200 requests during several scrapes
		alerts:  []string{"NoResponses"},
		metric:  "app_hangs",
		problem: "app-hangs", why: "the application does not respond",
		silent: map[string]string{"log": loggedAtEnd},
	},
	{
		name: "application: hangs on one path", settings: env("REQUEST_LOG=true"),
		app: func(p *pod) {
			p.serve(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					hang(w, r)
				}
			})
		},
		provoke: func(p *pod) {
			p.traffic(0, 1, time.Second)
			p.run(4, func() {
				p.dial(func(c net.Conn) {
					_, _ = io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: a.test\r\n\r\n")
					p.sleep(1500 * time.Millisecond)
				})
			})
		},
		metric:  `request_failures_total{reason="client-gone"}`,
		log:     []string{`"reason":"client-gone"`, `"path":"/slow"`},
		problem: "unanswered", why: "most recently /slow",
		silent: map[string]string{"alert": otherPaths},
	},
	{
		// The application does not close its connections until it has no file descriptor left. After 40 s, there is always
		// a request that has waited for 30 s.
		name: "application: leaks sockets", settings: env("REVISION_TIMEOUT_SECONDS=40"),
		app: func(p *pod) {
			p.done.Go(func() {
				for range 10 {
					c, err := p.app.Accept()
					if err != nil {
						return
					}
					p.done.Go(func() {
						p.with(c, func(c net.Conn) {
							_, _ = c.Read(make([]byte, 4096))
							_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
							<-p.ctx.Done()
						})
					})
				}
			})
		},
		provoke: func(p *pod) {
			for i := range 4 {
				p.traffic(time.Duration(i)*10*time.Second, 1, 10*time.Millisecond)
			}
		},
		alerts:  []string{"RequestsTimeOut", "NoResponses"},
		metric:  `request_failures_total{reason="request-timeout"}`,
		log:     []string{"request failed", "request-timeout", `"status":504`},
		problem: "app-hangs", why: "the application does not respond",
	},
	{
		name: "client: disconnects",
		app: func(p *pod) {
			p.serve(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					hang(w, r)
				}
			})
		},
		provoke: func(p *pod) {
			p.traffic(0, 4, 10*time.Millisecond) // these clients send most of the requests, even on a slow machine
			p.run(1, func() {
				p.dial(func(c net.Conn) {
					_, _ = io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: a.test\r\n\r\n")
					p.sleep(50 * time.Millisecond)
				})
			})
		},
		metric: `request_failures_total{reason="client-gone"}`,
		log:    []string{"request failed", "client-gone"},
		why:    "client-gone",
		silent: map[string]string{"alert": clientsDecide},
	},
	{
		name: "client: aborts uploads", app: ok,
		provoke: func(p *pod) {
			p.run(4, func() {
				p.dial(func(c net.Conn) {
					_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000\r\n\r\npart")
					p.sleep(1500 * time.Millisecond)
				})
			})
		},
		metric: `request_failures_total{reason="client-gone"}`,
		log:    []string{"request failed", "client-gone"},
		why:    "client-gone",
		silent: map[string]string{"alert": clientsDecide},
	},
	{
		name: "client: uploads slowly", settings: env("BODY_TIMEOUT=100ms"),
		app: respond(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }),
		provoke: func(p *pod) {
			p.run(4, func() { p.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\n\r\na") })
		},
		alerts:  []string{"BoundsClosePeers"},
		metric:  `request_failures_total{reason="client-slow"}`,
		log:     []string{"bound exceeded; closed a request", "body-timeout"},
		problem: "bounds", why: "a peer exceeded the bound body-timeout",
	},
	{
		name: "client: reads slowly", settings: env("SEND_TIMEOUT=100ms"),
		app: func(p *pod) {
			p.serve(func(w http.ResponseWriter, r *http.Request) {
				for b := make([]byte, 1<<16); r.URL.Path == "/long"; {
					if _, err := w.Write(b); err != nil {
						return
					}
				}
			})
		},
		provoke: func(p *pod) {
			p.traffic(0, 1, 10*time.Millisecond)
			p.run(20, func() {
				p.dial(func(c net.Conn) {
					_ = c.(*net.TCPConn).SetReadBuffer(4096)
					_, _ = io.WriteString(c, "GET /long HTTP/1.1\r\nHost: a.test\r\n\r\n")
					p.sleep(10 * time.Second)
				})
			})
		},
		alerts:  []string{"BoundsClosePeers"},
		metric:  `bounds_total{bound="send-timeout"}`,
		log:     []string{"bound exceeded; closed a connection", "send-timeout"},
		problem: "bounds", why: "a peer exceeded the bound send-timeout",
	},
	{
		name: "client: sends invalid data", app: ok,
		provoke: func(p *pod) { p.run(1, func() { p.send("invalid\r\n\r\n"); p.sleep(10 * time.Millisecond) }) },
		metric:  `client_errors_total{error="malformed-request"}`,
		log:     []string{"because of a client error", "malformed-request"},
		problem: "bounds", why: "client requests failed with the error malformed-request",
		silent: map[string]string{"alert": clientsDecide},
	},
	{
		name: "client: sends a flood", app: ok,
		provoke: func(p *pod) {
			flood := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" +
				strings.Repeat("\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", 20_000)
			p.run(1, func() { p.send(flood) })
		},
		alerts:  []string{"BoundsClosePeers"},
		metric:  `bounds_total{bound="h2-control-frames"}`,
		log:     []string{"bound exceeded; closed a connection", "h2-control-frames"},
		problem: "bounds", why: "a peer exceeded the bound h2-control-frames",
	},
	{
		name: "client: no certificate", app: ok,
		settings: func(p *pod) []string {
			p.writeCertificate(valid)
			return []string{"TLS_CERT_DIR=" + p.dir, "QUEUE_PROXY_TLS_CLIENT_CA=" + filepath.Join(p.dir, "tls.crt")}
		},
		provoke: func(p *pod) { p.run(1, func() { p.handshake(&tls.Config{InsecureSkipVerify: true}) }) },
		metric:  `client_errors_total{error="tls-no-certificate"}`,
		log:     []string{"because of a client error", "tls-no-certificate"},
		problem: "bounds", why: "client requests failed with the error tls-no-certificate",
		silent: map[string]string{"alert": clientsDecide},
	},
	{
		name: "limits: queue full", settings: env("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=4"),
		app:     func(p *pod) { p.serve(func(http.ResponseWriter, *http.Request) { p.sleep(20 * time.Millisecond) }) },
		provoke: clients(10, 10*time.Millisecond),
		alerts:  []string{"QueueOverflows", "RequestsWaitLongerThanTheyTake"},
		metric:  `request_failures_total{reason="queue-full"}`,
		log:     []string{"request failed", "queue-full"},
		problem: "rejected", why: "requests are rejected because the queue is full",
	},
	{
		name: "limits: concurrency too low", settings: env("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=100", requestLog),
		app: func(p *pod) { p.serve(func(http.ResponseWriter, *http.Request) { p.sleep(300 * time.Millisecond) }) },
		provoke: func(p *pod) {
			p.traffic(0, 1, 0)
			p.traffic(8*time.Second, 5, 0) // send requests that are not queued first, so that the time in the application is known
		},
		alerts:  []string{"RequestsWaitLongerThanTheyTake"},
		metric:  "waiting_requests",
		log:     []string{`"reason":"ok"`, `"queueMs"`},
		problem: "limit-low", why: "the concurrency limit is too low",
	},
	{
		name: "limits: path hangs in all slots", settings: env("CONTAINER_CONCURRENCY=2", "QUEUE_DEPTH=1"),
		app: func(p *pod) {
			p.serve(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					hang(w, r)
				}
			})
		},
		provoke: func(p *pod) {
			p.traffic(0, 1, 10*time.Millisecond)
			p.run(1, func() {
				p.sleep(2 * time.Second) // so that the usual time is known
				p.send("GET /slow HTTP/1.1\r\nHost: a.test\r\n\r\n")
			})
			p.traffic(3*time.Second, 4, 10*time.Millisecond)
		},
		alerts:  []string{"QueueOverflows"},
		metric:  `request_failures_total{reason="queue-full"}`,
		log:     []string{"request failed", "queue-full"},
		problem: "stalled", why: "such as GET /slow",
	},
	{
		name: "limits: WebSockets in all slots", settings: env("CONTAINER_CONCURRENCY=1"),
		app: func(p *pod) {
			harness.ServeApp(p.t, p.app, func(c *harness.AppConn) {
				c.Head()
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				c.Idle()
			})
		},
		provoke: func(p *pod) {
			p.run(1, func() { p.send("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n") })
			p.traffic(2*time.Second, 3, 0)
		},
		alerts:  []string{"NobodyLeaves"},
		metric:  "oldest_waiter_age_seconds",
		problem: "queue-wait", why: "the slots are used by WebSockets or long responses",
		silent: map[string]string{"log": loggedAtEnd},
	},
	{
		name: "limits: too many connections", settings: env("MAX_CONNECTIONS=10"),
		app:     respond(stream),
		provoke: func(p *pod) { p.streams(15) },
		alerts:  []string{"NearlyOutOfFiles"},
		metric:  "client_connections_waiting",
		log:     []string{"connection limit reached; new connections are waiting", "MAX_CONNECTIONS"},
		problem: "client-connections", why: "client connections: limit of 10 reached",
	},
	{
		name: "limits: too many open files", files: 100,
		app:     respond(stream),
		provoke: func(p *pod) { p.streams(100) },
		alerts:  []string{"NearlyOutOfFiles"},
		metric:  "client_connections_waiting",
		log:     []string{"connection limit reached; new connections are waiting", "limit on open files"},
		problem: "client-connections", why: "limit on open files: 100",
	},
	{
		name: "limits: too much memory", settings: env("GOMEMLIMIT=42MiB"),
		app: respond(hang),
		provoke: func(p *pod) {
			long := "GET / HTTP/1.1\r\nHost: a.test\r\n" + strings.Repeat("X-Long: "+strings.Repeat("y", 1000)+"\r\n", 900) + "\r\n"
			p.run(40, func() { p.send(long) })
		},
		alerts:  []string{"RequestMemoryExhausted", "BoundsClosePeers"},
		metric:  `request_failures_total{reason="overload"}`,
		log:     []string{"request failed", "overload"},
		problem: "memory", why: "the memory budget for requests is exhausted",
	},
	{
		name: "readiness: probe fails", app: func(p *pod) { p.app.Close() },
		alerts:  []string{"NotReady"},
		metric:  `not_ready_reason{reason="refused"}`,
		log:     []string{"refused", "the user container is not ready"},
		problem: "not-ready", why: "the readiness probe fails",
	},
	{
		name: "readiness: changes often",
		settings: func(p *pod) []string {
			return []string{"ON_KNATIVE=false", fmt.Sprintf(`SERVING_READINESS_PROBE={"httpGet":{"path":"/ready","port":%d}}`, p.app.Addr().(*net.TCPAddr).Port)}
		},
		app: func(p *pod) {
			var probes atomic.Int64
			p.serve(func(w http.ResponseWriter, _ *http.Request) {
				if probes.Add(1)%2 == 0 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})
		},
		alerts:  []string{"ReadinessFlaps"},
		metric:  "readiness_flaps_total",
		log:     []string{"status 503", "the user container is not ready"},
		problem: "readiness-flaps", why: "the readiness of the application changes frequently",
	},
	{
		name: "certificate: expired", app: ok,
		settings: withCertificate(validity{-2 * time.Hour, -time.Hour}),
		alerts:   []string{"CertificateExpires"},
		metric:   "tls_certificate_expiry_timestamp_seconds", abnormal: func(v float64) bool { return v < float64(time.Now().Unix()) },
		log:     []string{"the certificate", "in use is invalid"},
		problem: "tls", why: "the TLS certificate is not valid",
	},
	{
		name: "certificate: expires soon", app: ok,
		settings: withCertificate(validity{-80 * time.Hour, 20 * time.Hour}),
		alerts:   []string{"CertificateExpires"},
		metric:   "tls_certificate_expiry_timestamp_seconds", abnormal: func(v float64) bool { return v < float64(time.Now().Add(24*time.Hour).Unix()) },
		problem: "tls-expires", why: "the TLS certificate expires soon",
		silent: map[string]string{"log": "An alert reports it in time."},
	},
	{
		name: "certificate: not valid yet", app: ok,
		settings: withCertificate(validity{time.Hour, 72 * time.Hour}),
		metric:   "tls_certificate_not_before_timestamp_seconds", abnormal: func(v float64) bool { return v > float64(time.Now().Unix()) },
		log:     []string{"the certificate", "in use is invalid"},
		problem: "tls", why: "not valid until",
		silent: map[string]string{
			"alert": "The certificate becomes valid without an action.",
		},
	},
	{
		name: "certificate: wrong key", app: ok,
		settings: withCertificate(valid),
		provoke:  func(p *pod) { harness.NoError(p.t, os.WriteFile(filepath.Join(p.dir, "tls.key"), []byte("x"), 0o600)) },
		log:      []string{"failed to load certificate"},
		problem:  "tls", why: "failed to load the new certificate files",
		silent: map[string]string{
			"alert":  "The previous certificate is used. CertificateExpires fires before it expires.",
			"metric": "The metrics of the certificate describe the previous certificate.",
		},
	},
	{
		name: "certificate: wrong name", app: ok,
		settings: withCertificate(valid),
		provoke: func(p *pod) {
			p.run(1, func() { p.handshake(&tls.Config{RootCAs: p.roots, ServerName: "wrong.test"}) })
		},
		metric:  `client_errors_total{error="tls-rejected"}`,
		log:     []string{"because of a client error", "tls-rejected"},
		problem: "bounds", why: "client requests failed with the error tls-rejected",
		silent: map[string]string{"alert": "The sidecar cannot distinguish a wrong certificate from a client without the CA."},
	},
	{
		name: "certificate: late", app: ok,
		settings: func(p *pod) []string { return []string{"TLS_CERT_DIR=" + p.dir} },
		log:      []string{`"message":"serving"`, "tls.crt and tls.key not found"},
		why:      "tls.crt and tls.key not found",
		silent:   map[string]string{"alert": "TLS is optional.", "metric": "TLS is optional."},
	},
	{
		name: "collector: down", app: respondQuickly,
		settings: func(p *pod) []string {
			port, _ := harness.ClosedPort(p.t)
			return traced("http://127.0.0.1:" + strconv.Itoa(port))
		},
		provoke: pipeline,
		alerts:  []string{"TelemetryIsLost"},
		metric:  "spans_dropped_total",
		log:     []string{"spans were dropped", "connection refused"},
		problem: "spans-lost", why: "spans are dropped",
	},
	{
		name: "collector: hangs", app: respondQuickly,
		settings: func(p *pod) []string {
			collector := harness.Listen(p.t)
			p.t.Cleanup(func() { collector.Close() })
			return append(traced("http://"+collector.Addr().String()), "OTEL_EXPORTER_OTLP_TIMEOUT=200")
		},
		provoke: pipeline,
		alerts:  []string{"TelemetryIsLost"},
		metric:  "spans_dropped_total",
		log:     []string{"spans were dropped", "deadline exceeded"},
		problem: "spans-lost", why: "spans are dropped",
	},
	{
		name: "collector: slow", app: respondQuickly,
		settings: func(p *pod) []string {
			collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				p.sleep(2 * time.Second)
			}))
			p.t.Cleanup(collector.Close)
			return traced(collector.URL)
		},
		provoke: pipeline,
		alerts:  []string{"TelemetryIsLost"},
		metric:  "spans_dropped_total",
		log:     []string{"spans were dropped", "exports are too slow"},
		problem: "spans-lost", why: "spans are dropped",
	},
	{
		name: "other: standard output not read", app: respondQuickly, unreadOutput: true,
		settings: env(requestLog),
		provoke:  pipeline,
		alerts:   []string{"TelemetryIsLost"},
		metric:   "log_lines_dropped_total",
		log:      []string{"request log", "lines dropped"},
		problem:  "log-lost", why: "request log lines are dropped",
	},
	{
		name: "other: limit of the HTTP engine", settings: env("MAX_HEADER_BYTES=4096"), app: ok,
		provoke: func(p *pod) {
			p.run(1, func() {
				p.send("GET / HTTP/1.1\r\nHost: a.test\r\nX-Long: " + strings.Repeat("y", 100_000) + "\r\n\r\n")
			})
		},
		alerts:  []string{"BoundsClosePeers"},
		metric:  `bounds_total{bound="header-section"}`,
		log:     []string{"bound exceeded; closed a request", "header-section"},
		problem: "bounds", why: "a peer exceeded the bound header-section",
	},
	{
		name: "other: drain too long", settings: env("DRAIN_DEADLINE=10m", "DRAIN_STREAMS=wait"),
		app: respond(stream),
		provoke: func(p *pod) {
			p.streams(1)
			harness.NoError(p.t, p.sidecar.Process.Signal(syscall.SIGTERM))
		},
		alerts: []string{"DrainHangs"},
		metric: "draining",
		log:    []string{"deadline", `"message":"draining"`},
		why:    "the pod is terminating",
	},
	{
		name: "other: metrics disabled", settings: env("METRICS_NAMES=off"), app: ok,
		alerts: []string{"CannotBeScraped"},
		log:    []string{`"message":"serving"`, `"METRICS_NAMES":"off"`},
		silent: map[string]string{
			"metric": "The metric `up` of Prometheus is 0.", "status page": disabledOnPurpose, "why": disabledOnPurpose,
		},
	},
	{
		name: "other: tracing disabled", settings: env("OTEL_EXPORTER_OTLP_ENDPOINT=ftp://a.test"), app: ok,
		log:    []string{`"message":"serving"`, "tracing is disabled"},
		why:    "tracing is disabled",
		silent: map[string]string{"alert": "Requests and metrics are not affected.", "metric": "Requests and metrics are not affected."},
	},
}

// traced returns settings that trace each request and export the spans to a collector.
func traced(collector string) []string {
	return []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + collector + "/v1/traces", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}
}

// respondQuickly starts an application that uses little CPU time for each request.
func respondQuickly(p *pod) {
	response := harness.OK("")
	harness.ServeApp(p.t, p.app, func(c *harness.AppConn) {
		for {
			line, err := c.In.ReadSlice('\n')
			if err != nil {
				return
			}
			if string(line) == "\r\n" {
				c.Send(response)
			}
		}
	})
}

// pipeline starts a client that sends 100 requests at a time.
func pipeline(p *pod) {
	const n = 100
	requests := strings.Repeat("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", n)
	p.run(1, func() {
		p.dial(func(c net.Conn) {
			in := bufio.NewReader(c)
			for {
				_, _ = io.WriteString(c, requests)
				for range n {
					if _, err := harness.ReadHead(in); err != nil {
						return
					}
				}
			}
		})
	})
}

// stream sends the first line of a response that does not end.
func stream(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, "begin\n")
	_ = http.NewResponseController(w).Flush()
	hang(w, r)
}

// streams opens n connections, each with a response that does not end. It returns when the first
// response has begun.
func (p *pod) streams(n int) {
	var began atomic.Bool
	p.run(n, func() {
		p.dial(func(c net.Conn) {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
			if _, err := c.Read(make([]byte, 4096)); err == nil {
				began.Store(true)
			}
			_, _ = io.Copy(io.Discard, c)
		})
	})
	harness.Until(p.t, "a response begins", began.Load)
}
