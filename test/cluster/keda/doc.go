// Package keda pins the KEDA that `make cluster-full` starts. It has no code:
// the go.mod names the programs as tools, and test/cluster/build builds them.
package keda
