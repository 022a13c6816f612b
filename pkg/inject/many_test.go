//go:build !race

package inject

// many is how many random pods are made.
const many = 10_000
