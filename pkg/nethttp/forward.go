package nethttp

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/goaway"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// Forward implements queue.Exchange.
func (x *exchange) Forward(l *queue.Life) queue.Result {
	if why := x.refuse(); why != queue.OK {
		return queue.Result{Why: why}
	}
	stop := x.watchContext()
	defer stop()
	if x.r.ContentLength != 0 {
		x.body = &body{life: l, source: x.r.Body, length: x.r.ContentLength, limit: x.server.settings.MaxBodyBytes, stop: x.stopBody}
		if !x.h2 || !queue.IsGRPC(x.Header(header.ContentType)) { // a stream of gRPC may be silent for long; it needs HTTP/2
			l.OwesBody()
		}
	}
	x.alarm.Watch(&x.life)
	if x.h2 {
		h2, err := x.ask(x.server.app.SpeaksH2)
		if err != nil {
			var result queue.Result
			x.blame(&result, x.alarm.Abortable(nil), err)
			return result
		}
		if h2 {
			return x.forwardH2()
		}
		return x.forwardH1("")
	}
	upgrade := upgradeOf(x.r)
	if upgrade == "" && x.server.app.OnlyH2() {
		return x.forwardH2()
	}
	return x.forwardH1(upgrade)
}

// refuse says what is wrong with a request that must not reach the user
// container.
func (x *exchange) refuse() queue.Why {
	limit := x.server.settings.MaxBodyBytes
	switch {
	case x.r.Method == http.MethodConnect: // we are nobody's way out (RFC 9110 section 9.3.6)
		return queue.BadRequest
	case !wire.ValidToken(x.r.Method): // HTTP/2 lets through what no request line can hold
		return queue.BadRequest
	case limit > 0 && x.r.ContentLength > limit:
		return queue.TooLarge
	case hasAlias(x.r.Header) || hasAlias(x.r.Trailer) || x.h2 && !x.lengthsAgree():
		return queue.BadRequest
	}
	for _, c := range []byte(x.target()) { // nor this
		if c <= ' ' || c == 0x7f {
			return queue.BadRequest
		}
	}
	return queue.OK
}

// hasAlias reports whether there is a field that an app behind a gateway like CGI
// would take for one that frames a message: there a dash and an underscore are the
// same.
func hasAlias(h http.Header) bool {
	_, length := h["Content_length"]
	_, coding := h["Transfer_encoding"]
	return length || coding
}

// lengthsAgree reports whether every Content-Length of an HTTP/2 request is the
// length of its body, or may still be: net/http looks at the first, and at none
// where there is no body. A request that says something else is malformed and not
// to be forwarded (RFC 9113 section 8.1.1).
func (x *exchange) lengthsAgree() bool {
	for _, value := range x.r.Header[header.ContentLength] {
		if n, err := strconv.ParseUint(value, 10, 63); err != nil || int64(n) != x.r.ContentLength {
			return false
		}
	}
	return true
}

// blame notes what ended a forward. A kill is the cause of whatever error it made.
func (x *exchange) blame(result *queue.Result, killed queue.Why, err error) {
	if result.Why = killed; killed == queue.OK {
		result.Why, result.Err = x.reason(err), err
	}
}

// reason returns the word for an error.
func (x *exchange) reason(err error) queue.Why {
	var e *upstream.Error
	if !errors.As(err, &e) { // the standard library's transport
		if bodyErr := x.body.leave(); bodyErr != nil {
			return bodyReason(bodyErr)
		}
		return queue.AppReset
	}
	switch e.Fault {
	case upstream.Unreachable:
		return queue.AppUnreachable
	case upstream.Garbage:
		return queue.AppGarbage
	case upstream.Body:
		return bodyReason(e.Err)
	}
	return queue.AppReset
}

// bodyReason says why a request's body could not be read.
func bodyReason(err error) queue.Why {
	if errors.Is(err, errTooLarge) {
		return queue.TooLarge
	}
	return queue.ClientGone // net/http does not say whether its chunks were bad
}

