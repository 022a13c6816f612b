// Package top computes the table of sidecars for the kubectl plugin. It finds the sidecars in a list of pods,
// parses their metrics, computes rates and percentiles from two samples, and formats the rows as text and JSON.
//
// It does not send requests and does not read the time. The caller provides the responses and the times.
package top
