// Package knative pins Knative's own tests, for `make cluster-full`. It has no code: the
// go.mod names the programs of their test images as tools, and test/cluster/build builds
// those and the tests.
package knative
