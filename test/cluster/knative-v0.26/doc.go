// Package knative pins Knative Serving 0.26 for `make cluster-full`. It contains no code:
// go.mod lists the programs as tools, and test/cluster/build builds them.
package knative
