// Package config reads the settings of a queue-proxy from its environment, once.
//
// [Load] reads every variable that Knative's control planes have ever set for a
// queue-proxy, and our own, into a [Config] of types that cannot be misread.
// Nothing is required, an empty value is the same as none, and unknown variables
// are ignored: any control plane can start us (docs/promises.md 3.9). What is wrong
// is reported all at once, a line for each value. Telemetry is the exception: its
// bad values fall back to their defaults, and [Config.Warnings] says which. It also
// names the unknown variables that look like misspelt ones of ours.
//
// One table (table.go) holds the name, default, allowed values and meaning of each
// variable. [Config.Settings] and [Config.Write] show what is in force, [Environ]
// goes back to variables, and docs/configuration.md and config/queue-proxy.env are
// made from the table by this package's tests (go test ./pkg/config -update).
package config

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/queue-proxy/queue-proxy/pkg/probe"
)

// A Config is every setting in force. It is not changed after Load and may be read
// by any number of goroutines.
//
// One that is made by hand starts with [Default] or [Read], because the zero Config
// has no ports.
type Config struct {
	OnKnative     bool   // a Knative control plane started us: a SERVING_* variable is set, or ON_KNATIVE says so
	Namespace     string // "" where nobody said
	Service       string
	Configuration string
	Revision      string
	Pod           string
	PodIP         string

	// Ports, 1 to 65535, different from one another. Only TLSPort may be UserPort,
	// and then TLS cannot be served.
	UserPort       int // the user container's, on the loopback address
	Port           int // requests, in plain text
	TLSPort        int // requests over TLS
	AdminPort      int // preStop hooks
	AutoscalerPort int // statistics
	MetricsPort    int // metrics
	StatusPort     int // status page, on the loopback address; profiler

	// Concurrency (docs/promises.md 3.1).
	Concurrency  int           // requests in the user container at once; 0: any number
	QueueDepth   int           // requests that wait; 0: none. Without a meaning while Concurrency is 0
	QueueTimeout time.Duration // how long one waits; 0: until another clock fires

	// Clocks (docs/promises.md 3.2); 0: off.
	RequestTimeout       time.Duration
	RequestTimeoutScope  RequestTimeoutScope // what RequestTimeout covers
	ResponseStartTimeout time.Duration       // until the first byte of the response
	IdleTimeout          time.Duration       // between bytes in either direction
	ClientGoneGrace      time.Duration       // how long a slot is held for an app at work on a request that was broken off; 0: not at all
	ConnectRetry         time.Duration       // how long a refused dial is tried again (docs/promises.md 3.7); 0: not at all

	// Readiness (docs/promises.md section 2).
	Probes          []probe.Probe // all must pass; none: always ready
	AutoDetectHTTP2 bool          // find out whether an HTTP health endpoint speaks h2c

	Engine            Engine      // that serves HTTP/1
	ServerTiming      bool        // responses say how long their requests waited
	FullDuplex        bool        // HTTP/1.1 responses may begin before their request has ended
	ExcludePaths      []string    // not counted (docs/promises.md 3.10): exact, or prefixes that end in *
	ExcludeUserAgents []string    // not counted: prefixes
	StatsFormat       StatsFormat // of the statistics, where Accept does not say (docs/promises.md 3.3)

	// The end (docs/promises.md 3.5), counted from the beginning of the drain.
	DrainDeadline    time.Duration // what runs is cut then; above 0
	DrainQuietPeriod time.Duration // without a new request; at most half of DrainDeadline
	DrainMin         time.Duration // the drain takes at least so long; at most DrainDeadline
	DrainEndpoint    bool          // /drain is served on AdminPort
	DrainStreams     DrainStreams  // whether the drain waits for streams

	// Limits on what comes in.
	MaxHeaderBytes int           // of a request's head, 4 KiB to 64 MiB
	MaxBodyBytes   int64         // of a request's body; 0: no limit
	MaxConnections int           // open at once, over all ports for requests; 0: no limit
	HeaderTimeout  time.Duration // for a request's head to arrive; above 0
	BodyTimeout    time.Duration // for the next byte of a request's body that the user container waits for; 0: no limit
	SendTimeout    time.Duration // for the client to take a piece of a response; above 0

	// TLS. The files are not looked at here.
	CertDir         string        // holds tls.crt and tls.key, or does not, and then there is no TLS yet
	TLSMinVersion   uint16        // TLS 1.2 or 1.3
	TLSMaxVersion   uint16        // at least TLSMinVersion; 0: the newest
	TLSCipherSuites []uint16      // of TLS 1.2; nil: crypto/tls's choice
	TLSCurves       []tls.CurveID // nil: crypto/tls's choice
	TLSClientCA     string        // file of the CAs that clients' certificates must come from; "": clients need none

	// Passed on as text; the logger judges them (docs/promises.md 3.9).
	LoggingConfig string // zap's configuration as JSON; "": ours
	LoggingLevel  string // "": LoggingConfig's

	Telemetry Telemetry

	serving    bool              // a SERVING_* variable is set
	probeArray bool              // the probes were written as an array
	from       map[string]string // a row's name: the name that its value was read from
	warnings   []string
}

