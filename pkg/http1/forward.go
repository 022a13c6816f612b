package http1

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/upstream"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

var (
	errTooLarge = errors.New("request body too large")
	errBroken   = errors.New("the connection has failed")
)

// Forward implements queue.Exchange.
func (x *exchange) Forward(l *queue.Life) (result queue.Result) {
	if x.request.Form == wire.Authority { // CONNECT: we are nobody's way out (RFC 9110 section 9.3.6)
		return queue.Result{Why: queue.BadRequest}
	}
	if limit := x.c.server.settings.MaxBodyBytes; limit > 0 && x.request.ContentLength > limit {
		return queue.Result{Why: queue.TooLarge}
	}
	c := &x.call
	c.Method, c.Upgrade = view(x.request.Method), wantsUpgrade(&x.request)
	c.Body, c.Length, c.Trailer = nil, 0, nil
	if _, all := x.body.arrived(); !all && !x.body.none() {
		c.Body, c.Length = &x.body, x.request.ContentLength
		if x.body.chunked {
			c.Trailer = x.body.appendTrailer
		}
		l.OwesBody()
	}
	c.Expect100 = x.request.Expect100 && c.Body != nil && x.c.w == x.at
	x.interim.begin(c.Expect100) // one that has sent some of the body does not wait
	x.c.clocked = true
	x.alarm.Watch(l)
	if x.c.server.app.OnlyH2() && !c.Upgrade {
		return x.forwardH2()
	}
	c.Hold = l.Holds()
	c.Begin()
	if why := x.alarm.Abortable(x.abortApp); why != queue.OK {
		return queue.Result{Why: why}
	}
	r, err := c.Do(x.c.server.app)
	result.Replayed = c.Sends > 1
	if err != nil {
		killed := x.alarm.Abortable(nil)
		if killed == queue.OK && !c.Upgrade && x.appOnlySpeaksH2(err) {
			return x.forwardH2()
		}
		x.blame(&result, killed, err)
		result.In = x.body.moved()
		if held := c.Held(); held != nil {
			result.Held = held
		}
		return result
	}
	if c.Body == nil {
		x.body.sent()
	}
	result.FirstByte, result.Status, result.Begun = time.Now(), r.Head.Status, true
	if r.Head.Status == http.StatusSwitchingProtocols {
		x.tunnel(r, &result)
		return result
	}
	contentType, _ := wire.Find(r.Head.Fields, header.ContentType)
	l.Respond(view(contentType))
	x.alarm.Abortable(x.abortBoth)
	x.stream(r, &result)
	if x.alarm.Abortable(nil) != queue.OK { // before Close, after which nothing is there to abort
		x.last = true // what came behind the last byte came too late, but it has cut the connection off
	}
	r.Close()
	x.conclude(&result)
	return result
}

// conclude settles what a response that has begun has come to.
func (x *exchange) conclude(result *queue.Result) {
	result.In = x.body.moved()
	if result.Why != queue.OK && !x.told { // there is still room for the reason
		result.Begun, result.Status = false, 0
		x.broken, x.waiting = false, false
		return
	}
	x.broken = x.broken || result.Why != queue.OK
}

// makeHead makes what is written first: the head, and a body that has arrived
// with it. It is made again for a request that is sent again, so that no buffer
// is held while the user container works.
func (x *exchange) makeHead() {
	x.life.Enter(queue.Waiting)
	x.room()
	x.out = x.appendHead(x.out[:0])
	if content, all := x.body.arrived(); all {
		x.out = append(x.out, content...)
	}
	x.call.Head = x.out
}

// sent notes that a body that had arrived went out with the head and will not be
// sent again.
func (b *body) sent() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if content, all := b.arrived(); all {
		b.took(len(content))
		b.n, b.left, b.over = int64(len(content)), 0, true
	}
}

// blame notes what ended a forward. A kill is the cause of whatever error it made.
func (x *exchange) blame(result *queue.Result, killed queue.Why, err error) {
	if result.Why = killed; killed != queue.OK {
		return
	}
	result.Err = err
	var e *upstream.Error
	fault := upstream.Reset
	if errors.As(err, &e) {
		fault = e.Fault
	} else if bodyErr := x.body.failed(); bodyErr != nil { // the standard library's transport
		result.Why = bodyReason(bodyErr)
		return
	}
	switch fault {
	case upstream.Unreachable:
		result.Why = queue.AppUnreachable
	case upstream.Garbage:
		result.Why = queue.AppGarbage
	case upstream.Body:
		result.Why = bodyReason(e.Err)
	default:
		result.Why = queue.AppReset
	}
}

// bodyReason says why a request's body could not be read.
func bodyReason(err error) queue.Why {
	var chunk *wire.BadChunk
	switch {
	case errors.Is(err, errTooLarge):
		return queue.TooLarge
	case errors.As(err, &chunk):
		return queue.BadRequest
	}
	return queue.ClientGone
}

