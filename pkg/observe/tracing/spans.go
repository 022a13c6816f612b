package tracing

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// waitName is the Knative name of the span for the time in the queue. The names of the other spans,
// such as "GET" for the request and "HTTP GET" for the exchange with the user container, follow the
// conventions of OpenTelemetry and Knative.
const waitName = "kn.queueproxy.wait"

// stateAttribute is the span attribute that stores the tracestate of the client, because OpenCensus
// spans have no such field. It is not sent to Zipkin.
const stateAttribute = "tracestate"

// failedCode is the status code of a failed span. OpenTelemetry has only one error code.
const failedCode = trace.StatusCodeUnknown

// endSpans ends the spans of a completed request.
func (r *Trace) endSpans(o *observation.Observation) {
	if r.wait != nil { // the request ended in the queue
		fail(r.wait, o, false, false)
		r.wait.End()
	}
	if r.app != nil {
		r.app.AddAttributes(appAttributes(o, r.method, r.tracer.options.AppPort)...)
		fail(r.app, o, o.Status >= 400, o.RPC != 0 && o.RPC != observation.GRPCStatusOf(0))
		r.app.End()
	}
	r.server.AddAttributes(serverAttributes(o, r.method)...)
	fail(r.server, o, o.Status >= 500, o.RPC.Failed())
	r.server.End()
}

// fail marks a span as failed if the request has a failure reason, or if byStatus or byRPC is true.
// The reason has precedence, because the client may not have received a response.
func fail(s *trace.Span, o *observation.Observation, byStatus, byRPC bool) {
	switch {
	case o.Reason != observation.OK:
		s.SetStatus(trace.Status{Code: failedCode, Message: o.Reason.String()})
		s.AddAttributes(trace.StringAttribute("error.type", o.Reason.String()))
	case byStatus:
		s.SetStatus(trace.Status{Code: failedCode, Message: http.StatusText(o.Status)})
		s.AddAttributes(trace.StringAttribute("error.type", strconv.Itoa(o.Status)))
	case byRPC:
		s.SetStatus(trace.Status{Code: failedCode, Message: o.RPC.String()})
		s.AddAttributes(trace.StringAttribute("error.type", o.RPC.String()))
	}
}

// A method contains the names of an HTTP method in spans. A client cannot choose the name of a
// span.
type method struct{ span, attribute, original string }

// client returns the name of the span for the exchange with the user container.
func (m method) client() string {
	if m.attribute == otherMethod {
		return m.span
	}
	return "HTTP " + m.span
}

// otherMethod is the attribute of methods that are not known (OpenTelemetry semantic conventions for HTTP).
const otherMethod = "_OTHER"

// known are the methods that appear by name in spans.
var known = [...]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY"}

// methodOf returns the method of m. The strings span and attribute do not reference m, which is
// memory of an engine. original does.
func methodOf(m string) method {
	if i := slices.Index(known[:], m); i >= 0 {
		return method{span: known[i], attribute: known[i]}
	}
	return method{span: "HTTP", attribute: otherMethod, original: m}
}

// attributes collects the attributes of one span.
type attributes []trace.Attribute

func (a *attributes) string(name, value string) { *a = append(*a, trace.StringAttribute(name, value)) }
func (a *attributes) int(name string, value int64) {
	*a = append(*a, trace.Int64Attribute(name, value))
}

func (a *attributes) method(m method) {
	a.string("http.request.method", m.attribute)
	if m.original != "" {
		a.string("http.request.method_original", export.Text(m.original))
	}
}

// rpc adds the status code of a gRPC response.
func (a *attributes) rpc(status observation.GRPCStatus) {
	if code, ok := status.Code(); ok {
		a.int("rpc.grpc.status_code", int64(code))
	}
}

// address adds the attributes of a host with an optional port. It returns the host.
func (a *attributes) address(address, port, hostport string) (host string) {
	if hostport == "" {
		return ""
	}
	host, number, err := net.SplitHostPort(hostport)
	if err != nil { // hostport contains no port
		host = strings.Trim(hostport, "[]")
	}
	host = export.Text(host)
	a.string(address, host)
	if n, err := strconv.ParseUint(number, 10, 16); err == nil {
		a.int(port, int64(n))
	}
	return host
}

