// Package top makes a table out of what sidecars say of themselves: which containers of a list
// of pods are sidecars, what stands in their metrics, what two samples tell about the time
// between them, and how rows look on a screen, as text and as JSON.
//
// It asks nobody and has no clock: who uses it brings the answers and the times.
package top
