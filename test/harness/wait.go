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

// ScaleTime runs a test of a short timeout of the proxy. try multiplies its times by scale,
// and returns false if the machine was too slow for them, so that the timeout expired in
// another place than the test needs. ScaleTime then doubles scale. A defect that does not
// depend on the machine fails at each scale. It fails the test if scale becomes 1024.
func ScaleTime(t testing.TB, try func(scale int) (inTime bool)) {
	t.Helper()
	for scale := 1; !try(scale); scale *= 2 {
		if scale == 512 {
			t.Fatalf("got an early timeout at scale %d, want an event before the timeout", scale)
		}
	}
}
