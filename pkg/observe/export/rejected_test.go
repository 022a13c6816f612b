package export

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// exportResponse describes the relevant part of Export...ServiceResponse in opentelemetry-proto. The
// generated Go package is not used because it depends on grpc-gateway.
var exportResponse = &descriptorpb.FileDescriptorProto{
	Name: proto.String("response.proto"), Syntax: proto.String("proto3"),
	MessageType: []*descriptorpb.DescriptorProto{
		{Name: proto.String("Partial"), Field: []*descriptorpb.FieldDescriptorProto{
			{Name: proto.String("rejected"), Number: proto.Int32(1), Type: descriptorpb.FieldDescriptorProto_TYPE_INT64.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()},
			{Name: proto.String("message"), Number: proto.Int32(2), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()},
		}},
		{Name: proto.String("Response"), Field: []*descriptorpb.FieldDescriptorProto{
			{Name: proto.String("partial"), Number: proto.Int32(1), Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: proto.String(".Partial"), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()},
		}},
	},
}

// FuzzRejected compares rejectedProto with the protobuf parser.
func FuzzRejected(f *testing.F) {
	f.Add([]byte("\x0a\x02\x08\x05"))
	f.Add([]byte("\x0a\x04\x12\x02no\x0a\x02\x08\x07"))
	f.Add([]byte("\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add([]byte("\x0a\x02\x08\x05\x0a\x03\x12\x01x"))
	file, err := protodesc.NewFile(exportResponse, nil)
	harness.NoError(f, err)
	response := file.Messages().ByName("Response")
	partial := response.Fields().ByName("partial")
	rejected := partial.Message().Fields().ByName("rejected")
	f.Fuzz(func(t *testing.T, answer []byte) {
		got := rejectedProto(answer)
		m := dynamicpb.NewMessage(response)
		if proto.Unmarshal(answer, m) != nil {
			if got < 0 {
				t.Errorf("%x: got %d rejected, want at least 0", answer, got)
			}
			return
		}
		want := min(max(m.Get(partial).Message().Get(rejected).Int(), 0), math.MaxInt32)
		harness.Equal(t, int64(got), want, answer, got, "rejected")
	})
}
