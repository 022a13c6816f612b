// Package prometheusadapter pins the version of the Prometheus adapter for `make cluster-full`.
// It contains no code: go.mod lists the programs as tools, and test/cluster/build builds them.
package prometheusadapter
