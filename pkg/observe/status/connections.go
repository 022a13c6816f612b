package status

import (
	"fmt"
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
	Problems       []string   `json:"problems,omitempty"` // limits that were reached recently; set by the page
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

// problems describes the limits that were reached and the failures since now - recently. Each
// description ends with the action that an operator can take.
func (c *Connections) problems(now time.Time) (all []string) {
	ago := func(t time.Time) (since string, recent bool) {
		d := max(now.Sub(t), 0)
		return d.Round(time.Second).String() + " ago", d < recently
	}
	files := "no limit on open files"
	if c.OpenFilesLimit > 0 {
		files = fmt.Sprintf("limit on open files: %d", c.OpenFilesLimit)
	}
	if since, recent := ago(c.Shortage.Time); recent {
		s := &c.Shortage
		all = append(all, fmt.Sprintf("not enough resources for connections: %d times since the start, most recently %s: no %s left (%s: %s). %s",
			s.Count, since, s.Resource, s.Operation, s.Error, s.Hint))
	}
	if since, recent := ago(c.Clients.Reached); recent {
		all = append(all, fmt.Sprintf("client connections: limit of %d reached %s, %d open, %d waiting, %d evicted, total wait %.1f s (%s). Idle connections are closed. Raise MAX_CONNECTIONS or the limit on open files.",
			c.Clients.Limit, since, c.Clients.Open, c.Clients.Waiting, c.Clients.Evicted, c.Clients.Waited, files))
	}
	if since, recent := ago(c.App.Reached); recent {
		all = append(all, fmt.Sprintf("connections to the user container: limit of %d reached %s, %d open, %d requests waiting (%s). Raise the limit on open files.",
			c.App.Limit, since, c.App.Open, c.App.Waiting, files))
	}
	return all
}
