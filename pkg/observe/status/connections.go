package status

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// recently is the time for which the status page and why report that a limit was reached.
const recently = time.Hour

// Connections describes the connections of the process and their limits.
type Connections struct {
	OpenFilesLimit int        `json:"openFilesLimit"` // 0 means no limit
	Clients        bound.Pool `json:"clients"`
	App            bound.Pool `json:"app"` // HTTP/1 connections to the user container
	Shortage       Shortage   `json:"shortage"`
}

// Shortage describes failures because the process had no file descriptor, no local port, or no memory
// for a socket.
type Shortage struct {
	Count uint64    `json:"count"`         // since the start of the process
	Time  time.Time `json:"time,omitzero"` // time of the latest failure; zero if there was none

	// The following fields describe the latest failure.
	Operation string `json:"operation,omitempty"`
	Resource  string `json:"resource,omitempty"` // for example "local ports"
	Error     string `json:"error,omitempty"`
	Hint      string `json:"hint,omitempty"` // sentence with the action that an operator can take
}