// Engine is what serves HTTP/1.
type Engine string

// The engines.
const (
	OwnEngine Engine = "own"
	NetHTTP   Engine = "net/http" // the standard library's, which serves HTTP/2 in any case
)

// DrainStreams says whether the drain waits for WebSockets, event streams and gRPC
// streams (docs/promises.md 3.5).
type DrainStreams string

// What may become of streams.
const (
	EndStreams     DrainStreams = "end"  // by the user container, on its SIGTERM
	WaitForStreams DrainStreams = "wait" // as for other requests
)

// A RequestTimeoutScope says what the request timeout covers.
type RequestTimeoutScope string

// What Knative means by it from 1.19 on, and what it meant before.
const (
	WholeRequest RequestTimeoutScope = "request"
	FirstByte    RequestTimeoutScope = "first-byte" // until the first byte of the response
)

// A StatsFormat is a way of writing the autoscaler's statistics.
type StatsFormat string

// The formats of the statistics.
const (
	Protobuf   StatsFormat = "protobuf"
	Prometheus StatsFormat = "prometheus"
)

// Telemetry is what control planes say about request log, metrics and traces. None
// of it can stop the process (docs/promises.md 3.9).
type Telemetry struct {
	// Observability is OBSERVABILITY_CONFIG: a JSON object, sent by Knative from 1.19
	// on, or "" when it was not sent. One that is not JSON is kept as {}.
	Observability string
	MetricsNames  string // default, knative-1.18, knative-head, all or off
	MergePort     int    // of the user container's own metrics; 0: they are not merged
	MergePath     string
	Profiling     bool // the profiler is served on the pod's address

	// Our own switches of the request log.
	WantRequestLog       bool
	RequestLogErrorsOnly bool
	RequestLogSlowerThan time.Duration // 0: off
	RequestLogSample     int           // one in so many; 1: all

	// The request log of Knative before 1.19.
	RequestLog         bool
	ProbeRequestLog    bool   // with probes in it
	RequestLogTemplate string // a Go template; until 2019 it alone turned the log on

	// The request metrics of Knative before 1.19.
	MetricsBackend string // prometheus, opencensus, none or ""

	MetricsHost string // address of the metrics listener; "": all of the pod's
	MetricsTLS  MetricsTLS

	// The traces of Knative before 1.19.
	TracingBackend    string  // zipkin, none or ""
	ZipkinEndpoint    string  // URL
	TracingSampleRate float64 // 0 to 1
	TracingDebug      bool    // all requests are traced

	OTel OTel
}

// MetricsTLS is TLS on the metrics listener, which a certificate turns on.
type MetricsTLS struct {
	Cert, Key    string // files
	ClientAuth   string // as it was written
	ClientCA     string // file
	MinVersion   uint16 // TLS 1.2 or 1.3
	MaxVersion   uint16 // 0: the newest
	CipherSuites []uint16
	Curves       []tls.CurveID
}