// forwardH1 is the way of a request to a user container that speaks HTTP/1.1.
func (x *exchange) forwardH1(upgrade string) (result queue.Result) {
	c := &x.call
	x.upgrade = upgrade
	c.Method, c.Upgrade, c.Many = x.r.Method, upgrade != "", x.h2
	c.Body, c.Length, c.Trailer, c.Expect100 = nil, 0, nil, false
	if x.body != nil {
		c.Body, c.Length, c.Expect100 = x.body, x.r.ContentLength, x.expects()
		c.Trailer = x.appendTrailer
		x.fullDuplex()
	}
	c.Hold = x.life.Holds()
	c.Begin()
	if why := x.alarm.Abortable(func() { c.Abort(); x.boundWrites() }); why != queue.OK {
		return queue.Result{Why: why}
	}
	r, err := c.Do(x.server.app)
	result.Replayed = c.Sends > 1
	if err != nil {
		killed := x.alarm.Abortable(nil)
		if killed == queue.OK && upgrade == "" && x.appOnlySpeaksH2(err) {
			return x.forwardH2()
		}
		x.blame(&result, killed, err)
		result.In = x.body.moved()
		if held := c.Held(); held != nil {
			result.Held = held
		}
		return result
	}
	result.FirstByte = time.Now()
	result.Status = r.Head.Status
	if r.Head.Status == http.StatusSwitchingProtocols {
		x.tunnel(r, &result)
		return result
	}
	contentType, _ := wire.Find(r.Head.Fields, header.ContentType)
	x.life.Respond(string(contentType))
	result.Begun = true
	x.stream(r, &result)
	x.settle(&result)
	r.Close() // after settle: then nothing is there to abort
	result.In = x.body.moved()
	x.broken = result.Why != queue.OK
	return result
}

// settle ends the reach of the alarm after a response. A client that leaves when
// it has all of it is no failure; nor is a clock that rings now, unless the last of
// the response can't be written any more.
func (x *exchange) settle(result *queue.Result) {
	killed := x.alarm.Abortable(nil)
	if result.Why != queue.OK || killed == queue.OK || killed == queue.ClientGone {
		return
	}
	control := http.NewResponseController(x.w)
	control.SetWriteDeadline(time.Now().Add(answerTimeout)) // the kill has put it into the past
	if control.Flush() != nil {
		result.Why = killed
	}
}

// stream passes the response on to its end.
func (x *exchange) stream(r *upstream.Response, result *queue.Result) {
	h := x.w.Header()
	copyFields(h, r.Head.Fields)
	if n := r.Length(); n >= 0 && (n > 0 || r.Head.ContentLength == 0) {
		h[header.ContentLength] = []string{strconv.FormatInt(n, 10)}
	} else if x.r.Method == http.MethodHead && r.Head.ContentLength >= 0 {
		h[header.ContentLength] = []string{strconv.FormatInt(r.Head.ContentLength, 10)}
	}
	if r.Head.Status == http.StatusNoContent {
		delete(h, header.ContentLength) // RFC 9110 section 8.6
	}
	x.addTiming(h)
	x.closeIfLast(h, x.server.settings.FullDuplex)
	x.begun(r.Head.Status, r.Length() < 0, x.call.Abort)

	pending := true // the head, for now
	flush := func() {
		if pending {
			_ = x.flush() // whoever writes next hears of an error
			pending = false
		}
	}
	x.call.OnWait = flush
	for {
		data, err := r.Next()
		if err == io.EOF {
			x.call.OnWait = nil
			trailer := r.Trailer()
			if len(trailer) > 0 {
				flush() // so that the body is chunked
			}
			setTrailer(h, trailer)
			return
		}
		if err != nil {
			x.call.OnWait = nil
			x.blame(result, x.alarm.Abortable(nil), err)
			return
		}
		x.life.Touch()
		n, err := x.write(data)
		result.Out += int64(n)
		if err != nil {
			x.call.OnWait = nil
			if result.Why = x.alarm.Abortable(nil); result.Why == queue.OK {
				result.Why = queue.ClientGone
			}
			return
		}
		pending = true
	}
}

// begun sends the head of the final response. From now on an abort also cuts the
// client's side: it may be what we wait for.
func (x *exchange) begun(status int, lengthUnknown bool, abort func()) {
	x.untilClose = lengthUnknown && !x.r.ProtoAtLeast(1, 1)
	x.answered = true
	x.w.WriteHeader(status)
	x.alarm.Abortable(func() {
		abort()
		x.unblock()
	})
}

// stopBody makes a blocked read of the request's body return.
func (x *exchange) stopBody() {
	x.stopped.Store(true)
	http.NewResponseController(x.w).SetReadDeadline(past)
}

