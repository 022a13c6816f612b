package forward

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// Request is a client's request, in whatever protocol it came, with what a proxy adds to
// it (docs/promises.md 3.4 and 3.8). An engine keeps one and sets all exported fields
// for each request. Its methods use memory of its own, so that they allocate nothing in
// most cases, and must not run at the same time.
type Request struct {
	Method, Target string       // as they came; Target in origin, absolute or asterisk form
	Host           string       // that is asked for: of the target, if it has one, or of the field; "": AppHost
	AppHost        string       // what the Host of a request without one says
	Peer           string       // the client's address, for X-Forwarded-For
	Secure         bool         // it came over our own TLS
	Fields         []wire.Field // all of them, in their order
	Packed         wire.Packed  // the same in place of Fields; nil: Fields is set
	Unpacked       *sync.Pool   // of *[]wire.Field, for Packed; nil if Packed is never set
	Length         int64        // of the body in bytes, as Content-Length says it; -1: it says nothing
	Chunked        bool         // there is a body, whose length is not known
	Expect100      bool         // the client has sent "Expect: 100-continue"
	Upgrade        bool         // ask for the protocols that its Upgrade fields name; see OffersUpgrade
	Crumbs         bool         // it came over HTTP/2, which may split Cookie into several fields
	Trace          queue.Trace  // nil: none

	lines Lines  // what AppendHTTP1 writes
	chain []byte // the value of X-Forwarded-For, if it is more than Peer
}

// chainKept is how much memory for a chain of proxies is kept for the next request, in
// bytes: an idle connection is to hold little.
const chainKept = 512

// Release forgets all strings and fields of the client.
func (r *Request) Release() {
	r.Method, r.Target, r.Host, r.Fields, r.Packed = "", "", "", nil, nil
	if cap(r.chain) > chainKept {
		r.chain = nil
	}
}

// packed reports whether a method must unpack the fields. It is false for HTTP/1.1.
func (r *Request) packed() bool { return r.Packed != nil && len(r.Fields) == 0 }

// unpack sets Fields for the time of a method. The result is for repack.
func (r *Request) unpack() *[]wire.Field {
	room, ok := r.Unpacked.Get().(*[]wire.Field)
	if !ok {
		room = new([]wire.Field)
	}
	*room = r.Packed.Unpack((*room)[:0])
	r.Fields = *room
	return room
}

// repack undoes unpack.
func (r *Request) repack(room *[]wire.Field) {
	clear(*room)
	r.Unpacked.Put(room)
	r.Fields = nil
}

// Refuse returns what is wrong with a request that must not reach the user container; OK:
// nothing. maxBody is the length in bytes that a body may have; 0: any.
func (r *Request) Refuse(maxBody int64) queue.Reason {
	switch {
	case r.Method == "CONNECT": // we are nobody's way out (RFC 9110 section 9.3.6)
		return queue.BadRequest
	case !wire.ValidToken(r.Method), !wire.Visible(r.Target): // HTTP/2 has room for what no request line can hold
		return queue.BadRequest
	case maxBody > 0 && r.Length > maxBody:
		return queue.TooLarge
	}
	if r.packed() {
		defer r.repack(r.unpack())
	}
	for i := range r.Fields {
		if header.RoleOf(r.Fields[i].Name) == header.AliasRole {
			return queue.BadRequest
		}
	}
	return queue.OK
}

// Path returns the target in origin form, byte for byte, or "*" (RFC 9112 section 3.2).
func (r *Request) Path() string {
	t := r.Target
	if t == "" || t[0] == '/' || t == "*" {
		return t
	}
	_, rest, ok := strings.Cut(t, "://")
	if !ok {
		return t
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0 && r.Method == "OPTIONS": // RFC 9112 section 3.2.4
		return "*"
	case i < 0:
		return "/"
	case rest[i] == '?':
		return "/" + rest[i:]
	}
	return rest[i:]
}

// Authority returns the host that the user container is asked for.
func (r *Request) Authority() string {
	if r.packed() {
		defer r.repack(r.unpack())
	}
	if original, _ := wire.Find(r.Fields, header.OriginalHost); len(original) > 0 {
		return wire.String(original)
	}
	if r.Host == "" {
		return r.AppHost
	}
	return r.Host
}

