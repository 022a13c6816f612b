// Package cluster runs the images in a real cluster on one machine (`make cluster`, or the
// following commands).
//
//	test/cluster/setup
//	go test -tags cluster -count=1 -v ./test/cluster [-run NAME]
//
// Kubernetes and Knative Serving are built from their Go modules. etcd, containerd, runc and
// the CNI plugins are packages of the distribution. All programs run in new network, mount and
// process namespaces. When the test ends for any reason, the kernel kills all processes and
// removes all mounts in the namespaces. Only a directory and a cgroup remain to be removed.
//
// The first process in the namespaces is this program, which only reaps processes. The tests
// are its child, and the daemons are children of the tests. Therefore a test can access pods,
// Services and the API server by their addresses.
package cluster
