// Package kubernetes pins the Kubernetes that `make cluster` starts. It has no code:
// the go.mod names the programs as tools, and test/cluster/build builds them.
package kubernetes