// OTel is what OpenTelemetry's own variables say; they win over Observability. Zero
// values were not set.
type OTel struct {
	Disabled           bool
	ServiceName        string
	ResourceAttributes string // name=value,...
	Propagators        []string
	Sampler            string
	SamplerArg         string
	MetricInterval     time.Duration
	Timeout            time.Duration // of one push; 10 s where nobody said

	Endpoint, MetricsEndpoint, TracesEndpoint string // URLs
	Protocol, MetricsProtocol, TracesProtocol string // grpc, http/protobuf, http/json or ""
	Headers, MetricsHeaders, TracesHeaders    string // name=value,...; secret
}

// An EnvVar is one variable of an environment.
type EnvVar struct{ Name, Value string }

// Load reads the environment of this process. The error has a line for each value
// that is not allowed: the variable, the value in quotes, and what is allowed.
// [Config.Warnings] also says when there is nothing in the certificate directory that
// somebody has named; the files are not looked at otherwise.
func Load() (*Config, error) {
	c, _, err := load((*reading).process)
	return c, err
}

// Read reads a given environment by the rules of [Load]. Of a name that stands there
// twice the last value counts, as in a pod.
func Read(environ []EnvVar) (*Config, error) {
	values := map[string]string{}
	for _, v := range environ {
		values[v.Name] = v.Value
	}
	c, _, err := load(func(in *reading) error {
		for _, r := range in.rows {
			for _, name := range r.names() {
				in.take(r, name, values[name])
			}
		}
		in.warnOfMisspelt(values)
		return nil
	})
	return c, err
}

// Default is what an empty environment says.
func Default() *Config {
	c, _ := defaults()
	return c
}

// defaults returns the rows that are bound to what Default returns too.
func defaults() (*Config, []*row) {
	c, rows, err := load(func(*reading) error { return nil })
	if err != nil {
		panic("config: a default that is not allowed: " + err.Error())
	}
	return c, rows
}

// A reading is a Config on its way out of an environment.
type reading struct {
	c        *Config
	table    []section
	rows     []*row // of the table: those that have an effect
	here     bool   // the environment is this process's, and so are the files that it names
	problems []string
}

func load(environment func(*reading) error) (*Config, []*row, error) {
	c := &Config{from: map[string]string{}}
	in := &reading{c: c, table: table(c)}
	in.rows = rowsOf(in.table)
	setDefaults(in.rows)
	if err := environment(in); err != nil {
		return nil, nil, err
	}
	for _, r := range in.rows {
		if r.from != "" {
			c.from[r.name] = r.from
		} else if r.derive != nil {
			r.derive()
		}
	}
	in.judge()
	if len(in.problems) > 0 {
		return nil, nil, errors.New(strings.Join(in.problems, "\n"))
	}
	return c, in.rows, nil
}

func setDefaults(rows []*row) {
	for _, r := range rows {
		if r.def == "" {
			continue
		}
		if err := r.decode(r.def); err != nil {
			panic("config: " + r.name + ": a default that is not allowed: " + r.def)
		}
	}
}

// process reads the environment of this process through envconfig. envconfig finds
// the names in the tags of a struct: this one has a field for each name of the table
// that is set, because such a type costs time, and memory that is never given back.
func (in *reading) process() error {
	var fields []reflect.StructField
	var readers []variable
	for _, r := range in.rows {
		for _, name := range r.names() {
			if _, set := os.LookupEnv(name); !set {
				continue
			}
			fields = append(fields, reflect.StructField{
				Name: fmt.Sprintf("V%d", len(fields)),
				Type: reflect.TypeFor[variable](),
				Tag:  reflect.StructTag(`envconfig:"` + name + `"`),
			})
			readers = append(readers, variable{in, r, name})
		}
	}
	spec := reflect.New(reflect.StructOf(fields))
	for i, v := range readers {
		spec.Elem().Field(i).Set(reflect.ValueOf(v))
	}
	if err := envconfig.Process("", spec.Interface()); err != nil {
		return err
	}
	values := map[string]string{}
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		values[name] = value
	}
	in.warnOfMisspelt(values)
	in.here = true
	return nil
}

