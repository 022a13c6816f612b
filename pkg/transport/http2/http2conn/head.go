package http2conn

import (
	"net/http"
	"strconv"
	"unsafe"

	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// A Head is a received header block of a request, a response or a trailer section. Its strings remain valid. The
// memory of Fields is reused for the next block of the connection unless the caller takes it with [Head.Take].
type Head struct {
	Method, Scheme, Authority, Path, Protocol string       // pseudo-header fields of a request; "" if absent
	Status                                    int          // 100 to 999 except 101 (RFC 9113 section 8.6); 0 if absent or malformed
	Fields                                    []wire.Field // the other fields, with names in lower case and trimmed values

	Malformed bool // the block is malformed and must not be forwarded (RFC 9113 section 8.1.1)
	TooLarge  bool // the block exceeds Config.MaxHeadBytes or wire.MaxFields, and the fields above are incomplete

	status  string    // value of :status
	size    int       // result of Size
	empty   bool      // an empty pseudo-header field was received; only :authority may be empty
	began   bool      // a regular field was received, so no pseudo-header field may follow
	shared  int       // total length, in bytes, of the values that share memory with another value in longs
	longs   [4]string // the last distinct values of at least longValue bytes, most recent first
	lenient bool      // connection-specific fields are dropped; if false, they make the block malformed
}

// fieldOverhead is the number of bytes that a field adds to the size of a header list in addition to its name and
// value (RFC 9113 section 6.5.2).
const fieldOverhead = 32

func (h *Head) reset() {
	clear(h.Fields) // allow the strings to be garbage collected
	*h = Head{Fields: h.Fields[:0]}
}

// If the capacity of Fields exceeds manyFields, the slice counts against the memory budget. If the capacity exceeds
// 4*manyFields, the slice is released after the next block with at most manyFields fields. fieldSize is the size of a
// field in bytes without its name and value.
const (
	manyFields = 64
	fieldSize  = 48
)

// largeHead is the size in bytes above which a block is released immediately after it is handled. A smaller block is
// kept until the next block replaces it.
const largeHead = 16 << 10

// shrink releases the memory of a large block, so that an idle connection does not hold it.
func (h *Head) shrink() {
	few := len(h.Fields) <= manyFields
	if h.size > largeHead {
		h.reset()
	}
	if few && cap(h.Fields) > 4*manyFields {
		h.Fields = nil
	}
}

// Take returns Fields, and transfers the ownership of the slice to the caller. The next block uses the memory of spare,
// whose content is discarded.
func (h *Head) Take(spare []wire.Field) []wire.Field {
	fields := h.Fields
	h.Fields = spare[:0]
	return fields
}

// Stored returns the number of bytes that the names and values of all fields and pseudo-header fields occupy in
// memory. If several fields refer to the same entry of the dynamic table, their value counts only once if it has at
// least longValue bytes.
func (h *Head) Stored() int { return h.size - h.shared - fieldOverhead*len(h.Fields) }

// longValue is the minimum length in bytes of the values in Head.longs. The dynamic table of 4 KiB has space for
// only a few values of this length.
const longValue = 512

// repeats reports whether value shares its memory with a value in h.longs, which was already validated.
func (h *Head) repeats(value string) bool {
	for _, v := range h.longs {
		if len(v) == len(value) && unsafe.StringData(v) == unsafe.StringData(value) {
			return true
		}
	}
	return false
}

// Size returns the size of the header list in bytes (RFC 9113 section 6.5.2).
func (h *Head) Size() int { return h.size }

// add checks and adds a decoded field. most is the maximum size of the header list in bytes.
func (h *Head) add(f hpack.HeaderField, most int) {
	h.size += len(f.Name) + len(f.Value) + fieldOverhead
	if h.size > most || len(h.Fields) >= wire.MaxFields {
		h.TooLarge = true
		return
	}
	if f.IsPseudo() {
		h.addPseudo(f)
		return
	}
	h.began = true
	if len(f.Value) >= longValue && h.repeats(f.Value) && validName(f.Name) && !connectionSpecific(f.Name, "") {
		h.shared += len(f.Value)
		h.Fields = append(h.Fields, wire.Field{Name: wire.Bytes(f.Name), Value: wire.Bytes(f.Value)})
		return
	}
	value := wire.Trim(f.Value)
	specific := connectionSpecific(f.Name, value)
	if !validName(f.Name) || !wire.ValidValue(value) || specific && !h.lenient {
		h.Malformed = true
		return
	}
	if specific {
		return
	}
	if len(value) >= longValue && len(value) == len(f.Value) {
		copy(h.longs[1:], h.longs[:])
		h.longs[0] = value
	}
	h.Fields = append(h.Fields, wire.Field{Name: wire.Bytes(f.Name), Value: wire.Bytes(value)})
}

// addPseudo adds a pseudo-header field. Each pseudo-header field may occur only once and must precede all regular fields
// (RFC 9113 section 8.3).
func (h *Head) addPseudo(f hpack.HeaderField) {
	var to *string
	switch f.Name {
	case ":method":
		to = &h.Method
	case ":scheme":
		to = &h.Scheme
	case ":authority":
		to = &h.Authority
	case ":path":
		to = &h.Path
	case ":protocol":
		to = &h.Protocol
	case ":status":
		to = &h.status
	}
	if to == nil || *to != "" || to == &h.Authority && h.empty || h.began || !wire.ValidValue(f.Value) {
		h.Malformed = true
		return
	}
	*to = f.Value
	if f.Value == "" { // only :authority may be empty
		h.Malformed = h.Malformed || to != &h.Authority
		h.empty = true
	}
}

// readStatus parses the :status field of a response.
func (h *Head) readStatus() {
	status, err := strconv.Atoi(h.status)
	if err != nil || len(h.status) != 3 || status < 100 || status == http.StatusSwitchingProtocols {
		h.Malformed = true
		return
	}
	h.Status = status
}

// pseudo reports whether the block contains a pseudo-header field. A trailer section must not contain one.
func (h *Head) pseudo() bool {
	return h.Method != "" || h.Scheme != "" || h.Authority != "" || h.Path != "" || h.Protocol != "" || h.status != ""
}

// validName reports whether name is a token without upper-case letters (RFC 9113 section 8.2.1).
func validName(name string) bool {
	for i := range len(name) {
		if c := name[i]; 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return wire.ValidToken(name)
}

// connectionSpecific reports whether a field is specific to an HTTP/1.1 connection (RFC 9113 section 8.2.2). Unlike
// transport.RoleOf, it expects a name in lower case.
func connectionSpecific(name, value string) bool {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return true
	case "te":
		return value != "trailers"
	}
	return false
}
