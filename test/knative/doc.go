// Package knative runs the sidecar under Knative's own code: the activator, the
// autoscaler, the ingress prober, the reconciler that writes the environment of every
// queue-proxy container, and programs of Knative's end-to-end tests as user containers.
//
// The checks compile against each release that folders below this one name. Each is a
// module of its own, with that release's knative.dev/serving; where a release differs
// in the API, it says so in its Release.
//
// The sidecar is met from outside, as a program, with precisely the environment that
// Knative makes. Its ports are fixed, so all runs in a network namespace: see Main.
package knative
