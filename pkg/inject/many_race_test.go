//go:build race

package inject

// many is how many random pods are made. Nothing here runs at the same time as anything
// else, and the race detector makes each pod five times as dear.
const many = 1_000