// warnOfNoCertificate looks into a certificate directory that somebody has named.
// Knative mounts one that stays empty where it does not encrypt.
func (in *reading) warnOfNoCertificate() {
	dir := in.c.CertDir
	if in.row(certDirName).from == "" || in.c.OnKnative {
		return
	}
	for _, file := range []string{"tls.crt", "tls.key"} {
		if _, err := os.Stat(filepath.Join(dir, file)); !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	in.warn("%s: %s: neither tls.crt nor tls.key is there; TLS is not served before they are", certDirName, quote(dir))
}

// A variable is what envconfig decodes into. It never returns an error, because
// envconfig would stop at the first: the reading keeps them all.
type variable struct {
	in   *reading
	row  *row
	name string
}

// Decode takes the value of the variable, which is set and may be empty.
func (v *variable) Decode(value string) error {
	v.in.take(v.row, v.name, value)
	return nil
}

// take reads one variable. Empty is unset, and of several names for one setting the
// first that is set counts.
func (in *reading) take(r *row, name, value string) {
	if value == "" || r.from != "" || r.bad {
		return
	}
	if isServing(name) {
		in.c.serving = true
	}
	switch err := r.decode(value); {
	case err == nil:
		r.from = name
	case errors.Is(err, errServiceLink):
		in.warn("%s: %s: %v, not a setting; it is ignored", name, quote(value), err)
	case r.is(soft):
		in.warn("%s; its default is used", complain(r, name, value, err)[0])
	default:
		r.bad = true
		in.problems = append(in.problems, complain(r, name, value, err)...)
	}
}

func (in *reading) warn(format string, args ...any) {
	in.c.warnings = append(in.c.warnings, fmt.Sprintf(format, args...))
}

func (in *reading) problem(format string, args ...any) {
	in.problems = append(in.problems, fmt.Sprintf(format, args...))
}

// complain says what is wrong with a value, in one line or, where the kind knows of
// several things, in several.
func complain(r *row, name, value string, err error) []string {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) {
		var lines []string
		for _, e := range several.Unwrap() {
			lines = append(lines, name+": "+e.Error())
		}
		return lines
	}
	shown := quote(value)
	if r.is(secret) {
		shown = hidden
	}
	return []string{name + ": " + shown + ": " + r.allowed}
}

// judge looks at settings that must fit one another. What is known to be bad is not
// judged a second time.
func (in *reading) judge() {
	c := in.c
	if c.serving && c.OnKnative && c.Namespace == "" && in.row(knativeName).from == "" {
		// No release of Knative does that; somebody who writes the sidecar by hand does.
		in.warn("%s: true is assumed, because a %s* variable is set, though %s is not; outside Knative, set it to false", knativeName, servingPrefix, namespaceName)
	}
	if in.row(engineName).from == fastLaneName {
		in.warn("%s: a former name; set %s=%s instead", fastLaneName, engineName, in.row(engineName).encode())
	}
	in.judgePorts()
	in.judgeMetricsEndpoint()
	if in.good(tlsMinName, tlsMaxName) && c.TLSMaxVersion != 0 && c.TLSMaxVersion < c.TLSMinVersion {
		in.problem("%s: %s: at least %s, which is %s", tlsMaxName, quote(in.row(tlsMaxName).encode()), tlsMinName, in.row(tlsMinName).encode())
	}
	if in.here {
		in.warnOfNoCertificate()
	}
	if c.TLSCipherSuites != nil && c.TLSMinVersion == tls.VersionTLS13 {
		in.warn("%s: without effect, because %s is %s", tlsSuitesName, tlsMinName, in.row(tlsMinName).encode())
	}
	for _, name := range []string{depthName, queueTimeoutName} {
		if c.Concurrency == 0 && in.good(concurrencyName, name) && in.row(name).encode() != "0" {
			in.warn("%s: without effect, because %s is 0", name, concurrencyName)
		}
	}
	if c.Telemetry.MergePort != 0 && c.Telemetry.MetricsNames == "off" {
		in.warn("%s: without effect, because %s is off", mergePortName, metricsNamesName)
	}
	if c.Telemetry.MetricsBackend == "opencensus" {
		in.warn("%s: %s: it is not spoken, and no metrics are pushed to it; %s has those that can be scraped", backendName, quote("opencensus"), metricsNamesName)
	}
	if !in.good(deadlineName, timeoutName) {
		return
	}
	if c.DrainMin > c.DrainDeadline {
		in.problem("%s: %s: at most %s, which is %v", drainMinName, quote(c.DrainMin.String()), deadlineName, c.DrainDeadline)
	}
	if half := c.DrainDeadline / 2; c.DrainQuietPeriod > half {
		in.warn("%s: %s: at most half of %s; %v is used", quietName, quote(c.DrainQuietPeriod.String()), deadlineName, half)
		c.DrainQuietPeriod = half
		delete(c.from, quietName)
	}
}

