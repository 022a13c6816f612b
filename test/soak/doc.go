// Package soak runs the real binary under mixed traffic and faults for a long time,
// with everything switched on that it can tell: `make soak`, or
//
//	go test -tags soak -count=1 -timeout 0 -v ./test/soak -time 30m -seed 1
//
// Traffic and rest take turns. In each rest the counters of everybody must agree to
// the last request, what the sidecar holds must be what it held in the first rest,
// and its memory is measured; over all rests memory must not grow. A run that is
// long enough writes its tables into docs/reliability.md.
package soak
