package status

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// recently is the maximum age of the events that the status page and the command "why" report, such as a connection
// limit that was reached.
const recently = time.Hour

// Connections describes the connections of the process and their limits.
type Connections struct {
	OpenFilesLimit int         `json:"openFilesLimit"` // 0 means no limit
	Clients        bound.Pool  `json:"clients"`
	ClientsLimit   LimitSource `json:"clientsLimitSource,omitempty"` // empty if client connections have no limit
	App            bound.Pool  `json:"app"`                          // HTTP/1 connections to the user container
	Shortage       Shortage    `json:"shortage"`
}

// LimitSource is the setting or the resource that determines the limit on client connections.
type LimitSource string

// Values of LimitSource.
const (
	SourceSetting LimitSource = "MAX_CONNECTIONS"
	SourceMemory  LimitSource = "memory limit"
	SourceFiles   LimitSource = "limit on open files"
)

// action returns the action that raises the limit.
func (s LimitSource) action() string {
	raise := "Increase " + string(SourceSetting)
	switch s {
	case SourceMemory:
		raise = "Increase the memory limit of the sidecar, or set " + string(SourceSetting)
	case SourceFiles:
		raise = "Increase the limit on open files"
	}
	return "Idle connections are closed. " + raise + "."
}

// Shortage describes failures that occurred because the process had no file descriptor, local port, or
// memory for a socket.
type Shortage struct {
	Count uint64    `json:"count"`         // number of failures since the start of the process
	Time  time.Time `json:"time,omitzero"` // time of the latest failure; zero if there was none

	// The following fields describe the latest failure.
	Operation string `json:"operation,omitempty"`
	Resource  string `json:"resource,omitempty"` // for example "local ports"
	Error     string `json:"error,omitempty"`
	Hint      string `json:"hint,omitempty"` // sentence with the action that an operator can take
}
