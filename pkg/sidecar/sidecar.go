// Package sidecar runs the queue-proxy process. It creates all other parts from the settings, binds the
// ports, and serves requests. When the pod terminates, it drains and stops.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/certs"
	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/observe/status"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/stats"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/http1client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// stopTime is the maximum time for stopping probes and flushing telemetry.
const stopTime = 5 * time.Second

// Process describes the running process.
type Process struct {
	Version string
	Commit  string
	Started time.Time
	Log     *zap.Logger
	Level   zap.AtomicLevel // level of Log; the status page can change it

	Warnings []string // warnings about the settings of Log
}

// sidecar is the state of the process.
type sidecar struct {
	process Process
	config  *config.Config
	log     *zap.Logger

	watcher *netconn.Watcher
	prober  *probe.Prober
	app     *http1client.App
	proxy   *proxy.Proxy
	http1   *http1.Server
	http2   *http2.Server
	appH2   *http2client.Client
	pair    *certs.Watcher
	noTLS   atomic.Pointer[error] // error that prevents serving TLS although there is a certificate; may be nil
	board   *status.Board
	bounds  *bound.Recorder // bounds on the behavior of peers
	budget  *netconn.Budget // memory for requests

	memoryLimit int64 // memory limit of the container in bytes; 0 means no limit

	files     descriptors
	clients   *netconn.ConnLimit
	shortages *shortages

	webSockets netconn.WebSockets // open WebSocket connections

	settingWarnings []string // warnings about settings that package config does not validate

	telemetry   telemetry
	spanError   atomic.Pointer[string] // last error of the span export; nil if there is none
	metricsPair *certs.Watcher         // nil if metrics are served without TLS
	servers     []*http.Server         // servers of the admin, autoscaler, metrics and status ports

	ending       chan struct{}   // closed when a preStop hook reports that the pod is terminating
	end          sync.Once       // guards closing ending
	leave        sync.Once       // guards stopAccepting
	hooks        *fair.Semaphore // waiting preStop hooks of the user container
	refusedHooks message.Throttle

	noBuffers        sync.Once        // guards the log line about unlimited socket buffers
	failedHandshakes message.Throttle // failed TLS handshakes of scrapers

	running sync.WaitGroup
	failed  chan error // receives the first error of a server
}

// Run serves requests until the pod terminates, which means that ctx is done or the preStop hook of this
// container is called. Then it drains, waits until ctx is done, and stops. It returns an error if a port
// cannot be bound, a server fails or a part cannot be stopped. A drain that ends at its deadline is not
// an error.
func Run(ctx context.Context, c *config.Config, p Process) (err error) {
	cgroup := os.DirFS("/sys/fs/cgroup")
	limitMemory(cgroup)
	limitGarbage()
	limitThreads(cgroup)
	s := &sidecar{process: p, config: c, log: p.Log, settingWarnings: p.Warnings, ending: make(chan struct{}), failed: make(chan error, 1)}
	s.memoryLimit = memoryLimit(cgroup)
	s.bounds = bound.NewRecorder()
	s.bounds.Report = s.logBound
	s.divideFiles()
	listeners, err := s.bind()
	if err != nil {
		return err
	}
	if err := s.build(); err != nil {
		listeners.close()
		return err
	}
	background, cancel := context.WithCancel(context.Background())
	s.serve(background, listeners)
	s.logStarted()

	select {
	case <-ctx.Done():
	case <-s.ending:
	case err = <-s.failed:
	}
	if err == nil {
		s.drain()
		select { // after the preStop hook of this container, the user container still needs the sidecar until SIGTERM
		case <-ctx.Done():
		case err = <-s.failed:
		}
	}

	cancel()
	return errors.Join(err, s.stop())
}

// listeners are the ports that the process serves from the start. All except main may be nil.
type listeners struct {
	main, admin, autoscaler, status net.Listener
	metrics                         net.Listener
	tls                             net.Listener
}

func (l *listeners) close() {
	for _, ln := range []net.Listener{l.main, l.admin, l.autoscaler, l.status, l.metrics, l.tls} {
		if ln != nil {
			ln.Close()
		}
	}
}

