package http2conn

import (
	"slices"
	"strconv"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// A Block is an encoded header block (RFC 7541). The encoder uses only the static table and has no state, so a block can
// be built by any goroutine and sent on any connection. Better compression is not needed, because the peers are usually
// in the same cluster. The zero value is an empty block. A Block must not be used concurrently.
type Block struct {
	b    []byte
	size int // size of the header list (RFC 9113 section 6.5.2), in bytes
}

// Reset empties the block.
func (k *Block) Reset() { k.b, k.size = k.b[:0], 0 }

// Grow reserves space for n more bytes.
func (k *Block) Grow(n int) { k.b = slices.Grow(k.b, n) }

// statuses contains the status codes of the static table in the order of their indexes, which start at 8 (RFC 7541
// appendix A).
var statuses = [...]int{200, 204, 206, 304, 400, 404, 500}

// Status adds the :status field of a response.
func (k *Block) Status(status int) {
	if i := slices.Index(statuses[:], status); i >= 0 {
		k.b = append(k.b, 0x80|byte(8+i))
		return
	}
	k.b = append(k.b, 8, 3)
	k.b = strconv.AppendInt(k.b, int64(status), 10)
}

// Request adds the pseudo-header fields of a request, with the scheme http.
func (k *Block) Request(method, authority, path string) {
	switch method {
	case "GET":
		k.b = append(k.b, 0x80|2)
	case "POST":
		k.b = append(k.b, 0x80|3)
	default:
		k.Field(":method", method)
	}
	k.b = append(k.b, 0x80|6)
	k.size = len(":method") + len(method) + fieldOverhead + len(":scheme") + len("http") + fieldOverhead
	k.Field(":authority", authority)
	k.Field(":path", path)
}

// Field adds a field and converts its name to lower case. It implements rewrite.Encoder.
func (k *Block) Field(name, value string) {
	b := append(k.b, 0)
	b = appendInteger(b, 0, 7, len(name))
	at := len(b)
	for i := range len(name) {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		b = append(b, c)
	}
	if index := staticIndex(wire.String(b[at:])); index > 0 {
		first := byte(0)
		if secret(index) {
			first = neverIndexed
		}
		b = appendInteger(k.b, first, 4, index)
	}
	b = appendInteger(b, 0, 7, len(value))
	k.b = append(b, value...)
	k.size += len(name) + len(value) + fieldOverhead
}

// Fields adds the given fields.
func (k *Block) Fields(fields []wire.Field) {
	for _, f := range fields {
		k.Field(wire.String(f.Name), wire.String(f.Value))
	}
}

// neverIndexed is the first byte of a literal field that is never indexed (RFC 7541 section 6.2.3). An intermediary must
// not add the field to a dynamic table, because an attacker could guess the value from the size of compressed headers
// (RFC 7541 section 7.1).
const neverIndexed = 0x10

func secret(index int) bool {
	switch index {
	case 23, 32, 49, 55: // authorization, cookie, proxy-authorization, set-cookie
		return true
	}
	return false
}

// appendInteger appends n as an integer with a prefix of the given number of bits (RFC 7541 section 5.1). first contains
// the other bits of the first byte.
func appendInteger(b []byte, first byte, bits uint, n int) []byte {
	most := 1<<bits - 1
	if n < most {
		return append(b, first|byte(n))
	}
	b = append(b, first|byte(most))
	for n -= most; n >= 128; n >>= 7 {
		b = append(b, byte(n)|128)
	}
	return append(b, byte(n))
}

// noTable is a dynamic table size update to 0 (RFC 7541 section 6.3). It is sent before the first header block and stays
// valid, because the peer cannot require a lower size later.
const noTable = 0x20

// staticIndex returns the first index of a field name in the static table (RFC 7541 appendix A), or
// 0. A switch is faster than a map, because the compiler compares the lengths first.
func staticIndex(name string) int {
	switch name {
	case ":authority":
		return 1
	case ":method":
		return 2
	case ":path":
		return 4
	case ":scheme":
		return 6
	case ":status":
		return 8
	case "accept-charset":
		return 15
	case "accept-encoding":
		return 16
	case "accept-language":
		return 17
	case "accept-ranges":
		return 18
	case "accept":
		return 19
	case "access-control-allow-origin":
		return 20
	case "age":
		return 21
	case "allow":
		return 22
	case "authorization":
		return 23
	case "cache-control":
		return 24
	case "content-disposition":
		return 25
	case "content-encoding":
		return 26
	case "content-language":
		return 27
	case "content-length":
		return 28
	case "content-location":
		return 29
	case "content-range":
		return 30
	case "content-type":
		return 31
	case "cookie":
		return 32
	case "date":
		return 33
	case "etag":
		return 34
	case "expect":
		return 35
	case "expires":
		return 36
	case "from":
		return 37
	case "host":
		return 38
	case "if-match":
		return 39
	case "if-modified-since":
		return 40
	case "if-none-match":
		return 41
	case "if-range":
		return 42
	case "if-unmodified-since":
		return 43
	case "last-modified":
		return 44
	case "link":
		return 45
	case "location":
		return 46
	case "max-forwards":
		return 47
	case "proxy-authenticate":
		return 48
	case "proxy-authorization":
		return 49
	case "range":
		return 50
	case "referer":
		return 51
	case "refresh":
		return 52
	case "retry-after":
		return 53
	case "server":
		return 54
	case "set-cookie":
		return 55
	case "strict-transport-security":
		return 56
	case "transfer-encoding":
		return 57
	case "user-agent":
		return 58
	case "vary":
		return 59
	case "via":
		return 60
	case "www-authenticate":
		return 61
	}
	return 0
}