// MayReplay reports whether a request is sent again after it failed without a byte of a response
// (docs/promises.md 3.7). reused reports whether the connection was used before, and unsent whether no
// byte of the request was written. The caller checks that the body is still complete. An error of
// HTTP/2 can state that the request was not processed, see package h2client.
func (r *Request) MayReplay(reused, unsent bool) bool { return reused && (unsent || r.isIdempotent()) }

// isIdempotent reports whether the method is idempotent (RFC 9110 section 9.2.2).
func (r *Request) isIdempotent() bool {
	switch r.Method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	return false
}

// WantsTrailers reports whether the client has sent "TE: trailers".
func (r *Request) WantsTrailers() bool {
	if r.packed() {
		defer r.repack(r.unpack())
	}
	for _, f := range r.Fields {
		if header.RoleOf(f.Name) == header.TERole && wire.HasToken(f.Value, "trailers") {
			return true
		}
	}
	return false
}

// OffersUpgrade reports whether the fields of an HTTP/1.1 request ask for another
// protocol. Not if that is HTTP/2 alone, whose only users are those that offer it to
// everybody (RFC 9110 section 7.8), nor if there is a body: such offers are ignored.
func (r *Request) OffersUpgrade() bool {
	if r.Chunked || r.Length > 0 {
		return false
	}
	named := false
	for _, f := range r.Fields {
		named = named || header.RoleOf(f.Name) == header.ConnectionRole && wire.HasToken(f.Value, header.Upgrade)
	}
	return named && len(r.appendProtocols(nil)) > 0
}

// appendProtocols appends the protocols that the request asks for, but HTTP/2, as a list.
func (r *Request) appendProtocols(b []byte) []byte {
	n := len(b)
	for _, f := range r.Fields {
		if !header.EqualFold(f.Name, header.Upgrade) {
			continue
		}
		for protocol := range wire.Members(f.Value) {
			if len(protocol) == 0 || header.EqualFold(protocol, "h2c") {
				continue
			}
			if len(b) > n {
				b = append(b, ", "...)
			}
			b = append(b, protocol...)
		}
	}
	return b
}

// What a head is long, in bytes, beside names and values.
const (
	usualSize    = 256 // of what a proxy adds
	fieldFraming = 4   // of a field: ": " and CRLF
)

// Size returns about how long the head is that the user container gets, in bytes.
func (r *Request) Size() int {
	if r.packed() {
		defer r.repack(r.unpack())
	}
	size := len(r.Method) + len(r.Target) + usualSize
	for i := range r.Fields {
		size += len(r.Fields[i].Name) + len(r.Fields[i].Value) + fieldFraming
	}
	return size
}

// AppendHTTP1 appends the head of the request to a user container that speaks HTTP/1.1:
// the request line, all fields, those that frame the body included, and the empty line.
func (r *Request) AppendHTTP1(b []byte) []byte {
	if r.packed() {
		defer r.repack(r.unpack())
	}
	var room [namesRoom]string
	said, named := r.read(room[:0])
	b = slices.Grow(b, r.Size()) // so that a long head is made without being copied
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.Path()...)
	b = append(b, " HTTP/1.1\r\n"...)
	r.lines = wire.AppendField(b, header.Host, r.Authority())
	r.each(&r.lines, &said, named, r.Crumbs)
	b, r.lines = r.lines, nil
	if r.Crumbs {
		b = r.appendCookies(b)
	}
	if r.Upgrade {
		b = append(b, "Connection: Upgrade\r\nUpgrade: "...)
		b = append(r.appendProtocols(b), "\r\n"...)
	} else if said.trailers {
		b = append(b, "Connection: TE\r\nTE: trailers\r\n"...)
	}
	return append(r.appendFraming(b), "\r\n"...)
}

// appendFraming appends the fields that say how the body comes.
func (r *Request) appendFraming(b []byte) []byte {
	if r.Expect100 && (r.Chunked || r.Length > 0) {
		b = wire.AppendField(b, header.Expect, "100-continue")
	}
	switch {
	case r.Chunked:
		return wire.AppendField(b, header.TransferEncoding, "chunked")
	case r.Length >= 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.Length, 10)
		return append(b, "\r\n"...)
	case r.Method == "POST" || r.Method == "PUT" || r.Method == "PATCH": // RFC 9110 section 8.6
		return wire.AppendField(b, header.ContentLength, "0")
	}
	return b
}

