// Package e2e runs the images in real containers (`make e2e`, or the following commands).
//
//	test/e2e/setup
//	go test -tags e2e -count=1 -v ./test/e2e [-run TestFaults -fault NAME -seed N]
//
// The injector creates the pod from a manifest, and podman starts it. The test performs the
// actions of the kubelet: it runs the readiness probe and the preStop hooks, sends the signals,
// and restarts containers that have exited. The clients' sockets are in the pod's network
// namespace, which has only a loopback interface.
//
// The tests require root, podman and the images. Otherwise they fail.
package e2e
