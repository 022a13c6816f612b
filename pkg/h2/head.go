package h2

import (
	"net/http"
	"strconv"
	"unsafe"

	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// A Head is a header block that was received: that of a request, of a response, or a
// trailer section. Its strings are not changed afterwards; its Fields are used again for
// the next block of the connection, unless they are taken by [Head.Take].
type Head struct {
	Method, Scheme, Authority, Path, Protocol string       // of a request; "" where it was not there
	Status                                    int          // of a response, 100 to 999 and not 101 (RFC 9113 section 8.6); 0: it is none, or Malformed
	Fields                                    []wire.Field // names in lower case, values without blanks at their ends

	Malformed bool // RFC 9113 section 8.1.1: not to be forwarded
	TooLarge  bool // more than Config.MaxHeadBytes, or than wire.MaxFields; what is there is not all

	status  string
	size    int
	empty   bool      // there was an Authority without a byte
	began   bool      // with fields that are no pseudo-header fields
	shared  int       // bytes of values that repeat the string of another value
	longs   [4]string // the last different long values
	lenient bool      // fields of HTTP/1.1's connections are left out, and not held against who sends them
}

// fieldOverhead is what counts for a field beyond its name and its value (RFC 9113
// section 6.5.2), in bytes.
const fieldOverhead = 32

func (h *Head) reset() {
	clear(h.Fields) // they keep their strings
	*h = Head{Fields: h.Fields[:0]}
}

// manyFields is the number of fields from which the memory for them is in the memory budget, and
// is released when the next block of the connection has fewer fields. fieldSize is the memory for
// a field in addition to its name and its value, in bytes.
const (
	manyFields = 64
	fieldSize  = 48
)

// largeHead is the size from which a block is released immediately after it was handled, in
// bytes. A smaller one is kept until the next block, whose fields take its place.
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

// Take returns the fields for as long as the caller wants them, and leaves spare, of which
// only the memory matters, in their place.
func (h *Head) Take(spare []wire.Field) []wire.Field {
	fields := h.Fields
	h.Fields = spare[:0]
	return fields
}

// Stored returns the memory for the strings of the fields and the pseudo-header fields, in bytes. A
// long value that is repeated by an index of the HPACK table is stored once.
func (h *Head) Stored() int { return h.size - h.shared - fieldOverhead*len(h.Fields) }

// longValue is the length in bytes from which a value is looked up in longs. The dynamic table of
// 4 KiB can contain few values of this length.
const longValue = 512

// repeats reports whether value is the string of another value of the block. Such a value was
// validated before.
func (h *Head) repeats(value string) bool {
	for _, v := range h.longs {
		if len(v) == len(value) && unsafe.StringData(v) == unsafe.StringData(value) {
			return true
		}
	}
	return false
}

// Size returns the length of the block as RFC 9113 section 6.5.2 counts, in bytes.
func (h *Head) Size() int { return h.size }

// add takes a field as the decoder has it.
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

// addPseudo takes a pseudo-header field: once, and before all others (RFC 9113 section
// 8.3).
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
	if f.Value == "" { // which none of the others may be
		h.Malformed = h.Malformed || to != &h.Authority
		h.empty = true
	}
}

// readStatus reads the status of a response.
func (h *Head) readStatus() {
	status, err := strconv.Atoi(h.status)
	if err != nil || len(h.status) != 3 || status < 100 || status == http.StatusSwitchingProtocols {
		h.Malformed = true
		return
	}
	h.Status = status
}

// pseudo reports whether there are pseudo-header fields, which a trailer section must
// not have.
func (h *Head) pseudo() bool {
	return h.Method != "" || h.Scheme != "" || h.Authority != "" || h.Path != "" || h.Protocol != "" || h.status != ""
}

// validName reports whether a name is a token without upper case (RFC 9113 section
// 8.2.1).
func validName(name string) bool {
	for i := range len(name) {
		if c := name[i]; 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return wire.ValidToken(name)
}

// connectionSpecific reports whether a field is specific to a connection of HTTP/1.1 (RFC 9113 section
// 8.2.2). The names are in lower case, so the table of package header, which ignores case, is not used.
func connectionSpecific(name, value string) bool {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return true
	case "te":
		return value != "trailers"
	}
	return false
}