// serverAttributes returns the attributes of the client request. The query is omitted because it
// can contain secrets.
func serverAttributes(o *observation.Observation, m method) attributes {
	path, err := url.PathUnescape(o.Path())
	if err != nil {
		path = o.Path()
	}
	scheme := "http"
	if o.TLS {
		scheme = "https"
	}
	version := strconv.Itoa(o.Major)
	if o.Major < 2 {
		version += "." + strconv.Itoa(o.Minor)
	}
	a := make(attributes, 0, 20)
	a.string("url.path", export.Text(path))
	a.string("url.scheme", scheme)
	a.string("network.protocol.version", version)
	a.int("http.request.body.size", o.In)
	a.int("http.response.body.size", o.Out)
	a.string("queueproxy.reason", o.Reason.String())
	a.string("queueproxy.phase", o.Phase.String())
	a.method(m)
	if o.Status != 0 {
		a.int("http.response.status_code", int64(o.Status))
	}
	a.rpc(o.RPC)
	if o.Proxied {
		a = append(a, trace.BoolAttribute("queueproxy.activator", true))
	}
	if o.Replayed {
		a = append(a, trace.BoolAttribute("queueproxy.replayed", true))
	}
	// The attribute is as in Knative, except for invalid tag names. In contrast to metrics, the
	// number of names is not limited.
	if tag, name := observation.TagOf(o.Exchange); tag == observation.TagNamed {
		a.string("kn.route.tag", strings.Clone(name))
	} else {
		a.string("kn.route.tag", tag.String())
	}
	a.address("server.address", "server.port", o.Host)
	peer := a.address("network.peer.address", "network.peer.port", o.Remote)
	client, _, _ := strings.Cut(o.Exchange.Header(transport.XForwardedFor), ",")
	if client = strings.TrimSpace(client); client != "" {
		a.string("client.address", export.Text(client))
	} else if peer != "" {
		a.string("client.address", peer)
	}
	if agent := o.Exchange.Header(transport.UserAgent); agent != "" {
		a.string("user_agent.original", export.Text(agent))
	}
	return a
}

// appAttributes returns the attributes of the request to the user container.
func appAttributes(o *observation.Observation, m method, port int) attributes {
	host := "127.0.0.1"
	a := make(attributes, 0, 8)
	a.string("server.address", host)
	a.string("queueproxy.reason", o.Reason.String())
	a.method(m)
	if port > 0 {
		a.int("server.port", int64(port))
		host = net.JoinHostPort(host, strconv.Itoa(port))
	}
	a.string("url.full", export.Text("http://"+host+o.Path()))
	if !o.FirstByte.IsZero() {
		a.int("http.response.status_code", int64(o.Status))
		a.rpc(o.RPC)
	}
	if o.Replayed { // a request is replayed at most once, and one span contains both attempts
		a.int("http.request.resend_count", 1)
	}
	return a
}

// Limits for a tracestate in spans.
const (
	maxState   = 512 // in bytes; recommended by W3C Trace Context
	maxMembers = 32  // W3C Trace Context 3.3.1.1
)

// shownState returns the tracestate for spans, or "" if s is invalid. The user container receives s
// unchanged in either case.
func shownState(s string) string {
	if len(s) > maxState {
		return ""
	}
	var members []string
	keys := map[string]bool{}
	for member := range strings.SplitSeq(s, ",") {
		member = strings.Trim(member, " \t")
		if member == "" {
			continue // allowed (W3C Trace Context 3.3.1.1)
		}
		key, value, _ := strings.Cut(member, "=")
		if !isStateKey(key) || !isStateValue(value) || keys[key] {
			return ""
		}
		keys[key] = true
		members = append(members, member)
	}
	if len(members) > maxMembers {
		return ""
	}
	return strings.Clone(strings.Join(members, ",")) // copy, because for one member the result of Join is s, which is memory of an engine
}

// isStateKey reports whether key is a valid tracestate key. A key is a name, or a tenant and a
// system separated by @ (W3C Trace Context 3.3.1.2.1).
func isStateKey(key string) bool {
	tenant, system, both := strings.Cut(key, "@")
	if !both {
		return isStateName(key, 256) && key[0] > '9'
	}
	return isStateName(tenant, 241) && isStateName(system, 14) && system[0] > '9'
}

// isStateName reports whether s has 1 to longest valid characters and begins with a letter or a
// digit.
func isStateName(s string, longest int) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && (c == '_' || c == '-' || c == '*' || c == '/'):
		default:
			return false
		}
	}
	return s != "" && len(s) <= longest
}

// isStateValue reports whether value, which is trimmed, is a valid tracestate value. It must
// contain only printable ASCII without comma and equals sign (W3C Trace Context 3.3.1.2.2).
func isStateValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return value != "" && len(value) <= 256
}