// expects reports whether the request's body waits for "100 Continue".
func (x *exchange) expects() bool {
	return x.r.ProtoAtLeast(1, 1) && strings.EqualFold(x.r.Header.Get(header.Expect), "100-continue")
}

// inform passes an informational response on (RFC 9110 section 15.2).
func (x *exchange) inform(head *wire.Response) {
	if !x.r.ProtoAtLeast(1, 1) {
		return
	}
	copyFields(x.w.Header(), head.Fields)
	x.writeInterim(head.Status)
}

// tunnel passes a 101 on and then bytes both ways.
func (x *exchange) tunnel(r *upstream.Response, result *queue.Result) {
	client, rw, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		x.alarm.Abortable(nil)
		r.Close()
		result.Status, result.Why = 0, queue.AppGarbage
		return
	}
	defer client.Close()
	x.answered, result.Begun, result.Upgraded = true, true, true
	x.life.Enter(queue.Tunnelled)
	early := unread(rw.Reader)
	conn := client
	if r.IsWebSocket() {
		t := goaway.WebSocket(client)
		x.server.settings.WebSockets.Add(t)
		defer x.server.settings.WebSockets.Remove(t)
		conn = t
	}
	head := r.AppendSwitch(x.head[:0])
	if _, err := client.Write(head); err != nil {
		x.alarm.Abortable(nil)
		r.Close()
		result.Why = queue.ClientGone
		return
	}
	x.head = head
	x.alarm.Abortable(func() {
		x.call.Abort()
		conn.SetDeadline(past)
	})
	x.alarm.Watch(&x.life)
	result.In, result.Out = r.Tunnel(conn, early, x.life.Touch)
	result.Why = x.alarm.Abortable(nil)
}

// unread returns what the client has sent behind its request.
func unread(r *bufio.Reader) []byte {
	early, _ := r.Peek(r.Buffered())
	return bytes.Clone(early)
}

// makeHead makes what is sent first, anew each time: what HTTP/2 packs into some
// bytes can be long in HTTP/1.1, and is not to be held while the user container
// works.
func (x *exchange) makeHead() {
	x.life.Enter(queue.Waiting)
	x.writeHead(x.upgrade)
	x.call.Head = x.head
}

// leaveHead lets go of a head that is longer than most.
func (x *exchange) leaveHead() {
	x.call.Head = nil
	if cap(x.head) > headKept {
		x.head = nil
	}
}

// writeHead makes the head of the request to the user container (promises.md
// 3.4 and 3.8).
func (x *exchange) writeHead(upgrade string) {
	r := x.r
	b := append(x.head[:0], r.Method...)
	b = append(b, ' ')
	b = append(b, x.target()...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = wire.AppendField(b, header.Host, x.host())
	x.eachField(func(name, value string) { b = wire.AppendField(b, name, value) })
	if upgrade != "" {
		b = wire.AppendField(b, header.Connection, header.Upgrade)
		b = wire.AppendField(b, header.Upgrade, upgrade)
	} else if x.wantsTrailers() {
		b = wire.AppendField(b, header.Connection, "TE")
		b = wire.AppendField(b, "TE", "trailers")
	}
	switch {
	case r.ContentLength > 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.ContentLength, 10)
		b = append(b, "\r\n"...)
	case r.ContentLength < 0:
		b = wire.AppendField(b, header.TransferEncoding, "chunked")
		if len(r.Trailer) > 0 {
			b = wire.AppendField(b, header.Trailer, trailerNames(r.Trailer))
		}
	case r.Header[header.ContentLength] != nil || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch:
		b = wire.AppendField(b, header.ContentLength, "0")
	}
	x.head = append(b, "\r\n"...)
}

// target returns the request target in origin form, byte for byte.
func (x *exchange) target() string {
	t := x.r.RequestURI
	if t == "" || t[0] == '/' || t == "*" {
		return t
	}
	_, rest, ok := strings.Cut(t, "://") // absolute form (RFC 9112 section 3.2.2)
	if !ok {
		return t
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0 && x.r.Method == http.MethodOptions:
		return "*"
	case i < 0:
		return "/"
	case rest[i] == '?':
		return "/" + rest[i:]
	}
	return rest[i:]
}

