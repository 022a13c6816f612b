package export

import (
	"encoding/json"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// fieldOf returns the value of a field in an encoded message: the last number of a
// varint, the contents of messages one after another, which is how they are merged. A
// message that is broken has what stands before the break. The generated messages of
// these answers would bring grpc.
func fieldOf(m []byte, field protowire.Number) (number uint64, content []byte) {
	for len(m) > 0 {
		n, kind, size := protowire.ConsumeTag(m)
		if size < 0 {
			return number, content
		}
		m = m[size:]
		if size = protowire.ConsumeFieldValue(n, kind, m); size < 0 {
			return number, content
		}
		switch {
		case n == field && kind == protowire.VarintType:
			number, _ = protowire.ConsumeVarint(m)
		case n == field && kind == protowire.BytesType:
			b, _ := protowire.ConsumeBytes(m)
			content = append(content, b...)
		}
		m = m[size:]
	}
	return number, content
}

// rejectedProto returns how many spans or points the answer to an export rejects: Export...ServiceResponse{partial_success = 1 {rejected_... = 1}}.
func rejectedProto(answer []byte) int {
	_, partial := fieldOf(answer, 1)
	rejected, _ := fieldOf(partial, 1)
	return int(min(max(int64(rejected), 0), math.MaxInt32))
}

// rejectedJSON is rejectedProto of OTLP/HTTP with JSON, by which spans alone are sent.
func rejectedJSON(answer []byte) int {
	var v struct {
		PartialSuccess struct {
			RejectedSpans json.Number `json:"rejectedSpans"` // a string by protobuf's rules, a number by some
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(answer, &v) != nil {
		return 0
	}
	n, err := v.PartialSuccess.RejectedSpans.Int64()
	if err != nil {
		return 0
	}
	return int(max(n, 0))
}
