// Package soak runs the binary with mixed traffic and faults for a long time. All logs, metrics and traces are enabled. Run
// `make soak`, or
//
//	go test -tags soak -count=1 -timeout 0 -v ./test/soak -time 30m -seed 1
//
// There is a pause after each minute of traffic. In each pause, all counters must be equal, the sidecar must have as many
// goroutines and files as in the first pause, and its memory is measured. The memory must not grow during the run. A run of
// at least half an hour writes its tables into README.md.
package soak
