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