// appendCookies appends all Cookie fields as one: HTTP/1.1 knows no others (RFC 9113
// section 8.2.3).
func (r *Request) appendCookies(b []byte) []byte {
	begun := false
	for _, f := range r.Fields {
		if !header.EqualFold(f.Name, header.Cookie) {
			continue
		}
		if begun {
			b = append(b, "; "...)
		} else {
			b = append(b, "Cookie: "...)
		}
		b, begun = append(b, f.Value...), true
	}
	if begun {
		b = append(b, "\r\n"...)
	}
	return b
}

// EachField passes to e the fields of the request to a user container that speaks HTTP/2:
// those that the client has sent for it, and those that a proxy adds. Host, Content-Length
// and TE are not among them; Trailer is, for a body whose length is not known.
func (r *Request) EachField(e Encoder) {
	if r.packed() {
		defer r.repack(r.unpack())
	}
	var room [namesRoom]string
	said, named := r.read(room[:0])
	r.each(e, &said, named, false)
}

// said is what the fields of a request say that decides about others.
type said struct {
	original      bool   // K-Original-Host says the host
	trailers      bool   // TE lists trailers
	proxied       bool   // a proxy says where the request came from
	forwarded     string // Forwarded,
	host, proto   string // X-Forwarded-Host and -Proto: the first that is not empty
	before, chain string // X-Forwarded-For: all lines as one, and with the client's address behind them
}

// read looks at all fields once. The names are appended to room, and not a part of what
// is said, so that they can be on the caller's stack.
func (r *Request) read(room names) (s said, named names) {
	original, _ := wire.Find(r.Fields, header.OriginalHost)
	s.original = len(original) > 0
	if named = room; cap(r.chain) > chainKept {
		r.chain = nil
	}
	chain, chained := r.chain[:0], false
	for i := range r.Fields {
		name, value := wire.String(r.Fields[i].Name), wire.String(r.Fields[i].Value)
		s.proxied = s.proxied || saysForwarded(name)
		switch header.RoleOf(name) {
		case header.ConnectionRole:
			named = named.add(value)
		case header.TERole:
			s.trailers = s.trailers || wire.HasToken(value, "trailers")
		case header.ForwardedForRole:
			if chained {
				chain = append(chain, ", "...)
			}
			chain, chained = append(chain, value...), true
		case header.ForwardedHostRole:
			s.host = cmp.Or(s.host, value)
		case header.ForwardedProtoRole:
			s.proto = cmp.Or(s.proto, value)
		case header.ForwardedRole:
			s.forwarded = cmp.Or(s.forwarded, value)
		}
	}
	s.chain = r.Peer
	if n := len(chain); n > 0 {
		chain = append(append(chain, ", "...), r.Peer...)
		s.before, s.chain = wire.String(chain[:n]), wire.String(chain)
	}
	r.chain = chain
	return s, named
}

// saysForwarded reports whether a field is one by which a proxy says where a request came
// from.
func saysForwarded(name string) bool {
	const prefix = "x-forwarded-"
	return len(name) > len(prefix) && header.EqualFold(name[:len(prefix)], prefix) || header.EqualFold(name, header.Forwarded)
}

// each is EachField, with or without Cookie.
func (r *Request) each(e Encoder, s *said, named names, noCookies bool) {
	for i := range r.Fields {
		name := wire.String(r.Fields[i].Name)
		switch header.RoleOf(name) {
		case header.HopRole, header.UpgradeRole, header.KeepAliveRole, header.TransferEncodingRole, header.ConnectionRole, header.TERole,
			header.StopsRole, header.LengthRole, header.HostRole, header.ExpectRole, header.ForwardedForRole:
			continue
		case header.TrailerRole:
			if !r.Chunked {
				continue
			}
		case header.OriginalHostRole:
			if s.original {
				continue
			}
		}
		if named.has(name) || r.Trace != nil && r.Trace.Drop(name) || noCookies && header.EqualFold(name, header.Cookie) {
			continue
		}
		e.Field(name, wire.String(r.Fields[i].Value))
	}
	if s.forwarded == "" && (s.before != "" || s.host != "" || s.proto != "") {
		if made := header.MakeForwarded(s.before, s.host, s.proto); made != "" {
			e.Field(header.Forwarded, made)
		}
	}
	if r.Trace != nil {
		for _, f := range r.Trace.Fields() {
			e.Field(f.Name, f.Value)
		}
	}
	e.Field(header.XForwardedFor, s.chain)
	if r.Secure && !s.proxied {
		e.Field(header.XForwardedProto, "https")
	}
}
