package tracing

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// waitName is the Knative name of the span for the time in the queue. The names of the other spans,
// such as "GET" for the request and "HTTP GET" for the exchange with the user container, follow the
// conventions of OpenTelemetry and Knative.
const waitName = "kn.queueproxy.wait"

// failedCode is the status code of a failed span. OpenTelemetry has only one error code.
const failedCode = trace.StatusCodeUnknown

// exportSpans exports the spans of a completed request.
func (r *Trace) exportSpans(o *observation.Observation) {
	a, end := &r.record.attributes, r.now()
	if r.dialled.IsZero() { // the request ended in the queue
		r.fail(o, false, false)
		r.export(waitName, trace.SpanKindUnspecified, newSpanID(), r.began, end)
	} else {
		if r.tracer.options.Limited {
			r.export(waitName, trace.SpanKindUnspecified, newSpanID(), r.began, r.dialled)
		}
		a.addApp(o, r.method, r.tracer)
		r.fail(o, o.Status >= 400, o.RPC != 0 && o.RPC != observation.GRPCStatusOf(0))
		if !r.first.IsZero() {
			r.record.event(r.first, "first byte")
		}
		r.export(r.method.client(), trace.SpanKindClient, r.next, r.dialled, end)
	}
	a.addServer(o, r.method)
	r.fail(o, o.Status >= 500, o.RPC.Failed())
	r.export(r.method.span, trace.SpanKindServer, r.server, r.began, end)
}

// export exports the span in the record, and resets the record for the next span of the request. The parent of
// the server span is the span whose ID the client sent. If the client sent no span ID, the server span has no
// parent. The parent of the other spans is the server span.
func (r *Trace) export(name string, kind int, id trace.SpanID, start, end time.Time) {
	s := &r.record.span
	s.Name, s.SpanKind, s.StartTime, s.EndTime = name, kind, start, end
	s.SpanContext = trace.SpanContext{TraceID: r.id, SpanID: id, TraceOptions: sampledOption}
	s.ParentSpanID, s.HasRemoteParent = r.server, id == r.server
	if s.HasRemoteParent {
		s.ParentSpanID = r.parent.span
	}
	r.tracer.sink.exportSpan(r.record)
	r.record.reset()
}

// sampledOption marks a span as sampled.
const sampledOption trace.TraceOptions = 1

// fail marks the span in the record as failed if the request has a failure reason, or if byStatus or byRPC is true.
// The reason has precedence, because the client may not have received a response.
func (r *Trace) fail(o *observation.Observation, byStatus, byRPC bool) {
	var kind, text string
	switch {
	case o.Reason != observation.OK:
		kind, text = o.Reason.String(), o.Reason.String()
	case byStatus:
		kind, text = strconv.Itoa(o.Status), http.StatusText(o.Status)
	case byRPC:
		kind, text = o.RPC.String(), o.RPC.String()
	default:
		return
	}
	r.record.span.Status = trace.Status{Code: failedCode, Message: text}
	r.record.attributes.string("error.type", kind)
}

// A method contains the names of an HTTP method in spans. All unknown methods have the same name, so that
// a client cannot choose the name of a span.
type method struct{ span, attribute, original string }

// client returns the name of the span for the exchange with the user container.
func (m method) client() string {
	if m.attribute == otherMethod {
		return m.span
	}
	return "HTTP " + m.span
}

// otherMethod is the attribute value for unknown methods (OpenTelemetry semantic conventions for HTTP).
const otherMethod = "_OTHER"

// known contains the methods that appear by name in spans.
var known = [...]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY"}

// methodOf returns the names of the HTTP method m. Only the field original references the memory of m, which
// belongs to the engine.
func methodOf(m string) method {
	if i := slices.Index(known[:], m); i >= 0 {
		return method{span: known[i], attribute: known[i]}
	}
	return method{span: "HTTP", attribute: otherMethod, original: m}
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
	host, number := hostport, ""
	if strings.Contains(hostport, ":") { // otherwise SplitHostPort would allocate an error
		var err error
		if host, number, err = net.SplitHostPort(hostport); err != nil { // hostport contains no port
			host = strings.Trim(hostport, "[]")
		}
	}
	host = export.Text(host)
	a.string(address, host)
	if number == "" { // ParseUint would allocate an error
		return host
	}
	if n, err := strconv.ParseUint(number, 10, 16); err == nil {
		a.int(port, int64(n))
	}
	return host
}