// bind listens on all ports and reads the certificate. Run calls it before it starts any goroutine. The returned error
// contains all errors of the traffic ports and the certificate, and all configuration errors of the other ports. For
// all other errors, bind only logs a warning.
func (s *sidecar) bind() (*listeners, error) {
	c := s.config
	var l listeners
	var wrong []error
	traffic := func(port *config.Port) net.Listener {
		ln, err := s.listenFirst(port, s.trafficBuffers, "")
		if err != nil {
			wrong = append(wrong, notServed(port, err))
		}
		return ln
	}
	small := func(port *config.Port, ln net.Listener, err error) net.Listener {
		switch {
		case err == nil:
		case isConfigError(err):
			wrong = append(wrong, notServed(port, err))
		default: // requests can be served without this port
			s.log.Warn("port is not served", zap.Error(notServed(port, err)))
		}
		return ln
	}
	l.main = traffic(&c.Port)
	ln, err := s.listenFirst(&c.AdminPort, s.smallBuffers, "")
	l.admin = small(&c.AdminPort, ln, err)
	ln, err = s.listenFirst(&c.AutoscalerPort, s.smallBuffers, "")
	l.autoscaler = small(&c.AutoscalerPort, ln, err)
	ln, err = s.listenFirst(&c.StatusPort, s.smallBuffers, s.statusHosts()...)
	l.status = small(&c.StatusPort, ln, err)
	ln, err = s.listenMetrics()
	l.metrics = small(&c.MetricsPort, ln, err)
	if s.pair, err = s.openCertificates(); err != nil {
		wrong = append(wrong, err)
	} else if !s.pair.NotAfter().IsZero() {
		l.tls = traffic(&c.TLSPort)
	}
	if len(wrong) > 0 {
		l.close()
		return nil, errors.Join(wrong...)
	}
	return &l, nil
}

// statusHosts returns the hosts of the status page, in the order in which they are tried.
func (s *sidecar) statusHosts() []string {
	if s.config.Profiling.V {
		return []string{""} // the profiler is served on all addresses
	}
	return []string{netconn.LoopbackIPv4, netconn.LoopbackIPv6}
}

// listenFirst listens on the first host whose address exists. If it returns an error, the listener
// is nil.
func (s *sidecar) listenFirst(port *config.Port, set control, hosts ...string) (ln net.Listener, err error) {
	for _, host := range hosts {
		ln, err = s.listen(context.Background(), net.JoinHostPort(host, port.String()), set)
		if err == nil || !netconn.LoopbackMissing(err) {
			break
		}
	}
	return ln, err
}

// isConfigError reports whether err means that the port is in use or that the process lacks the permission to bind it.
// These errors are configuration errors (docs/promises.md 3.9).
func isConfigError(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES)
}

// notServed adds the setting and the port number to err.
func notServed(port *config.Port, err error) error {
	return fmt.Errorf("%s: port %d cannot be served: %w", port.Name(), port.V, err)
}

// build creates all parts without starting them.
func (s *sidecar) build() (err error) {
	c := s.config
	if s.watcher, err = netconn.NewWatcher(); err != nil {
		return err
	}
	probing := s.probeOptions()
	probing.OnChange = s.logReadinessChange
	probing.OnReady = s.readinessChanged
	s.prober = probe.New(c.Probes.V, probing)
	s.app = http1client.New(http1client.Settings{
		Port:         c.UserPort.V,
		MaxIdle:      c.Concurrency.V,
		MaxConns:     s.files.app,
		ConnectRetry: c.ConnectRetry.V,
		OnFull:       s.shortages.requestsWait,
		Control:      s.trafficBuffers,

		H2C:            c.Port.V == knativeH2Port,
		MaxHeaderBytes: c.MaxHeaderBytes.V,
		Bounds:         s.bounds,
	})
	s.proxy = &proxy.Proxy{
		Ready: s.prober.Ready,
		Drain: proxy.NewDrain(proxy.DrainSettings{
			Quiet:    c.DrainQuietPeriod.V,
			Deadline: c.DrainDeadline.V,
			Min:      c.DrainMin.V,

			WaitForStreams: c.DrainStreams.V == config.WaitForStreams,
		}),
		Limit: newLimit(c),
		Grace: c.ClientGoneGrace.V,
		Clocks: proxy.Clocks{
			Request:       c.RequestTimeout.V,
			FirstByteOnly: c.RequestTimeoutScope.V == config.FirstByte,
			ResponseStart: c.ResponseStartTimeout.V,
			Idle:          c.IdleTimeout.V,
			Body:          c.BodyTimeout.V,
			Send:          c.SendTimeout.V,
			Queue:         c.QueueTimeout.V,
		},
		Stats:   stats.New(time.Now()),
		Observe: s.observe,
		Probed:  s.probed,
		Exclude: proxy.Exclude{Paths: c.ExcludePaths.V, UserAgents: c.ExcludeUserAgents.V},
	}
	s.hooks = newHooks()
	s.budget = newBudget(s.bounds)
	s.buildEngines()
	s.createTelemetry()
	s.board = status.New(s.statusSources())
	if s.telemetry.tracer != nil {
		s.proxy.Trace = func(x transport.Exchange) proxy.Trace { return s.telemetry.tracer.Begin(x) }
	}
	return nil
}

// knativeH2Port is the serving port of Knative for a user container whose port is named h2c.
const knativeH2Port = 8013

