package tracing

import (
	"encoding/binary"
	"math"
)

// Wire types of protobuf (protobuf.dev/programming-guides/encoding).
const (
	varint          = 0
	fixed64         = 1
	lengthDelimited = 2
	fixed32         = 5
)

// A message is a protobuf message that is being written. Its methods append a field
// by its number; as in proto3 those that are zero are left out, but for the Always
// ones.
type message []byte

func (m *message) tag(field, wire int) {
	*m = binary.AppendUvarint(*m, uint64(field)<<3|uint64(wire))
}

func (m *message) uint(field int, v uint64) {
	if v != 0 {
		m.uintAlways(field, v)
	}
}

func (m *message) uintAlways(field int, v uint64) {
	m.tag(field, varint)
	*m = binary.AppendUvarint(*m, v)
}

func (m *message) fixed64(field int, v uint64) {
	if v != 0 {
		m.fixed64Always(field, v)
	}
}

func (m *message) fixed64Always(field int, v uint64) {
	m.tag(field, fixed64)
	*m = binary.LittleEndian.AppendUint64(*m, v)
}

func (m *message) doubleAlways(field int, v float64) { m.fixed64Always(field, math.Float64bits(v)) }

func (m *message) fixed32(field int, v uint32) {
	if v != 0 {
		m.tag(field, fixed32)
		*m = binary.LittleEndian.AppendUint32(*m, v)
	}
}

func (m *message) bytes(field int, v []byte) {
	if len(v) > 0 {
		m.tag(field, lengthDelimited)
		*m = binary.AppendUvarint(*m, uint64(len(v)))
		*m = append(*m, v...)
	}
}

func (m *message) string(field int, v string) {
	if v != "" {
		m.stringAlways(field, v)
	}
}

func (m *message) stringAlways(field int, v string) {
	m.tag(field, lengthDelimited)
	*m = binary.AppendUvarint(*m, uint64(len(v)))
	*m = append(*m, v...)
}

// nested writes a message in a field of this one. Its length, which stands before it,
// is known only afterwards.
func (m *message) nested(field int, write func(*message)) {
	m.tag(field, lengthDelimited)
	start := len(*m)
	write(m)
	size := len(*m) - start
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(size))
	*m = append(*m, length[:n]...)
	copy((*m)[start+n:], (*m)[start:start+size])
	copy((*m)[start:], length[:n])
}

// packedFixed64 writes a repeated field of fixed64 or double.
func (m *message) packedFixed64(field int, vs []uint64) {
	if len(vs) == 0 {
		return
	}
	m.tag(field, lengthDelimited)
	*m = binary.AppendUvarint(*m, uint64(8*len(vs)))
	for _, v := range vs {
		*m = binary.LittleEndian.AppendUint64(*m, v)
	}
}

// fieldOf returns the value of a field in an encoded message: the last number of a
// varint, the contents of messages one after another, which is how they are merged. A
// message that is broken has what stands before the break.
func fieldOf(m []byte, field uint64) (number uint64, content []byte) {
	for len(m) > 0 {
		tag, n := binary.Uvarint(m)
		if n <= 0 {
			return number, content
		}
		m = m[n:]
		size := uint64(0)
		switch tag & 7 {
		case varint:
			v, n := binary.Uvarint(m)
			if n <= 0 {
				return number, content
			}
			if tag>>3 == field {
				number = v
			}
			size = uint64(n)
		case fixed64:
			size = 8
		case fixed32:
			size = 4
		case lengthDelimited:
			length, n := binary.Uvarint(m)
			if n <= 0 || length > uint64(len(m)-n) {
				return number, content
			}
			m, size = m[n:], length
			if tag>>3 == field {
				content = append(content, m[:size]...)
			}
		default:
			return number, content
		}
		if size > uint64(len(m)) {
			return number, content
		}
		m = m[size:]
	}
	return number, content
}

// rejectedProto returns how many spans or points the answer to an export says were
// refused: Export...ServiceResponse{partial_success = 1 {rejected_... = 1}}.
func rejectedProto(answer []byte) int {
	_, partial := fieldOf(answer, 1)
	rejected, _ := fieldOf(partial, 1)
	return int(min(max(int64(rejected), 0), math.MaxInt32))
}
