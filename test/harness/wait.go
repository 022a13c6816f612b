// Package harness contains helpers that are shared by the tests of several packages: scripted
// apps, raw clients, HTTP/1.1 messages, HTTP/2 frames, certificates, comparisons, and waits
// with a timeout. Only tests import it. It imports no production code of this module, so the
// tests of every package can use it. Package test/proxytest starts the proxy between a client
// and an app.
package harness

import (
	"testing"
	"time"
)

// Patience is the maximum time that a test waits for an event. If the event does not occur in
// this time, the test fails. The value is large so that a test does not fail because the
// machine is slow. It must be less than TEST_TIMEOUT in the Makefile.
const Patience = 3 * time.Minute

// Until waits until condition returns true. The test fails after Patience. what describes the
// condition in the message.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout after %v: %s", Patience, what)
		}
	}
}

// Receive returns the next value from a channel, or the zero value if the channel is closed.
// The test fails after Patience.
func Receive[T any](t testing.TB, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(Patience):
		t.Fatalf("timeout after %v: %s", Patience, what)
	}
	return v
}

// Within calls f and returns its result. The test fails if f takes longer than Patience.
func Within[T any](t testing.TB, what string, f func() T) T {
	t.Helper()
	result := make(chan T, 1)
	go func() { result <- f() }()
	return Receive(t, result, what)
}

// ScaleTime runs a test of a short proxy timeout. try multiplies its durations by scale, and
// returns false if the timeout expired too early because the machine was too slow. ScaleTime then
// doubles scale and calls try again. A defect that does not depend on the speed of the machine
// occurs at each scale. The test fails if scale reaches 1024.
func ScaleTime(t testing.TB, try func(scale int) (inTime bool)) {
	t.Helper()
	for scale := 1; !try(scale); scale *= 2 {
		if scale == 512 {
			t.Fatalf("the timeout expired too early, even with all durations multiplied by %d", scale)
		}
	}
}
