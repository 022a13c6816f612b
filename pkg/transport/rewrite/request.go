package rewrite

import (
	"cmp"
	"slices"
	"strconv"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// Request is a client request in any HTTP version. Its methods return the request with the changes that a proxy
// makes (docs/promises.md 3.4 and 3.8). An engine reuses one Request and sets all exported fields for each client
// request. The methods reuse memory, so that most calls do not allocate, and they must not be called concurrently.
type Request struct {
	Method, Target string                // as received; Target is in origin, absolute or asterisk form
	Host           string                // host in the target, or else the value of the Host field; "" means AppHost
	AppHost        string                // value of Host if the request has no host
	Peer           string                // address of the client, for X-Forwarded-For
	Secure         bool                  // the sidecar received the request over TLS
	Fields         []wire.Field          // all fields in the order of their arrival
	Packed         wire.Packed           // the fields in packed form; nil if Fields is set
	Unpacked       *sync.Pool            // a pool of *[]wire.Field, for Packed; nil if Packed is never set
	Length         int64                 // value of Content-Length in bytes; -1 if there is none
	Chunked        bool                  // the request has a body of unknown length
	Expect100      bool                  // the client sent "Expect: 100-continue"
	Upgrade        bool                  // request the protocols in the Upgrade fields; see OffersUpgrade
	Crumbs         bool                  // the request arrived over HTTP/2, which may split Cookie into several fields
	Trace          transport.TraceFields // nil if the request is not traced

	lines Lines  // output of AppendHTTP1
	chain []byte // value of X-Forwarded-For if it contains more than Peer; reused
}

// chainKept is the maximum capacity of chain that is kept after a method call, in bytes. A longer chain is released,
// because it is not part of the memory budget and a client can send it in a few bytes of HPACK.
const chainKept = 512

// Release removes all references to strings and fields from the client.
func (r *Request) Release() {
	r.Method, r.Target, r.Host, r.Fields, r.Packed = "", "", "", nil, nil
}

// dropChain releases a long chain after its value was copied.
func (r *Request) dropChain() {
	if cap(r.chain) > chainKept {
		r.chain = nil
	}
}

// packed reports whether a method must unpack the fields. It is false for HTTP/1.1.
func (r *Request) packed() bool { return r.Packed != nil && len(r.Fields) == 0 }

// unpack sets Fields during a method call. The caller passes the result to repack.
func (r *Request) unpack() *[]wire.Field {
	room, ok := r.Unpacked.Get().(*[]wire.Field)
	if !ok {
		room = new([]wire.Field)
	}
	*room = r.Packed.Unpack((*room)[:0])
	r.Fields = *room
	return room
}

// repack reverses unpack.
func (r *Request) repack(room *[]wire.Field) {
	clear(*room)
	r.Unpacked.Put(room)
	r.Fields = nil
}

// Refuse returns the reason to reject a request, or nil if it can be forwarded. maxBody is the
// maximum length of a body in bytes. 0 means no limit.
func (r *Request) Refuse(maxBody int64) error {
	switch {
	case r.Method == "CONNECT": // the sidecar is not a forward proxy (RFC 9110 section 9.3.6)
		return transport.FaultBadRequest
	case !wire.ValidToken(r.Method), !wire.Visible(r.Target): // not valid in HTTP/1.1
		return transport.FaultBadRequest
	case maxBody > 0 && r.Length > maxBody:
		return transport.FaultTooLarge
	}
	if r.packed() {
		defer r.repack(r.unpack())
	}
	for i := range r.Fields {
		if transport.RoleOf(r.Fields[i].Name) == transport.AliasRole {
			return transport.FaultBadRequest
		}
	}
	return nil
}

// Path returns the target in origin form; see [transport.OriginForm].
func (r *Request) Path() string { return transport.OriginForm(r.Method, r.Target) }

// Authority returns the host to send in the request to the user container.
func (r *Request) Authority() string {
	if r.packed() {
		defer r.repack(r.unpack())
	}
	if original, _ := wire.Find(r.Fields, transport.OriginalHost); len(original) > 0 {
		return wire.String(original)
	}
	if r.Host == "" {
		return r.AppHost
	}
	return r.Host
}

// MayReplay reports whether a request is sent again after it failed before a byte of a response arrived
// (docs/promises.md 3.7). reused reports whether the connection was used before. unsent reports whether no byte of
// the request was written. The caller checks that the body is still complete. An HTTP/2 error may also report that
// the request was not processed. See package http2client.
func (r *Request) MayReplay(reused, unsent bool) bool { return reused && (unsent || r.isIdempotent()) }

// isIdempotent reports whether the method is idempotent (RFC 9110 section 9.2.2).
func (r *Request) isIdempotent() bool {
	switch r.Method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	return false
}

// OffersUpgrade reports whether an HTTP/1.1 request with "Connection: upgrade" contains an offer that is forwarded. An
// offer to upgrade to HTTP/2 is ignored, because clients that support HTTP/2 send the offer to every server (RFC 9110
// section 7.8). An offer in a request with a body is ignored as well.
func (r *Request) OffersUpgrade() bool {
	return !r.Chunked && r.Length <= 0 && len(r.appendProtocols(nil)) > 0
}

// appendProtocols appends the requested protocols, except HTTP/2, as a list.
func (r *Request) appendProtocols(b []byte) []byte {
	n := len(b)
	for _, f := range r.Fields {
		if !transport.EqualFold(f.Name, transport.Upgrade) {
			continue
		}
		for protocol := range wire.Members(f.Value) {
			if len(protocol) == 0 || transport.EqualFold(protocol, "h2c") {
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

// Lengths in bytes that Size adds to names and values.
const (
	usualSize    = 256 // estimate for the fields that a proxy adds
	fieldFraming = 4   // ": " and CRLF of one field

	// forwardedFactor is the number of additional bytes for each byte of X-Forwarded-For: the copy in chain, and
	// its addresses in Forwarded.
	forwardedFactor = 3
)

// Size returns the approximate length of the header section that the user container receives, in
// bytes.
func (r *Request) Size() int {
	if r.packed() {
		defer r.repack(r.unpack())
	}
	size := len(r.Method) + len(r.Target) + usualSize
	for i := range r.Fields {
		size += len(r.Fields[i].Name) + len(r.Fields[i].Value) + fieldFraming
		if transport.RoleOf(wire.String(r.Fields[i].Name)) == transport.ForwardedForRole {
			size += forwardedFactor * len(r.Fields[i].Value)
		}
	}
	return size
}

// AppendHTTP1 appends the header section of the request in the format of HTTP/1.1: the request
// line, all fields including those that frame the body, and the empty line.
func (r *Request) AppendHTTP1(b []byte) []byte {
	if r.packed() {
		defer r.repack(r.unpack())
	}
	var room [namesRoom]string
	summary, named := r.read(room[:0])
	b = slices.Grow(b, r.Size()) // avoids reallocations for a long header section
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.Path()...)
	b = append(b, " HTTP/1.1\r\n"...)
	r.lines = wire.AppendField(b, transport.Host, r.Authority())
	r.each(&r.lines, &summary, named, r.Crumbs)
	r.dropChain()
	b, r.lines = r.lines, nil
	if r.Crumbs {
		b = r.appendCookies(b)
	}
	if r.Upgrade {
		b = append(b, "Connection: Upgrade\r\nUpgrade: "...)
		b = append(r.appendProtocols(b), "\r\n"...)
	} else if summary.trailers {
		b = append(b, "Connection: TE\r\nTE: trailers\r\n"...)
	}
	return append(r.appendFraming(b), "\r\n"...)
}

// appendFraming appends the fields that frame the body.
func (r *Request) appendFraming(b []byte) []byte {
	if r.Expect100 && (r.Chunked || r.Length > 0) {
		b = wire.AppendField(b, transport.Expect, "100-continue")
	}
	switch {
	case r.Chunked:
		return wire.AppendField(b, transport.TransferEncoding, "chunked")
	case r.Length >= 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.Length, 10)
		return append(b, "\r\n"...)
	case r.Method == "POST" || r.Method == "PUT" || r.Method == "PATCH": // RFC 9110 section 8.6
		return wire.AppendField(b, transport.ContentLength, "0")
	}
	return b
}

// appendCookies appends all Cookie fields as one field, because an HTTP/1.1 request must not have more than one
// (RFC 9113 section 8.2.3).
func (r *Request) appendCookies(b []byte) []byte {
	begun := false
	for _, f := range r.Fields {
		if !transport.EqualFold(f.Name, transport.Cookie) {
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

// EachField passes to e the fields of the request to a user container that uses HTTP/2: the
// forwarded fields of the client and the fields that a proxy adds. Host, Content-Length and TE are
// not passed. Trailer is passed if the length of the body is unknown. trailers reports whether the client sent
// "TE: trailers".
func (r *Request) EachField(e Encoder) (trailers bool) {
	if r.packed() {
		defer r.repack(r.unpack())
	}
	var room [namesRoom]string
	summary, named := r.read(room[:0])
	r.each(e, &summary, named, false)
	r.dropChain()
	return summary.trailers
}

// summary contains the request values that determine the fields that a proxy changes or adds.
type summary struct {
	original      bool   // K-Original-Host contains the host
	trailers      bool   // TE contains trailers
	proxied       bool   // a proxy has added a field such as X-Forwarded-Host
	forwarded     string // the first Forwarded field that is not empty
	host, proto   string // the first X-Forwarded-Host and X-Forwarded-Proto fields that are not empty
	before, chain string // X-Forwarded-For fields as one value; chain ends with the address of the client
}

// read reads all fields once. It appends the names in Connection fields to room, and returns them separately, so that
// the caller can allocate room on its stack.
func (r *Request) read(room names) (s summary, named names) {
	original, _ := wire.Find(r.Fields, transport.OriginalHost)
	s.original = len(original) > 0
	named = room
	chain, chained := r.chain[:0], false
	for i := range r.Fields {
		name, value := wire.String(r.Fields[i].Name), wire.String(r.Fields[i].Value)
		s.proxied = s.proxied || describesOrigin(name)
		switch transport.RoleOf(name) {
		case transport.ConnectionRole:
			named = named.add(value)
		case transport.TERole:
			s.trailers = s.trailers || wire.HasToken(value, "trailers")
		case transport.ForwardedForRole:
			if chained {
				chain = append(chain, ", "...)
			}
			chain, chained = append(chain, value...), true
		case transport.ForwardedHostRole:
			s.host = cmp.Or(s.host, value)
		case transport.ForwardedProtoRole:
			s.proto = cmp.Or(s.proto, value)
		case transport.ForwardedRole:
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

// describesOrigin reports whether proxies use the field to describe the origin of a request.
func describesOrigin(name string) bool {
	const prefix = "x-forwarded-"
	return len(name) > len(prefix) && transport.EqualFold(name[:len(prefix)], prefix) || transport.EqualFold(name, transport.Forwarded)
}

// each implements EachField. If noCookies is true, Cookie is not passed.
func (r *Request) each(e Encoder, s *summary, named names, noCookies bool) {
	for i := range r.Fields {
		name := wire.String(r.Fields[i].Name)
		switch transport.RoleOf(name) {
		case transport.HopRole, transport.UpgradeRole, transport.KeepAliveRole, transport.TransferEncodingRole, transport.ConnectionRole, transport.TERole,
			transport.StopsRole, transport.LengthRole, transport.HostRole, transport.ExpectRole, transport.ForwardedForRole:
			continue
		case transport.TrailerRole:
			if !r.Chunked {
				continue
			}
		case transport.OriginalHostRole:
			if s.original {
				continue
			}
		}
		if named.has(name) || r.Trace != nil && r.Trace.Drop(name) || noCookies && transport.EqualFold(name, transport.Cookie) {
			continue
		}
		e.Field(name, wire.String(r.Fields[i].Value))
	}
	if s.forwarded == "" && (s.before != "" || s.host != "" || s.proto != "") {
		if made := MakeForwarded(s.before, s.host, s.proto); made != "" {
			e.Field(transport.Forwarded, made)
		}
	}
	if r.Trace != nil {
		for _, f := range r.Trace.Fields() {
			e.Field(f.Name, f.Value)
		}
	}
	e.Field(transport.XForwardedFor, s.chain)
	if r.Secure && !s.proxied {
		e.Field(transport.XForwardedProto, "https")
	}
}
