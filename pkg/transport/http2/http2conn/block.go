package http2conn

import (
	"slices"
	"strconv"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// A Block is an encoded header block (RFC 7541). The encoder uses only the static table and has no state, so a block
// can be built by any goroutine and sent on any connection. Better compression is not needed, because the peers are
// usually in the same cluster. The zero value is an empty block. A Block must not be used concurrently.
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

// neverIndexed is the first byte of a literal field that is never indexed (RFC 7541 section 6.2.3). An intermediary
// must not add the field to a dynamic table, because an attacker could guess the value from the size of compressed
// headers (RFC 7541 section 7.1).
const neverIndexed = 0x10

func secret(index int) bool {
	switch index {
	case 23, 32, 49, 55: // authorization, cookie, proxy-authorization, set-cookie
		return true
	}
	return false
}

// appendInteger appends n as an integer with a prefix of the given number of bits (RFC 7541 section 5.1). first
// contains the other bits of the first byte.
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

// noTable is a dynamic table size update to 0 (RFC 7541 section 6.3). It is sent before the first header block and
// stays valid, because the peer cannot require a lower size later.
const noTable = 0x20

// staticIndex returns the first index of a field name in the static table, or 0.
func staticIndex(name string) int {
	row := staticNames[min(len(name), len(staticNames)-1)]
	for i := range row {
		// Compare the last bytes first, because they are different in most names of the same length.
		if s := &row[i]; s.name[len(name)-1] == name[len(name)-1] && s.name == name {
			return s.index
		}
	}
	return 0
}

type staticName struct {
	name  string
	index int
}

// staticNames contains the field names of the static table with their first index (RFC 7541 appendix A), indexed by
// their length. In each row, the names that are common in requests and responses come first.
var staticNames = [...][]staticName{
	3:  {{"age", 21}, {"via", 60}},
	4:  {{"date", 33}, {"host", 38}, {"etag", 34}, {"vary", 59}, {"from", 37}, {"link", 45}},
	5:  {{":path", 4}, {"allow", 22}, {"range", 50}},
	6:  {{"accept", 19}, {"cookie", 32}, {"server", 54}, {"expect", 35}},
	7:  {{"referer", 51}, {":method", 2}, {":scheme", 6}, {":status", 8}, {"expires", 36}, {"refresh", 52}},
	8:  {{"location", 46}, {"if-match", 39}, {"if-range", 42}},
	10: {{"user-agent", 58}, {"set-cookie", 55}, {":authority", 1}},
	11: {{"retry-after", 53}},
	12: {{"content-type", 31}, {"max-forwards", 47}},
	13: {{"cache-control", 24}, {"accept-ranges", 18}, {"authorization", 23}, {"content-range", 30}, {"if-none-match", 41}, {"last-modified", 44}},
	14: {{"content-length", 28}, {"accept-charset", 15}},
	15: {{"accept-encoding", 16}, {"accept-language", 17}},
	16: {{"content-encoding", 26}, {"content-language", 27}, {"content-location", 29}, {"www-authenticate", 61}},
	17: {{"if-modified-since", 40}, {"transfer-encoding", 57}},
	18: {{"proxy-authenticate", 48}},
	19: {{"content-disposition", 25}, {"if-unmodified-since", 43}, {"proxy-authorization", 49}},
	25: {{"strict-transport-security", 56}},
	27: {{"access-control-allow-origin", 20}},
	28: {},
}
