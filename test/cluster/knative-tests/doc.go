// Package knative pins the version of Knative's tests for `make cluster-full`. It contains no
// code: go.mod lists the programs of the test images as tools, and test/cluster/build builds
// them and the tests.
package knative
