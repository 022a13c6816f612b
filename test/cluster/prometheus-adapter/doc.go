// Package prometheusadapter pins the Prometheus adapter that `make cluster-full` starts. It has no code:
// the go.mod names the programs as tools, and test/cluster/build builds them.
package prometheusadapter