// buildEngines creates the HTTP/1 and HTTP/2 engines.
func (s *sidecar) buildEngines() {
	c := s.config
	s.appH2 = http2client.New(http2client.Settings{
		Dial: s.app.Dial, Unsettled: s.app.Forget, MaxConns: s.files.appH2, MaxHeaderBytes: c.MaxHeaderBytes.V, Bounds: s.bounds,
	})
	settings := rewrite.ServerSettings{
		MaxHeaderBytes: c.MaxHeaderBytes.V,
		MaxBodyBytes:   c.MaxBodyBytes.V,
		Connections:    s.clients,
		HeaderTimeout:  c.HeaderTimeout.V,
		SendTimeout:    c.SendTimeout.V,
		FullDuplex:     c.FullDuplex.V,
		ServerTiming:   c.ServerTiming.V,
		AppHost:        net.JoinHostPort(netconn.LoopbackIPv4, strconv.Itoa(c.UserPort.V)),
		Memory:         s.budget,
		Bounds:         s.bounds,
		WebSockets:     &s.webSockets,
	}
	s.http2 = http2.New(settings, s.proxy, s.app, s.appH2)
	s.http1 = http1.New(settings, s.proxy, s.app, s.appH2, s.watcher, s.http2.ServeConn)
}

// statusSources returns the data sources for the status page.
func (s *sidecar) statusSources() status.Sources {
	// Settings are collected on first use, because the status page of most pods is never requested.
	settings := sync.OnceValue(func() (all []status.Setting) {
		for _, v := range s.config.Settings() {
			all = append(all, status.Setting{Name: v.Name, Value: v.Value, Source: v.Source})
		}
		return all
	})
	return status.Sources{
		Version:   s.process.Version,
		Pod:       s.config.Pod.V,
		Namespace: s.config.Namespace.V,
		Started:   s.process.Started,
		Limit:     s.limit,
		Adaptive:  s.proxy.Limit.Adaptive,
		Settings:  settings,
		Warnings:  s.warnings,
		Readiness: s.prober.State,
		Check:     s.check,
		Load:      s.load,
		Waiter:    s.proxy.Limit.OldestWaiter,
		Slots:     s.slots,
		App:       s.proxy.InApp,
		Drain:     s.drainState,
		Memory:    s.budget.Usage,
		Lost:      s.lost,
		SpanError: s.lastSpanError,
		Bounds:    s.bounds,

		Connections: s.connections,
		TLS:         s.tlsState,
	}
}

// check probes the user container and returns the result. In contrast to a queue probe, it does not
// affect the readiness, the metrics or the log.
func (s *sidecar) check(ctx context.Context) observation.Readiness {
	p := probe.New(s.config.Probes.V, s.probeOptions())
	_ = p.Ready(ctx) // State contains the result
	defer func() { _ = p.Stop(ctx) }()
	return p.State()
}

// probeOptions returns the options for all probes of the user container.
func (s *sidecar) probeOptions() probe.Options {
	return probe.Options{AutoDetectHTTP2: s.config.AutoDetectHTTP2.V, OwnPorts: s.ownPorts()}
}

// lost returns the number of dropped request log lines and the number of dropped spans.
func (s *sidecar) lost() (lines, spans uint64) {
	if s.telemetry.log != nil {
		lines = s.telemetry.log.Dropped()
	}
	if s.telemetry.tracer != nil {
		spans = s.telemetry.tracer.Dropped()
	}
	return lines, spans
}

// lastSpanError returns the last error of the span export, or "" if the export succeeds.
func (s *sidecar) lastSpanError() string {
	if text := s.spanError.Load(); text != nil {
		return *text
	}
	return ""
}

// newLimit returns the configured concurrency limit, or nil if there is no limit.
func newLimit(c *config.Config) *proxy.Limit {
	if c.ConcurrencyMode.V != config.AdaptiveConcurrency {
		return proxy.NewLimit(c.Concurrency.V, c.QueueDepth.V)
	}
	return proxy.NewAdaptiveLimit(adapt.Settings{
		Min:   c.ConcurrencyMin.V,
		Max:   c.Concurrency.V,
		Start: c.ConcurrencyStart.V,
		Seed:  rand.Uint64(), // different in each pod, so that the pods of a workload measure at different times
	}, c.QueueDepth.V)
}

// limit returns the maximum number of requests in the user container and the maximum number of
// queued requests. If running is 0, the number of requests is not limited.
func (s *sidecar) limit() (running, waiting int) {
	if state, adaptive := s.proxy.Limit.Adaptive(); adaptive {
		return state.Limit, s.config.QueueDepth.V
	}
	return s.config.Concurrency.V, s.config.QueueDepth.V
}

// slots returns the oldest requests that hold a slot, and the number of slots that are held for aborted
// requests.
func (s *sidecar) slots() (holders []observation.Holder, held int) {
	return s.proxy.Holders(), s.proxy.Limit.Held()
}

