package export

import (
	"cmp"
	"net/http"
	"strings"
	"time"
)

// Settings are the settings of Knative and OpenTelemetry for exporting one signal. A zero value
// means that the setting is not set.
type Settings struct {
	// Observability settings of Knative 1.19 and later.
	Protocol string
	Endpoint string

	// Settings from OpenTelemetry environment variables.
	Disabled  bool // overrides all other settings
	Timeout   time.Duration
	Collector Collector

	Resource Resource // describes this process
	OwnPorts []int    // see [Target]
}

// Target returns a target for a signal with the protocol None.
func (s *Settings) Target(signal Signal) Target {
	return Target{Protocol: None, Timeout: s.Timeout, Signal: signal, Resource: s.Resource, OwnPorts: s.OwnPorts}
}

// A Collector contains the OpenTelemetry settings for one signal.
type Collector struct {
	Endpoint     string // used unchanged; if empty, BaseEndpoint is used
	BaseEndpoint string // for all signals; the path of the signal is appended unless the protocol is grpc
	Protocol     string // grpc, http/protobuf, http/json or ""
	Header       http.Header
}

// Choose returns the protocol and the endpoint of a signal. The fields of c override the arguments.
// written is the endpoint as it was configured, without added parts.
func (c *Collector) Choose(protocol Protocol, endpoint string, s Signal) (_ Protocol, chosen, written string) {
	written = cmp.Or(c.Endpoint, c.BaseEndpoint, endpoint)
	if c.Protocol != "" {
		protocol = Protocol(c.Protocol)
	}
	switch {
	case c.Endpoint != "": // an endpoint without a path means the root path
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
