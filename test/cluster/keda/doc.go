// Package keda pins the version of KEDA for `make cluster-full`. It contains no code: go.mod
// lists the programs as tools, and test/cluster/build builds them.
package keda
