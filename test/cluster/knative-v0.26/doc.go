// Package knative pins Knative Serving of the release 0.26, for `make cluster-full`. It
// has no code: the go.mod names the programs as tools, and test/cluster/build builds them.
package knative
