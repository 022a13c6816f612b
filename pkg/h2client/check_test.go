package h2client_test

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/h2"
	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Responses of gRPC say no length. To look for one allocated an error for each.
func TestAHeadWithoutALengthAllocatesNothing(t *testing.T) {
	head := &h2.Head{Status: 200, Fields: []wire.Field{{Name: []byte("content-type"), Value: []byte("application/grpc")}}}
	got := testing.AllocsPerRun(100, func() {
		var k h2client.Check
		if err := k.Head(head, false); err != nil || k.Length != -1 {
			t.Errorf("got a length of %d and %v, want -1 and no error", k.Length, err)
		}
	})
	harness.Equal(t, got, 0, "allocations")
}
