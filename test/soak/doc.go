// Package soak runs the binary with mixed traffic and faults for a long time. All logs, metrics and traces are enabled. Run
// `make soak`, or
//
//	go test -tags soak -count=1 -timeout 0 -v ./test/soak -time 30m -seed 1
//
// There is a pause after each minute of traffic. In each pause, the test measures the memory of the sidecar. All
// counters must agree, and the numbers of goroutines and files must be the same as in the first pause. The memory
// must not grow during the run. A run of at least half an hour writes its tables to results.txt.
package soak
