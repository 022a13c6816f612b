package tracing

import (
	"encoding/hex"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// waitName is the name of the span of the wait for a slot: Knative's. The spans of
// the request and of the exchange with the user container are named GET and HTTP GET,
// as OpenTelemetry's conventions and Knative have it.
const waitName = "kn.queueproxy.wait"

// maxText is how much of a client's string a span shows, in bytes.
const maxText = 512

// A traceID names a trace; zero is none.
type traceID [16]byte

// A spanID names a span within its trace; zero is none.
type spanID [8]byte

// String returns 32 hexadecimal digits.
func (id traceID) String() string { return hex.EncodeToString(id[:]) }

// String returns 16 hexadecimal digits.
func (id spanID) String() string { return hex.EncodeToString(id[:]) }

// A kind says on which side of an exchange a span stands.
type kind uint8

const (
	internal kind = iota
	server
	client
)

// A span is a part of a request that has ended, complete: nothing is added to it
// later.
type span struct {
	trace        traceID
	id, parent   spanID // parent is zero where the trace begins
	remoteParent bool   // the parent is not ours
	kind         kind
	name         string
	start, end   time.Time
	firstByte    time.Time      // of the response; zero: no event is shown
	attributes   map[string]any // of string, bool, int64 or float64
	state        string         // tracestate
	failed       bool
	failure      string // of one that failed: why; may be empty
}

// firstByteEvent is the name of the event that a span's firstByte is.
const firstByteEvent = "first byte"

// spans makes the spans of a request that has ended: the request itself, the wait
// for a slot, the exchange with the user container.
func (r *Trace) spans(o *queue.Observation) []*span {
	t := r.tracer
	request := o.Exchange.Request()
	method := methodOf(o.Method)
	state := validState(r.state)

	whole := &span{
		trace: r.id, id: r.server, parent: r.parent.span, kind: server, name: method.span, start: o.Start, end: o.End, state: state,
		remoteParent: r.parent.span != spanID{}, attributes: serverAttributes(o, request, method),
	}
	whole.fail(o, o.Status >= 500)
	spans := []*span{whole}

	if t.options.Limited || o.Slot.IsZero() {
		until := o.Slot
		if until.IsZero() {
			until = o.End
		}
		wait := &span{trace: r.id, id: newSpanID(), parent: r.server, name: waitName, start: o.Start, end: until, state: state}
		if o.Slot.IsZero() {
			wait.fail(o, false)
		}
		spans = append(spans, wait)
	}

	if !o.Slot.IsZero() {
		app := &span{
			trace: r.id, id: r.app, parent: r.server, kind: client, name: "HTTP " + method.span, start: o.Slot, end: o.End, state: state,
			firstByte: o.FirstByte, attributes: appAttributes(o, request, method, t.options.AppPort),
		}
		app.fail(o, o.Status >= 400)
		spans = append(spans, app)
	}
	return spans
}

// fail marks a span that failed: by the status, or for a reason that is nobody's but
// the log's when the client has gone.
func (s *span) fail(o *queue.Observation, byStatus bool) {
	var word string
	switch {
	case o.Why != queue.OK:
		s.failure, word = o.Why.String(), o.Why.String()
	case byStatus:
		s.failure, word = http.StatusText(o.Status), strconv.Itoa(o.Status)
	default:
		return
	}
	s.failed = true
	if s.attributes == nil {
		s.attributes = map[string]any{}
	}
	s.attributes["error.type"] = word
}

// A method as spans show it: no client chooses the name of a span.
type method struct{ span, attribute, original string }

func methodOf(m string) method {
	switch m {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY":
		return method{span: m, attribute: m}
	}
	return method{span: "HTTP", attribute: "_OTHER", original: m}
}

func (m method) set(a map[string]any) {
	a["http.request.method"] = m.attribute
	if m.original != "" {
		a["http.request.method_original"] = text(m.original)
	}
}

// serverAttributes tells of the client's request. The query is left out: it may hold
// secrets.
func serverAttributes(o *queue.Observation, r *http.Request, m method) map[string]any {
	a := map[string]any{
		"url.path":                 text(r.URL.Path),
		"url.scheme":               "http",
		"network.protocol.version": versionOf(o.Major, o.Minor),
		"http.request.body.size":   o.In,
		"http.response.body.size":  o.Out,
		"queueproxy.reason":        o.Why.String(),
		"queueproxy.phase":         o.Phase.String(),
	}
	m.set(a)
	if r.TLS != nil {
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
	setAddress(a, "server.address", "server.port", r.Host)
	setAddress(a, "network.peer.address", "network.peer.port", r.RemoteAddr)
	client, _, _ := strings.Cut(o.Exchange.Header(header.XForwardedFor), ",")
	if client = strings.TrimSpace(client); client != "" {
		a["client.address"] = text(client)
	} else if peer, ok := a["network.peer.address"]; ok {
		a["client.address"] = peer
	}
	if agent := o.Exchange.Header(header.UserAgent); agent != "" {
		a["user_agent.original"] = text(agent)
	}
	return a
}

// appAttributes tells of the request to the user container.
func appAttributes(o *queue.Observation, r *http.Request, m method, port int) map[string]any {
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
	a["url.full"] = text("http://" + host + r.URL.EscapedPath())
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
		a[address] = text(strings.Trim(hostport, "[]"))
		return
	}
	a[address] = text(host)
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

// text returns a client's string as a span may keep it: not too long, in memory of
// its own, and in UTF-8, without which a collector refuses the whole batch.
func text(s string) string {
	if len(s) > maxText {
		n := maxText
		for n > maxText-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.Clone(strings.ToValidUTF8(s, "\ufffd"))
}

// Bounds of a tracestate: what W3C asks for at least, and at most (W3C Trace Context 3.3.1).
const (
	maxState   = 512 // bytes that spans show
	maxMembers = 32
)

// validState returns a tracestate for the spans. One that does not keep to the format
// is left out of them; the user container gets it all the same, as it came.
func validState(s string) string {
	if len(s) > maxState {
		return ""
	}
	var b strings.Builder
	keys := make([]string, 0, maxMembers)
	for member := range strings.SplitSeq(s, ",") {
		member = strings.Trim(member, " 	")
		if member == "" {
			continue // allowed (W3C Trace Context 3.3.1.1)
		}
		key, value, ok := strings.Cut(member, "=")
		if !ok || !isStateKey(key) || !isStateValue(value) || slices.Contains(keys, key) || len(keys) == maxMembers {
			return ""
		}
		if len(keys) > 0 {
			b.WriteByte(',')
		}
		b.WriteString(member)
		keys = append(keys, key)
	}
	return b.String()
}

// isStateKey reports whether s is a key: up to 256 small letters, digits and _-*/ that
// begin with a letter, or such of a tenant (up to 241) and of a system (up to 14) with
// an @ between (W3C Trace Context, first edition, 3.3.1.3.1).
func isStateKey(s string) bool {
	word := func(s string, most int) bool {
		return s != "" && len(s) <= most && 'a' <= s[0] && s[0] <= 'z' &&
			strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_-*/") == ""
	}
	if tenant, system, ok := strings.Cut(s, "@"); ok {
		return word(tenant, 241) && word(system, 14)
	}
	return word(s, 256)
}

// isStateValue reports whether s is a value: up to 256 printable characters but , and
// =, of which the last is no space (W3C Trace Context 3.3.1.3.2).
func isStateValue(s string) bool {
	if s == "" || len(s) > 256 || s[len(s)-1] == ' ' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return true
}
