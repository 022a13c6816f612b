// Package kubernetes pins the version of Kubernetes for `make cluster`. It contains no code:
// go.mod lists the programs as tools, and test/cluster/build builds them.
package kubernetes
