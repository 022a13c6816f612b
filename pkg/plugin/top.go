// Package plugin contains the parts of the kubectl plugin. It finds the sidecars in a list of pods,
// reads their metrics through the API server, compares two samples, and writes the table of the top
// command as text or as JSON. It also runs a command in the container of a sidecar.
//
// The functions for the table use no clock and no network. The caller passes the responses and the times.
package plugin
