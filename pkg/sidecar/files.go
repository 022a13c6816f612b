package sidecar

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/observe/status"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// Descriptors that are reserved before the rest is divided between clients and the user container.
const (
	// otherFiles is the number of descriptors for standard input and output, listeners, epoll,
	// certificates, probes, telemetry, scrapes of the user container, and protocol detection.
	otherFiles = 64
	// maxAppH2 is the maximum number of HTTP/2 connections to the user container. Usually one
	// connection is sufficient.
	maxAppH2 = 1000
	// moreAppConns is the number of connections to the user container that hold no slot of
	// CONTAINER_CONCURRENCY, such as kubelet probes and connections after a HEAD response.
	moreAppConns = 16
	// smallPorts is the number of ports for hooks, statistics, metrics and status.
	smallPorts = 4
)

// descriptors contains the limits that are derived from the file descriptor limit of the process. Each connection uses
// one descriptor.
type descriptors struct {
	limit      int // process limit; 0 means no limit
	clients    int // maximum number of client connections; 0 means no limit
	app        int // maximum number of HTTP/1 connections to the user container; 0 means no limit
	appH2      int // maximum number of HTTP/2 connections to the user container; they use the descriptors of app
	small      int // maximum number of connections to each small port
	handshakes int // maximum number of TLS handshakes on the metrics port

	source status.LimitSource // source of the value of clients; empty if there is no limit
}

// divide divides the file descriptors between clients and the user container. limit is the process limit, maxClients is
// the maximum number of client connections, and concurrency is the maximum number of requests in the user container. In
// each case, 0 means no limit.
//
// An HTTP/1.1 request needs a client connection and a connection to the user container. Without a
// concurrency limit, half of the descriptors are for clients and half are for the user container, so
// that no request waits for a connection to the user container. With a concurrency limit, the user
// container gets as many descriptors as requests can use, but at most half. Clients get the rest.
// The user container usually supports one version of HTTP, so HTTP/1 and HTTP/2 share the descriptors.
func divide(limit, maxClients, concurrency int) descriptors {
	d := descriptors{limit: limit, clients: maxClients, appH2: maxAppH2, small: smallConnections, handshakes: smallHandshakes}
	if limit == 0 {
		return d
	}
	d.small = min(smallConnections, max(limit/32, 1))
	d.handshakes = min(smallHandshakes, d.small)
	rest := limit - otherFiles - netconn.MaxClosing - smallPorts*d.small - d.handshakes
	rest = max(rest, limit/4, 2)
	d.app = (rest + 1) / 2
	if concurrency > 0 && concurrency < d.app-moreAppConns {
		d.app = concurrency + moreAppConns
	}
	d.clients = rest - d.app
	if maxClients > 0 && maxClients < d.clients {
		d.clients = maxClients
		d.app = rest - d.clients
	}
	d.appH2 = min(maxAppH2, d.app)
	return d
}

// limitSource returns the source of limit, which is the maximum number of client connections. setting is
// MAX_CONNECTIONS, and most is the result of maxConnections. In each case, 0 means no limit.
func limitSource(limit, setting, most int) status.LimitSource {
	switch {
	case limit == 0:
		return ""
	case limit != most:
		return status.SourceFiles
	case setting > 0:
		return status.SourceSetting
	}
	return status.SourceMemory
}

// fileLimit returns the maximum number of files that the process can open, or 0 if there is no limit.
// It reads the soft limit, because the kernel enforces this limit. The Go runtime raises it to the hard
// limit at startup.
func fileLimit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur >= math.MaxInt32 {
		return 0
	}
	return int(l.Cur)
}

// divideFiles divides the file descriptors of the process, and limits the client connections.
func (s *sidecar) divideFiles() {
	setting := s.config.MaxConnections.V
	most := maxConnections(setting, s.memoryLimit)
	s.files = divide(fileLimit(), most, s.config.Ceiling())
	s.files.source = limitSource(s.files.clients, setting, most)
	s.shortages = &shortages{log: s.log, files: s.files}
	s.clients = netconn.NewConnLimit(s.files.clients, s.bounds)
	s.clients.OnFull = s.shortages.clientsWait
}

// shortages records connections that wait or fail because the process reached a limit. It logs each
// kind of event at most once per minute. It is safe for concurrent use.
type shortages struct {
	log   *zap.Logger
	files descriptors

	exhausted, clients, app message.Throttle

	mu   sync.Mutex
	last status.Shortage
}

// missingResource returns the name of the exhausted resource that caused err, and a hint for the
// operator. err is the error of an accept or a dial.
func (s *shortages) missingResource(err error) (name, hint string) {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "file descriptors", fmt.Sprintf("Increase the limit on open files (%d).", s.files.limit)
	case errors.Is(err, syscall.ENFILE):
		return "file descriptors of the node", "Increase fs.file-max on the node."
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "local ports", "Increase the range net.ipv4.ip_local_port_range of the pod."
	case errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM):
		return "memory for sockets", "Increase the memory limit of the container, or net.ipv4.tcp_mem on the node."
	}
	return "resources", "See the error."
}

// recordShortage records that an operation failed with err because no file descriptor, local port or
// socket memory was available.
func (s *shortages) recordShortage(operation string, err error) {
	now := time.Now()
	name, hint := s.missingResource(err)
	s.mu.Lock()
	s.last = status.Shortage{Count: s.last.Count + 1, Time: now, Operation: operation, Resource: name, Error: err.Error(), Hint: hint}
	s.mu.Unlock()
	if n := s.exhausted.Add(now); n > 0 {
		s.log.Warn("failed to open connections: not enough resources", zap.String("operation", operation), zap.Error(err), zap.Int("count", n),
			zap.String("resource", name), zap.String("hint", hint))
	}
}

// clientsWait records that a new client connection is waiting.
func (s *shortages) clientsWait() {
	if n := s.clients.Add(time.Now()); n > 0 {
		s.log.Warn("connection limit reached; new connections are waiting", zap.Int("count", n),
			zap.Int("limit", s.files.clients), zap.String("limitSource", string(s.files.source)), zap.Int("openFilesLimit", s.files.limit))
	}
}

// requestsWait records that a request is waiting for a connection to the user container.
func (s *shortages) requestsWait() {
	if n := s.app.Add(time.Now()); n > 0 {
		s.log.Warn("requests are waiting for a connection to the user container", zap.Int("count", n),
			zap.Int("limit", s.files.app), zap.Int("openFilesLimit", s.files.limit))
	}
}

// connections returns the state of the connections for the status page.
func (s *sidecar) connections() status.Connections {
	clients, app := s.pools()
	s.shortages.mu.Lock()
	defer s.shortages.mu.Unlock()
	return status.Connections{OpenFilesLimit: s.files.limit, Clients: clients, ClientsLimit: s.files.source, App: app, Shortage: s.shortages.last}
}

// pools returns the state of client connections and of HTTP/1 connections to the user container.
func (s *sidecar) pools() (clients, app bound.Pool) { return s.clients.State(), s.app.ConnState() }
