// Package streams checks the HTTP/2 server and the HTTP/2 client of the sidecar against the
// stream states of RFC 9113 section 5.1. The tests enumerate short schedules of events, run
// each schedule over loopback connections between a scripted client and a scripted
// application, and compare the frames that both peers receive with the prediction of a model.
package streams_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
