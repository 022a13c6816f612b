// Package cluster runs the shipped images in a real cluster, on one machine: `make
// cluster`, or
//
//	test/cluster/setup
//	go test -tags cluster -count=1 -v ./test/cluster [-run NAME]
//
// Kubernetes and Knative Serving are built from their Go modules; etcd, containerd, runc
// and the CNI plugins are the distribution's. All of it runs in network, mount and
// process namespaces of its own, which end with the test: however it ends, the kernel
// ends every process in them and removes every mount. What is left to remove is a
// folder and a cgroup.
//
// The first process of the namespaces is this program again, which only collects the
// processes that end; the tests are its child, and all daemons are theirs. So a test
// reaches pods, Services and the API server by their addresses.
package cluster
