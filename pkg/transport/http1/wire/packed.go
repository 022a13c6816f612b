package wire

import (
	"encoding/binary"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// Packed contains fields in a compact format: for each field, the length and the bytes of its name and of its value.
// In addition to its name and its value, a [Field] takes 48 bytes, and a packed field takes 2 to 6 bytes. A nil
// Packed has no fields.
type Packed []byte

// PackedSize returns the length of the packed fields in bytes.
func PackedSize(fields []Field) (n int) {
	for i := range fields {
		n += packedSize(len(fields[i].Name)) + packedSize(len(fields[i].Value))
	}
	return n
}

func packedSize(n int) int {
	size := n + 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

// Pack appends fields to p. It copies their names and values.
func (p Packed) Pack(fields []Field) Packed {
	for i := range fields {
		p = binary.AppendUvarint(p, uint64(len(fields[i].Name)))
		p = append(p, fields[i].Name...)
		p = binary.AppendUvarint(p, uint64(len(fields[i].Value)))
		p = append(p, fields[i].Value...)
	}
	return p
}

// Unpack appends the fields in p to fields. The appended fields refer to the memory of p.
func (p Packed) Unpack(fields []Field) []Field {
	for len(p) > 0 {
		var f Field
		f, p = p.next()
		fields = append(fields, f)
	}
	return fields
}

// next returns the first field of p and the rest of p.
func (p Packed) next() (f Field, rest Packed) {
	f.Name, p = p.cut()
	f.Value, p = p.cut()
	return f, p
}

func (p Packed) cut() ([]byte, Packed) {
	n, size := binary.Uvarint(p)
	end := size + int(n)
	return p[size:end:end], p[end:]
}

// Find is like the function [Find] for the fields in p.
func (p Packed) Find(name string) (value []byte, ok bool) {
	for len(p) > 0 {
		var f Field
		if f, p = p.next(); transport.EqualFold(f.Name, name) {
			return f.Value, true
		}
	}
	return nil, false
}

// Repeats is like the function [Repeats] for the fields in p.
func (p Packed) Repeats(name string) bool {
	seen := false
	for len(p) > 0 {
		var f Field
		if f, p = p.next(); transport.EqualFold(f.Name, name) {
			if seen {
				return true
			}
			seen = true
		}
	}
	return false
}
