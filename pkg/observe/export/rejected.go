package export

import (
	"encoding/json"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// fieldOf returns the value of a field in an encoded message. For a varint, number is the last
// value. For messages, content is the concatenation of all values, which is how protobuf merges
// messages. If m is malformed, only the part before the error is used. The generated Go types of these
// messages are not used, because they depend on grpc.
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

// rejectedProto returns the number of spans or points that a collector rejected. answer is an
// encoded Export...ServiceResponse{partial_success = 1 {rejected_... = 1}}.
func rejectedProto(answer []byte) int {
	_, partial := fieldOf(answer, 1)
	rejected, _ := fieldOf(partial, 1)
	return int(min(max(int64(rejected), 0), math.MaxInt32))
}

// rejectedJSON is like rejectedProto for OTLP/HTTP with JSON, which is used only for spans.
func rejectedJSON(answer []byte) int {
	var v struct {
		PartialSuccess struct {
			RejectedSpans json.Number `json:"rejectedSpans"` // a string in the JSON format of protobuf, but some collectors send a number
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
