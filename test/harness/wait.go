// Package harness has what the tests of several packages share: an app that a test
// scripts byte by byte, a client whose bytes a test writes by hand, the messages
// between them as they stand on the wire, frames of HTTP/2, certificates, comparisons, and waiting
// with a bound. Only tests import it. It imports nothing of this module's production
// code, so that the tests inside any package may use it; test/proxytest starts the proxy
// that stands between a client and an app.
package harness

import (
	"testing"
	"time"
)

// Patience is the maximum time that a test waits for an event. If the event does not occur in
// this time, the test fails. The value is large so that a test does not fail because the
// machine is slow. It must be less than TEST_TIMEOUT in the Makefile.
const Patience = 3 * time.Minute

// Until waits until condition holds. It fails the test if that takes longer than
// Patience, with what in the message.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got no %s within %v", what, Patience)
		}
	}
}

// Receive returns the next value from a channel, or the zero value if it is closed. It
// fails the test if none comes within Patience.
func Receive[T any](t testing.TB, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(Patience):
		t.Fatalf("got no %s within %v", what, Patience)
	}
	return v
}

// Within returns what f returns. It fails the test if f takes longer than Patience.
func Within[T any](t testing.TB, what string, f func() T) T {
	t.Helper()
	result := make(chan T, 1)
	go func() { result <- f() }()
	return Receive(t, result, what)
}

// ScaleTime runs a test that uses a short timeout. It calls try with a scale of 1. The function
// try multiplies the timeout by the scale and returns false if the timeout expired too early
// because the machine is slow. ScaleTime then doubles the scale and calls try again. It fails
// the test if try returns false at a scale of 512. A test with a defect also fails, because
// the result of the defect is the same at each scale.
func ScaleTime(t testing.TB, try func(scale time.Duration) (inTime bool)) {
	t.Helper()
	for scale := time.Duration(1); !try(scale); scale *= 2 {
		if scale == 512 {
			t.Fatalf("got an early timeout at scale %d, want an event before the timeout", scale)
		}
	}
}
