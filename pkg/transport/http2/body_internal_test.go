package http2

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// countingState counts the calls to AwaitBody. It does not implement the other methods of transport.State.
type countingState struct {
	transport.State
	awaited int
}

func (s *countingState) AwaitBody() { s.awaited++ }

// The client may have used its window, so the timeout for the body must not run.
func TestBlockedUploadDoesNotTimeOut(t *testing.T) {
	var s countingState
	b := &body{x: &exchange{state: &s}, held: 1}
	b.await()
	harness.Equal(t, s.awaited, 0, "calls while content waits for the user container")
	b.held = 0
	b.await()
	harness.Equal(t, s.awaited, 1, "calls without waiting content")
}
