// Package e2e runs the shipped images in real containers: `make e2e`, or
//
//	test/e2e/setup
//	go test -tags e2e -count=1 -v ./test/e2e [-run TestFaults -fault NAME -seed N]
//
// The pod is what the shipped injector makes of a manifest; podman starts it, and
// the test plays the kubelet: it asks the readiness probe of the pod's spec, calls
// the preStop hooks, sends the signals and starts again what has died. It stays in
// its own namespaces, but its sockets are made in the pod's, which has a loopback
// interface and nothing else.
//
// Without root, podman or the images the tests fail: a proof that was not made is
// none.
package e2e