// load returns the number of requests in the user container and the number of queued requests.
func (s *sidecar) load() (running, waiting int) {
	if s.proxy.Limit != nil {
		return s.proxy.Limit.Load()
	}
	n, _ := s.proxy.Drain.Flights()
	return n, 0
}

// serve starts a goroutine for each listener, which runs until stop is called. It also starts the other
// background goroutines, which run until ctx is done.
func (s *sidecar) serve(ctx context.Context, l *listeners) {
	c := s.config
	s.start(func() error { return s.http1.Serve(l.main, nil) })
	s.startServer(l.admin, s.adminHandler())
	s.startServer(l.autoscaler, stats.Handler(s.proxy.Stats, stats.Labels{
		Namespace:     c.Namespace.V,
		Configuration: c.Configuration.V,
		Revision:      c.Revision.V,
		Pod:           c.Pod.V,
	}, stats.Format(c.StatsFormat.V)))
	if l.metrics != nil {
		s.startServer(l.metrics, s.telemetry.metrics.Handler())
	}
	s.telemetry.metrics.Listening(time.Now())
	s.startServer(l.status, s.board.Handler(s.process.Level, c.Profiling.V))
	s.start(func() error { return s.board.Run(ctx) })
	s.start(func() error { return s.logLimit(ctx) })
	s.start(func() error { return s.pair.Run(ctx) })
	if s.metricsPair != nil {
		s.start(func() error { return s.metricsPair.Run(ctx) })
	}
	s.start(func() error { return s.serveTLS(ctx, l.tls) })
}

// start calls run on a new goroutine. If run returns an error, the process stops.
func (s *sidecar) start(run func() error) {
	s.running.Go(func() {
		if err := run(); err != nil {
			select {
			case s.failed <- err:
			default:
			}
		}
	})
}

// Limits for a small port, which is a port for hooks, statistics, metrics or status. A handler that needs
// more time extends the time limits. net/http adds 4 KiB to smallHead. smallHead is low because a parsed
// header uses several times its length in memory, and scrapers send much shorter headers.
const (
	smallHead        = 16 << 10         // maximum length of a request header in bytes
	smallHeads       = 256 << 10        // maximum total length of the incomplete headers on a port in bytes
	smallUnread      = 16 << 10         // receive buffer of a connection in bytes; the kernel uses twice this memory
	smallUnsent      = 32 << 10         // send buffer of a connection in bytes; the kernel uses twice this memory
	smallConnections = 256              // maximum number of connections to a port
	smallHandshakes  = 64               // maximum number of incomplete TLS handshakes, in addition to smallConnections
	smallShake       = 32 << 10         // maximum number of client bytes in a TLS handshake, for example for a ClientHello of 2 KiB and a certificate chain
	smallRequest     = 10 * time.Second // maximum time until the complete request is received
	smallAnswer      = 30 * time.Second // maximum time from the end of the request until the response is sent; a merged scrape can wait 5 s for the app
	smallIdle        = 3 * time.Minute  // maximum idle time between requests; longer than the usual scrape interval
)

// startServer serves a small port. If ln is nil, it does nothing.
func (s *sidecar) startServer(ln net.Listener, h http.Handler) {
	if ln == nil {
		return
	}
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: min(s.config.HeaderTimeout.V, smallRequest),
		ReadTimeout:       smallRequest,
		WriteTimeout:      smallAnswer,
		IdleTimeout:       smallIdle,
		MaxHeaderBytes:    smallHead,
		ErrorLog:          zap.NewStdLog(s.log),
	}
	limit := fair.LimitPort(server, fair.PortLimits{Connections: s.files.small, HeadBytes: smallHeads, Bounds: s.bounds})
	s.servers = append(s.servers, server)
	s.start(func() error {
		if err := server.Serve(limit.Listener(ln)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("%v: %w", ln.Addr(), err)
		}
		return nil
	})
}

// stop stops all servers and parts and waits for them.
func (s *sidecar) stop() error {
	var all sync.WaitGroup
	all.Go(func() { s.leave.Do(s.stopAccepting) })
	for _, server := range s.servers {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
			defer cancel()
			if server.Shutdown(ctx) != nil {
				server.Close()
			}
		})
	}
	all.Wait()
	s.running.Wait()
	s.bounds.Flush()
	s.app.Close()
	s.appH2.Close()
	ctx, cancel := context.WithTimeout(context.Background(), s.timeToStop())
	defer cancel()
	err := errors.Join(s.prober.Stop(ctx), s.watcher.Close())
	if lost := s.telemetry.close(ctx); lost != nil {
		s.log.Warn("failed to flush telemetry", zap.Error(lost)) // not an error of Run (docs/promises.md 3.9)
	}
	return err
}
