// Package knative tests the sidecar with the code of Knative: the activator, the autoscaler,
// the ingress prober, the reconciler that creates the environment of queue-proxy containers,
// and programs of Knative's end-to-end tests as user containers.
//
// The checks run with each release that has a directory here. Each directory is a module with
// the knative.dev/serving of that release. The type Release contains the differences between
// their APIs.
//
// The sidecar runs as a process with exactly the environment that Knative generates. Its ports
// are fixed, so the tests run in a network namespace. See Main.
package knative