// judgePorts holds that two listeners cannot share a port.
func (in *reading) judgePorts() {
	var seen []*row
	for _, r := range in.rows {
		if !r.is(listener) || r.bad {
			continue
		}
		for _, other := range seen {
			if other.encode() != r.encode() {
				continue
			}
			// Knative allows this one, and it works while there is no certificate.
			if r.name == tlsPortName && other.name == userPortName {
				in.warn("%s: %s: %s has the same port, so TLS cannot be served", r.name, quote(r.encode()), other.name)
				continue
			}
			this, that := r, other
			if this.from == "" && that.from != "" {
				this, that = that, this // complain of what somebody wrote
			}
			in.problem("%s: %s: a port of its own; %s has the same", this.name, quote(this.encode()), that.name)
		}
		seen = append(seen, r)
		if port, merge := r.encode(), in.row(mergePortName); merge.encode() == port && r.name != userPortName {
			// A scrape would scrape itself, or count as a request.
			in.warn("%s: %s: %s has the same, so nothing is merged", mergePortName, quote(port), r.name)
			in.c.Telemetry.MergePort = 0
		}
	}
}

// row is the row of a name.
func (in *reading) row(name string) *row {
	for _, r := range in.rows {
		if r.name == name {
			return r
		}
	}
	panic("config: no row for " + name)
}

// good reports whether none of the named variables is bad.
func (in *reading) good(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return in.row(name).bad })
}

// observability is what OBSERVABILITY_CONFIG says of the metrics that are scraped. What is
// no JSON is reported by those who read all of it.
func observability(c *Config) (protocol, endpoint string) {
	var o struct {
		RequestMetrics struct{ Protocol, Endpoint string }
	}
	_ = json.Unmarshal([]byte(c.Telemetry.Observability), &o)
	return o.RequestMetrics.Protocol, o.RequestMetrics.Endpoint
}

// leastMetricsPort is the least that Knative takes in requestMetrics.endpoint: below it
// are ports that a process without privileges cannot have.
const leastMetricsPort = 1024

// metricsEndpoint returns the address and the port that a Knative control plane wants
// the metrics on; port 0: it says nothing, or what is no "host:port". A port that is
// taken does not stop us, because telemetry never does (docs/promises.md 3.9).
func metricsEndpoint(c *Config) (host string, port int) {
	protocol, endpoint := observability(c)
	if protocol != "prometheus" || endpoint == "" {
		return "", 0
	}
	host, text, err := net.SplitHostPort(endpoint)
	if err != nil {
		return "", 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	others := []int{c.UserPort, c.Port, c.TLSPort, c.AdminPort, c.AutoscalerPort, c.StatusPort}
	if err != nil || n < leastMetricsPort || slices.Contains(others, int(n)) {
		return "", 0
	}
	return host, int(n)
}

// judgeMetricsEndpoint reports an endpoint that is not used.
func (in *reading) judgeMetricsEndpoint() {
	protocol, endpoint := observability(in.c)
	if _, port := metricsEndpoint(in.c); protocol == "prometheus" && endpoint != "" && port == 0 {
		in.warn("%s: requestMetrics.endpoint: %s: not host:port with a free port from %d to 65535; the default is used", observabilityName, quote(endpoint), leastMetricsPort)
	}
}

// metricsNames returns the metrics that are served where nobody names them: those
// that a Knative control plane asks for, by whichever variable it has, and ours
// elsewhere.
func metricsNames(c *Config) string {
	protocol, _ := observability(c)
	switch {
	case protocol == "prometheus":
		return "knative-head"
	case c.Telemetry.MetricsBackend == "prometheus":
		return "knative-1.18"
	case c.OnKnative:
		return "off"
	}
	return "default"
}
