package export

import (
	"cmp"
	"net/http"
	"strings"
	"time"
)

// Settings are what Knative and OpenTelemetry say about sending one signal. Zero values
// are unset.
type Settings struct {
	// Of Knative from 1.19 on: its observability config.
	Protocol string
	Endpoint string

	// Of OpenTelemetry's variables.
	Disabled  bool // nothing is sent, whatever the others say
	Timeout   time.Duration
	Collector Collector

	Resource Resource // who sends
	OwnPorts []int    // see [Target]
}

// Target returns a target for a signal, which nothing is sent to yet.
func (s *Settings) Target(signal Signal) Target {
	return Target{Protocol: None, Timeout: s.Timeout, Signal: signal, Resource: s.Resource, OwnPorts: s.OwnPorts}
}

// A Collector is where OpenTelemetry's variables send one signal, and how.
type Collector struct {
	Endpoint     string // taken to the letter; "": BaseEndpoint's
	BaseEndpoint string // for all signals: the signal's path is added
	Protocol     string // grpc, http/protobuf, http/json or ""
	Header       http.Header
}

// Choose returns the protocol and the endpoint of a signal: those given, where no variable
// overrides them. written is the endpoint as somebody wrote it.
func (c *Collector) Choose(protocol Protocol, endpoint string, s Signal) (_ Protocol, chosen, written string) {
	written = cmp.Or(c.Endpoint, c.BaseEndpoint, endpoint)
	if c.Protocol != "" {
		protocol = Protocol(c.Protocol)
	}
	switch {
	case c.Endpoint != "": // without a path it is the root
		endpoint = c.Endpoint
		if target, err := resolve(c.Endpoint); err == nil && target.Path == "" {
			target.Path = "/"
			endpoint = target.String()
		}
	case c.BaseEndpoint != "":
		endpoint = c.BaseEndpoint
		if target, err := resolve(c.BaseEndpoint); err == nil && protocol != OTLPGRPC {
			target.Path = strings.TrimSuffix(target.Path, "/") + s.path
			target.RawPath = ""
			endpoint = target.String()
		}
	}
	return protocol, endpoint, written
}