// appendHead appends the head of the request to the user container
// (docs/promises.md 3.4 and 3.8).
func (x *exchange) appendHead(b []byte) []byte {
	q, trace := &x.request, x.life.Trace()
	b = append(b, q.Method...)
	b = append(b, ' ')
	b = append(b, originForm(q)...)
	b = append(b, " HTTP/1.1\r\n"...)
	original := x.Header(header.OriginalHost)
	switch {
	case original != "":
		b = wire.AppendField(b, header.Host, original)
	case len(q.Host) > 0:
		b = wire.AppendField(b, header.Host, q.Host)
	default:
		b = wire.AppendField(b, header.Host, x.c.server.settings.AppHost)
	}

	var xff, xfh, xfp, forwarded []byte
	var many []byte // of several X-Forwarded-For lines the join
	trailers, named := false, q.Fields[:0:0]
	direct := x.c.nc.Secure() // over our own TLS, and no proxy has said where the request came from
	for _, f := range q.Fields {
		if header.RoleOf(f.Name) == header.ConnectionRole && namesFields(f.Value) {
			named = append(named, f)
		}
	}
	for _, f := range q.Fields {
		direct = direct && !saysForwarded(f.Name)
		switch header.RoleOf(f.Name) {
		case header.HopRole, header.ConnectionRole, header.TrailerRole, header.StopsRole, header.LengthRole, header.HostRole, header.ExpectRole:
			continue
		case header.TERole:
			trailers = trailers || wire.HasToken(f.Value, "trailers")
			continue
		case header.OriginalHostRole:
			if original != "" {
				continue
			}
		case header.ForwardedForRole:
			if xff == nil {
				xff = f.Value
			} else {
				if many == nil {
					many = append(many, xff...)
				}
				many = append(append(many, ", "...), f.Value...)
			}
			continue
		case header.ForwardedHostRole:
			if xfh == nil {
				xfh = f.Value
			}
		case header.ForwardedProtoRole:
			if xfp == nil {
				xfp = f.Value
			}
		case header.ForwardedRole:
			if forwarded == nil {
				forwarded = f.Value
			}
		}
		if isNamed(named, f.Name) || trace != nil && trace.Drop(view(f.Name)) {
			continue
		}
		b = wire.AppendField(b, f.Name, f.Value)
	}
	if many != nil {
		xff = many
	}
	if len(forwarded) == 0 && (len(xff) > 0 || len(xfh) > 0 || len(xfp) > 0) {
		if made := header.MakeForwarded(view(xff), view(xfh), view(xfp)); made != "" {
			b = wire.AppendField(b, header.Forwarded, made)
		}
	}
	if trace != nil {
		for _, f := range trace.Fields() {
			b = wire.AppendField(b, f.Name, f.Value)
		}
	}
	b = append(b, "X-Forwarded-For: "...)
	if len(xff) > 0 {
		b = append(append(b, xff...), ", "...)
	}
	b = append(append(b, x.peer...), "\r\n"...)
	if direct {
		b = wire.AppendField(b, header.XForwardedProto, "https")
	}
	if x.call.Upgrade {
		b = append(b, "Connection: Upgrade\r\nUpgrade: "...)
		b = append(appendProtocols(b, q), "\r\n"...)
	} else if trailers {
		b = append(b, "Connection: TE\r\nTE: trailers\r\n"...)
	}
	if q.Expect100 && (q.Chunked || q.ContentLength > 0) {
		b = wire.AppendField(b, header.Expect, "100-continue")
	}
	switch {
	case q.Chunked:
		b = wire.AppendField(b, header.TransferEncoding, "chunked")
		for _, f := range q.Fields {
			if header.RoleOf(f.Name) == header.TrailerRole {
				b = wire.AppendField(b, header.Trailer, f.Value)
			}
		}
	case q.ContentLength >= 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, q.ContentLength, 10)
		b = append(b, "\r\n"...)
	case view(q.Method) == "POST" || view(q.Method) == "PUT" || view(q.Method) == "PATCH":
		b = wire.AppendField(b, header.ContentLength, "0")
	}
	return append(b, "\r\n"...)
}

// saysForwarded reports whether a field is one by which a proxy says where a request
// came from.
func saysForwarded(name []byte) bool {
	const prefix = "x-forwarded-"
	return len(name) > len(prefix) && wire.EqualFold(name[:len(prefix)], prefix) || wire.EqualFold(name, header.Forwarded)
}

// namesFields reports whether a Connection line says more than what becomes of
// the connection.
func namesFields(line []byte) bool {
	return !wire.EqualFold(line, "keep-alive") && !wire.EqualFold(line, "close")
}

// originForm returns the request target in origin form, byte for byte (RFC 9112
// section 3.2).
func originForm(q *wire.Request) []byte {
	if q.Form != wire.Absolute || string(q.Target) == "*" {
		return q.Target
	}
	_, rest, _ := strings.Cut(view(q.Target), "://")
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0 && view(q.Method) == "OPTIONS":
		return []byte("*")
	case i < 0:
		return []byte("/")
	case rest[i] == '?':
		return []byte("/" + rest[i:])
	}
	return []byte(rest[i:])
}