// addServer adds the attributes of the client request. The query is omitted because it can contain
// secrets.
func (a *attributes) addServer(o *observation.Observation, m method) {
	path, err := url.PathUnescape(o.Path())
	if err != nil {
		path = o.Path()
	}
	scheme := "http"
	if o.TLS {
		scheme = "https"
	}
	a.string("url.path", export.Text(path))
	a.string("url.scheme", scheme)
	a.string("network.protocol.version", versionOf(o.Line))
	a.int("http.request.body.size", o.In)
	a.int("http.response.body.size", o.Out)
	a.string("queueproxy.reason", o.Reason.String())
	a.string("queueproxy.phase", o.Phase.String())
	a.method(m)
	if o.Reset {
		a.isTrue("queueproxy.reset") // no status was sent
	} else if o.Status != 0 {
		a.int("http.response.status_code", int64(o.Status))
	}
	a.rpc(o.RPC)
	if o.Proxied {
		a.isTrue("queueproxy.activator")
	}
	if o.Replayed {
		a.isTrue("queueproxy.replayed")
	}
	// The value is the same as in Knative, except for invalid tag names. In contrast to metrics, the
	// number of names is not limited.
	tag, name := observation.TagOf(o.Exchange)
	if tag != observation.TagNamed {
		name = tag.String()
	}
	a.string("kn.route.tag", name)
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
}

// versionOf returns the version of HTTP, such as 1.1 or 2.
func versionOf(l transport.Line) string {
	switch {
	case l.Major == 1 && l.Minor == 1:
		return "1.1"
	case l.Major < 2:
		return strconv.Itoa(l.Major) + "." + strconv.Itoa(l.Minor)
	}
	return strconv.Itoa(l.Major)
}

// appHost is the address of the user container.
const appHost = "127.0.0.1"

// addApp adds the attributes of the request to the user container.
func (a *attributes) addApp(o *observation.Observation, m method, t *Tracer) {
	a.string("server.address", appHost)
	a.string("queueproxy.reason", o.Reason.String())
	a.method(m)
	if port := t.options.AppPort; port > 0 {
		a.int("server.port", int64(port))
	}
	a.string("url.full", export.Text(t.origin+o.Path()))
	if !o.FirstByte.IsZero() {
		a.int("http.response.status_code", int64(o.Status))
		a.rpc(o.RPC)
	}
	if o.Replayed { // a request is replayed at most once, and one span contains both attempts
		a.int("http.request.resend_count", 1)
	}
}

// Limits for a tracestate in spans.
const (
	maxState   = 512 // maximum length in bytes, as recommended by W3C Trace Context
	maxMembers = 32  // maximum number of members (W3C Trace Context 3.3.1.1)
)

// shownState returns the tracestate for spans, or "" if s is invalid. The user container receives s
// unchanged in either case. The result can reference s.
func shownState(s string) string {
	if len(s) > maxState {
		return ""
	}
	var members []string
	keys := map[string]bool{}
	for member := range strings.SplitSeq(s, ",") {
		member = strings.Trim(member, " \t")
		if member == "" {
			continue // empty members are allowed (W3C Trace Context 3.3.1.1)
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
	return strings.Join(members, ",")
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

// isStateName reports whether s begins with a letter or a digit, contains only valid characters, and has at
// most limit bytes.
func isStateName(s string, limit int) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && (c == '_' || c == '-' || c == '*' || c == '/'):
		default:
			return false
		}
	}
	return s != "" && len(s) <= limit
}

// isStateValue reports whether value is a valid tracestate value. The caller must trim value. A valid value
// contains only printable ASCII characters except comma and equals sign (W3C Trace Context 3.3.1.2.2).
func isStateValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return value != "" && len(value) <= 256
}