// host returns the Host that the user container is asked for.
func (x *exchange) host() string {
	if h := x.Header(header.OriginalHost); h != "" {
		return h
	}
	if x.r.Host == "" {
		return x.server.settings.AppHost
	}
	return x.r.Host
}

// eachField calls yield with each field of the request that is passed on, and
// with those that a proxy adds.
func (x *exchange) eachField(yield func(name, value string)) {
	r, trace := x.r, x.life.Trace()
	named := r.Header[header.Connection]
	direct := true // no proxy has said where the request came from
	for name, values := range r.Header {
		if name == header.Forwarded || strings.HasPrefix(name, "X-Forwarded-") {
			direct = false
		}
		switch {
		case header.Hop(name), header.StopsHere(name), isNamed(named, name),
			name == header.ContentLength, name == header.Host, name == header.XForwardedFor,
			name == header.OriginalHost && r.Header.Get(name) != "",
			trace != nil && trace.Drop(name),
			name == header.Expect && (r.ContentLength == 0 || !x.expects()):
			continue
		}
		for _, value := range values {
			yield(name, value)
		}
	}
	if trace != nil {
		for _, f := range trace.Fields() {
			yield(f.Name, f.Value)
		}
	}
	xff := strings.Join(r.Header[header.XForwardedFor], ", ")
	if r.Header.Get(header.Forwarded) == "" {
		made := header.MakeForwarded(xff, r.Header.Get(header.XForwardedHost), r.Header.Get(header.XForwardedProto))
		if made != "" {
			yield(header.Forwarded, made)
		}
	}
	if peer, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if xff != "" {
			xff += ", "
		}
		xff += peer
	}
	if xff != "" {
		yield(header.XForwardedFor, xff)
	}
	if direct && r.TLS != nil {
		yield(header.XForwardedProto, "https")
	}
}

// wantsTrailers reports whether the client said "TE: trailers".
func (x *exchange) wantsTrailers() bool {
	for _, line := range x.r.Header[header.TE] {
		if wire.HasToken(line, "trailers") {
			return true
		}
	}
	return false
}

// isNamed reports whether the Connection lines name a field.
func isNamed(connection []string, name string) bool {
	for _, line := range connection {
		if wire.HasToken(line, name) {
			return true
		}
	}
	return false
}

func trailerNames(t http.Header) string {
	names := make([]string, 0, len(t))
	for name := range t {
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// appendTrailer appends the request's trailer fields, which net/http has put
// into place at the end of the body.
func (x *exchange) appendTrailer(dst []byte) []byte {
	for name, values := range x.r.Trailer {
		for _, value := range values {
			dst = wire.AppendField(dst, name, value)
		}
	}
	return dst
}

// copyFields copies what the user container said and is not for us alone.
func copyFields(h http.Header, fields []wire.Field) {
	hasType, announced := false, 0
	for _, f := range fields {
		name := textproto.CanonicalMIMEHeaderKey(string(f.Name))
		switch {
		case header.Hop(name) && name != header.Trailer, name == header.ContentLength, namedByConnection(fields, name):
			continue
		case name == header.ProxyStatus:
			if value := header.WithoutOurs(string(f.Value)); value != "" {
				h[name] = append(h[name], value)
			}
			continue
		case name == header.ContentType:
			hasType = true
		case name == header.Trailer:
			if announced += len(f.Value); announced > maxAnnounced {
				continue
			}
		}
		h[name] = append(h[name], string(f.Value))
	}
	if !hasType {
		h[header.ContentType] = nil // net/http shall not guess
	}
}

func namedByConnection(fields []wire.Field, name string) bool {
	for _, f := range fields {
		if wire.EqualFold(f.Name, header.Connection) && wire.HasToken(f.Value, name) {
			return true
		}
	}
	return false
}

// setTrailer sets the trailer fields behind the body, in net/http's way for those
// that were not announced: of the others it sends one that was announced twice
// twice, and a field of the head that has such a name.
func setTrailer(h http.Header, fields []wire.Field) {
	clear(h) // the head has been sent
	for _, f := range fields {
		value := string(f.Value)
		if header.RoleOf(f.Name) == header.ProxyStatusRole { // which may stand there, too (RFC 9209 section 2)
			if value = header.WithoutOurs(value); value == "" {
				continue
			}
		}
		name := http.TrailerPrefix + textproto.CanonicalMIMEHeaderKey(string(f.Name))
		h[name] = append(h[name], value)
	}
}