// isNamed reports whether Connection lines name a field.
func isNamed(connection []wire.Field, name []byte) bool {
	for _, f := range connection {
		if wire.HasToken(f.Value, name) {
			return true
		}
	}
	return false
}

// stream passes the response on to its end: its head with the first bytes of the
// body in one write, and the rest as it arrives.
func (x *exchange) stream(r *upstream.Response, result *queue.Result) {
	h := &r.Head
	chunked := x.beginResponse(h.Status, view(h.Reason), h.Fields, r.Length(), h.ContentLength)
	for {
		data, err := r.Next()
		if err == io.EOF {
			if chunked {
				x.room()
				x.out = wire.AppendLastChunk(x.out, withoutOurs(r.Trailer()))
				x.waiting = true
			}
			if x.flush(nil) != nil {
				x.gone(result)
			}
			return
		}
		if err != nil {
			x.blame(result, x.alarm.Abortable(x.abortBoth), err)
			_ = x.flush(nil) // what has come is the client's, in its own time; that it is not all, it will see
			return
		}
		x.life.Touch()
		if x.pass(data, chunked) != nil {
			x.gone(result)
			return
		}
		result.Out += int64(len(data))
	}
}

// withoutOurs takes our own member out of a trailer section, in place: Proxy-Status
// may stand there, too (RFC 9209 section 2).
func withoutOurs(trailer []wire.Field) []wire.Field {
	kept := trailer[:0]
	for _, f := range trailer {
		if header.RoleOf(f.Name) == header.ProxyStatusRole {
			if f.Value = []byte(header.WithoutOurs(string(f.Value))); len(f.Value) == 0 {
				continue
			}
		}
		kept = append(kept, f)
	}
	return kept
}

// gone notes that the response can't be written.
func (x *exchange) gone(result *queue.Result) {
	if result.Why = x.alarm.Abortable(nil); result.Why == queue.OK {
		result.Why = queue.ClientGone
	}
}

// pass adds data to what waits. If there is no room for it both are written.
func (x *exchange) pass(data []byte, chunked bool) error {
	x.room()
	if chunked {
		x.out = wire.AppendChunkHead(x.out, len(data))
	}
	if len(x.out)+len(data)+len(wire.ChunkTail) > cap(x.out) {
		x.waiting = true
		if err := x.flush(data); err != nil {
			return err
		}
		data = nil
	}
	x.out = append(x.out, data...)
	if chunked {
		x.out = append(x.out, wire.ChunkTail...)
	}
	x.waiting = len(x.out) > 0
	return nil
}

// beginResponse makes the head of the response to the client, which is written with
// what comes first of the body. length is that of the body, -1 where only its end tells
// it, and announced what the user container says of it, which for HEAD is another one.
// It reports whether the body is to be sent in chunks.
func (x *exchange) beginResponse(status int, reason string, fields []wire.Field, length, announced int64) (chunked bool) {
	chunked = length < 0 && x.request.Minor > 0
	x.untilClose = length < 0 && !chunked
	x.endInterim()
	x.room()
	b := appendStatus(x.out[:0], x.request.Minor, status, reason)
	b = appendResponseFields(b, fields)
	if _, ok := wire.Find(fields, "date"); !ok {
		b = append(b, x.c.server.dateLine(time.Now())...)
	}
	if x.c.server.settings.ServerTiming {
		queued, slot := x.life.Waited()
		b = fmt.Appendf(b, "Server-Timing: queue;dur=%.1f, app;dur=%.1f\r\n",
			float64(queued)/float64(time.Millisecond), float64(time.Since(slot))/float64(time.Millisecond))
	}
	switch {
	case chunked:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case x.untilClose:
	case length > 0 || status != http.StatusNoContent && announced >= 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, max(length, announced), 10)
		b = append(b, "\r\n"...)
	}
	x.last = x.untilClose || x.endsConnection(x.c.server.settings.FullDuplex)
	b = x.appendConnection(b, x.request.Minor)
	x.out = append(b, "\r\n"...)
	x.waiting, x.told = true, x.broken // within an informational response no other can begin
	return chunked
}

// appendResponseFields appends what the user container said and is not for us
// alone.
func appendResponseFields(b []byte, fields []wire.Field) []byte {
	var connection [1]wire.Field
	named := connection[:0]
	for _, f := range fields {
		if header.RoleOf(f.Name) == header.ConnectionRole && namesFields(f.Value) {
			named = append(named, f)
		}
	}
	for _, f := range fields {
		value := f.Value
		switch header.RoleOf(f.Name) {
		case header.HopRole, header.ConnectionRole, header.TERole, header.LengthRole:
			continue
		case header.ProxyStatusRole:
			if value = []byte(header.WithoutOurs(string(value))); len(value) == 0 {
				continue
			}
		}
		if len(named) > 0 && isNamed(named, f.Name) {
			continue
		}
		b = wire.AppendField(b, f.Name, value)
	}
	return b
}
