package tracing

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/export"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// waitName is the name of the span of the wait for a slot: Knative's. The spans of
// the request and of the exchange with the user container are named GET and HTTP GET,
// as OpenTelemetry's conventions and Knative have it.
const waitName = "kn.queueproxy.wait"

// stateAttribute is the attribute of a span that holds the client's tracestate, for
// which the spans of this OpenCensus have no place. Zipkin gets none.
const stateAttribute = "tracestate"

// failedCode is the code of a span that failed. OpenTelemetry knows only one.
const failedCode = trace.StatusCodeUnknown

// endSpans ends the spans of a request that has ended.
func (r *Trace) endSpans(o *queue.Observation) {
	if r.wait != nil { // the wait was all there was
		fail(r.wait, o, false)
		r.wait.End()
	}
	if r.app != nil {
		r.app.AddAttributes(appAttributes(o, r.method, r.tracer.options.AppPort)...)
		fail(r.app, o, o.Status >= 400)
		r.app.End()
	}
	r.server.AddAttributes(serverAttributes(o, r.method)...)
	fail(r.server, o, o.Status >= 500)
	r.server.End()
}

// fail marks a span that failed, by the reason, which no client got if it has gone, or by
// the status.
func fail(s *trace.Span, o *queue.Observation, byStatus bool) {
	switch {
	case o.Reason != queue.OK:
		s.SetStatus(trace.Status{Code: failedCode, Message: o.Reason.String()})
		s.AddAttributes(trace.StringAttribute("error.type", o.Reason.String()))
	case byStatus:
		s.SetStatus(trace.Status{Code: failedCode, Message: http.StatusText(o.Status)})
		s.AddAttributes(trace.StringAttribute("error.type", strconv.Itoa(o.Status)))
	}
}

// A method as spans show it: no client chooses the name of a span.
type method struct{ span, attribute, original string }

// known are the methods that spans show by name.
var known = [...]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY"}

// methodOf keeps none of m, which is an engine's memory, but its original.
func methodOf(m string) method {
	if i := slices.Index(known[:], m); i >= 0 {
		return method{span: known[i], attribute: known[i]}
	}
	return method{span: "HTTP", attribute: "_OTHER", original: m}
}

// attributes are those of one span, before it gets them.
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

// address adds the attributes of a host with or without a port.
func (a *attributes) address(address, port, hostport string) (host string) {
	if hostport == "" {
		return ""
	}
	host, number, err := net.SplitHostPort(hostport)
	if err != nil { // there is no port
		host = strings.Trim(hostport, "[]")
	}
	host = export.Text(host)
	a.string(address, host)
	if n, err := strconv.ParseUint(number, 10, 16); err == nil {
		a.int(port, int64(n))
	}
	return host
}

// serverAttributes are those of the client's request. The query is left out: it may hold
// secrets.
func serverAttributes(o *queue.Observation, m method) attributes {
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
	if o.Proxied {
		a = append(a, trace.BoolAttribute("queueproxy.activator", true))
	}
	if o.Replayed {
		a = append(a, trace.BoolAttribute("queueproxy.replayed", true))
	}
	// As Knative has it, but for what cannot be a tag's name. Unlike in metrics any number
	// of names is fine.
	if tag, name := header.TagOf(o.Exchange); tag == header.TagNamed {
		a.string("kn.route.tag", strings.Clone(name))
	} else {
		a.string("kn.route.tag", tag.String())
	}
	a.address("server.address", "server.port", o.Host)
	peer := a.address("network.peer.address", "network.peer.port", o.Remote)
	client, _, _ := strings.Cut(o.Exchange.Header(header.XForwardedFor), ",")
	if client = strings.TrimSpace(client); client != "" {
		a.string("client.address", export.Text(client))
	} else if peer != "" {
		a.string("client.address", peer)
	}
	if agent := o.Exchange.Header(header.UserAgent); agent != "" {
		a.string("user_agent.original", export.Text(agent))
	}
	return a
}

// appAttributes are those of the request to the user container.
func appAttributes(o *queue.Observation, m method, port int) attributes {
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
	}
	return a
}

// Bounds of a tracestate in spans.
const (
	maxState   = 512 // bytes; W3C recommends as many
	maxMembers = 32  // W3C Trace Context 3.3.1.1
)

// shownState is a tracestate as spans show it. One that does not keep to the format
// is left out of them; the user container gets it all the same, as it came.
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
	return strings.Clone(strings.Join(members, ",")) // which for one member is s itself, an engine's memory
}

// isStateKey reports whether key is one of a tracestate: a name, or a tenant's @ a
// system's (W3C Trace Context 3.3.1.2.1).
func isStateKey(key string) bool {
	tenant, system, both := strings.Cut(key, "@")
	if !both {
		return isStateName(key, 256) && key[0] > '9'
	}
	return isStateName(tenant, 241) && isStateName(system, 14) && system[0] > '9'
}

// isStateName reports whether s is 1 to longest letters of a key and begins with a
// letter or a digit.
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

// isStateValue reports whether value, which blanks were taken from, is one of a
// tracestate: printable ASCII without comma and equals sign (W3C Trace Context
// 3.3.1.2.2).
func isStateValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return value != "" && len(value) <= 256
}
