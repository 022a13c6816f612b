package tracing

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/export"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// waitName is the name of the span of the wait for a slot: Knative's. The spans of
// the request and of the exchange with the user container are named GET and HTTP GET,
// as OpenTelemetry's conventions and Knative have it.
const waitName = "kn.queueproxy.wait"

// failedCode is the code of a span that failed. OpenTelemetry knows only one.
const failedCode = trace.StatusCodeUnknown

// spanData is OpenCensus's, and the client's tracestate as it is shown in it.
type spanData struct {
	trace.SpanData
	state string
}

// spans makes the spans of a request that has ended: the request itself, the wait
// for a slot, the exchange with the user container.
func (r *Trace) spans(o *queue.Observation) []*spanData {
	t := r.tracer
	method := methodOf(o.Method)
	state := shownState(r.state)
	begin := func(id, parent trace.SpanID, kind int, name string, from, to time.Time) *spanData {
		return &spanData{trace.SpanData{
			SpanContext:  trace.SpanContext{TraceID: r.id, SpanID: id, TraceOptions: 1},
			ParentSpanID: parent, SpanKind: kind, Name: name, StartTime: from, EndTime: to,
		}, state}
	}

	server := begin(r.server, r.parent.span, trace.SpanKindServer, method.span, o.Start, o.End)
	server.HasRemoteParent = r.parent.span != trace.SpanID{}
	server.Attributes = serverAttributes(o, method)
	fail(server, o, o.Status >= 500)
	spans := []*spanData{server}

	if t.options.Limited || o.Slot.IsZero() {
		until := o.Slot
		if until.IsZero() {
			until = o.End
		}
		wait := begin(newSpanID(), r.server, trace.SpanKindUnspecified, waitName, o.Start, until)
		if o.Slot.IsZero() {
			fail(wait, o, false)
		}
		spans = append(spans, wait)
	}

	if !o.Slot.IsZero() {
		app := begin(r.app, r.server, trace.SpanKindClient, "HTTP "+method.span, o.Slot, o.End)
		app.Attributes = appAttributes(o, method, t.options.AppPort)
		if !o.FirstByte.IsZero() {
			app.Annotations = []trace.Annotation{{Time: o.FirstByte, Message: "first byte"}}
		}
		fail(app, o, o.Status >= 400)
		spans = append(spans, app)
	}
	return spans
}

// fail marks a span that failed: by the status, or for a reason that is nobody's but
// the log's when the client has gone.
func fail(s *spanData, o *queue.Observation, byStatus bool) {
	switch {
	case o.Why != queue.OK:
		s.Status = trace.Status{Code: failedCode, Message: o.Why.String()}
		set(s, "error.type", o.Why.String())
	case byStatus:
		s.Status = trace.Status{Code: failedCode, Message: http.StatusText(o.Status)}
		set(s, "error.type", strconv.Itoa(o.Status))
	}
}

func set(s *spanData, name string, value any) {
	if s.Attributes == nil {
		s.Attributes = map[string]any{}
	}
	s.Attributes[name] = value
}

// A method as spans show it: no client chooses the name of a span.
type method struct{ span, attribute, original string }

// known are the methods that spans show by name.
var known = [...]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY"}

// methodOf keeps none of m, which is an engine's memory, but its original.
func methodOf(m string) method {
	for _, name := range known {
		if name == m {
			return method{span: name, attribute: name}
		}
	}
	return method{span: "HTTP", attribute: "_OTHER", original: m}
}

func (m method) set(a map[string]any) {
	a["http.request.method"] = m.attribute
	if m.original != "" {
		a["http.request.method_original"] = export.Text(m.original)
	}
}

// serverAttributes tells of the client's request. The query is left out: it may hold
// secrets.
func serverAttributes(o *queue.Observation, m method) map[string]any {
	path, err := url.PathUnescape(o.Path())
	if err != nil {
		path = o.Path()
	}
	a := map[string]any{
		"url.path":                 export.Text(path),
		"url.scheme":               "http",
		"network.protocol.version": versionOf(o.Major, o.Minor),
		"http.request.body.size":   o.In,
		"http.response.body.size":  o.Out,
		"queueproxy.reason":        o.Why.String(),
		"queueproxy.phase":         o.Phase.String(),
	}
	m.set(a)
	if o.TLS {
		a["url.scheme"] = "https"
	}
	if o.Status != 0 {
		a["http.response.status_code"] = int64(o.Status)
	}
	if o.Proxied {
		a["queueproxy.activator"] = true
	}
	if o.Replayed {
		a["queueproxy.replayed"] = true
	}
	// As Knative has it, but for what cannot be a tag's name. Unlike in metrics any number
	// of names is fine.
	if tag, name := header.TagOf(o.Exchange); tag == header.TagNamed {
		a["kn.route.tag"] = strings.Clone(name)
	} else {
		a["kn.route.tag"] = tag.String()
	}
	setAddress(a, "server.address", "server.port", o.Host)
	setAddress(a, "network.peer.address", "network.peer.port", o.Remote)
	client, _, _ := strings.Cut(o.Exchange.Header(header.XForwardedFor), ",")
	if client = strings.TrimSpace(client); client != "" {
		a["client.address"] = export.Text(client)
	} else if peer, ok := a["network.peer.address"]; ok {
		a["client.address"] = peer
	}
	if agent := o.Exchange.Header(header.UserAgent); agent != "" {
		a["user_agent.original"] = export.Text(agent)
	}
	return a
}

// appAttributes tells of the request to the user container.
func appAttributes(o *queue.Observation, m method, port int) map[string]any {
	host := "127.0.0.1"
	a := map[string]any{
		"server.address":    host,
		"queueproxy.reason": o.Why.String(),
	}
	m.set(a)
	if port > 0 {
		a["server.port"] = int64(port)
		host = net.JoinHostPort(host, strconv.Itoa(port))
	}
	a["url.full"] = export.Text("http://" + host + o.Path())
	if !o.FirstByte.IsZero() {
		a["http.response.status_code"] = int64(o.Status)
	}
	return a
}

// setAddress sets the attributes of a host with or without a port.
func setAddress(a map[string]any, address, port, hostport string) {
	if hostport == "" {
		return
	}
	host, number, err := net.SplitHostPort(hostport)
	if err != nil {
		a[address] = export.Text(strings.Trim(hostport, "[]"))
		return
	}
	a[address] = export.Text(host)
	if n, err := strconv.ParseUint(number, 10, 16); err == nil {
		a[port] = int64(n)
	}
}

func versionOf(major, minor int) string {
	if major >= 2 {
		return strconv.Itoa(major)
	}
	return strconv.Itoa(major) + "." + strconv.Itoa(minor)
}

// Bounds of a tracestate in spans.
const (
	maxState   = 512 // bytes; W3C asks for as much
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
