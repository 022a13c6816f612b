package export

import (
	"net/http"
	"strings"
)

// A Collector is where OpenTelemetry's variables send one signal, and how.
type Collector struct {
	Endpoint     string // taken to the letter; "": BaseEndpoint's
	BaseEndpoint string // for all signals: the signal's path is added
	Protocol     string // grpc, http/protobuf, http/json or ""
	Header       http.Header
}

// Choose returns the protocol and the endpoint of a signal: those given, where no variable
// overrides them.
func (c *Collector) Choose(protocol Protocol, endpoint string, s Signal) (Protocol, string) {
	if c.Protocol != "" {
		protocol = Protocol(c.Protocol)
	}
	switch {
	case c.Endpoint != "": // without a path it is the root
		endpoint = c.Endpoint
		if target, err := Resolve(c.Endpoint); err == nil && target.Path == "" {
			target.Path = "/"
			endpoint = target.String()
		}
	case c.BaseEndpoint != "":
		endpoint = c.BaseEndpoint
		if target, err := Resolve(c.BaseEndpoint); err == nil && protocol != OTLPGRPC {
			target.Path = strings.TrimSuffix(target.Path, "/") + s.path
			target.RawPath = ""
			endpoint = target.String()
		}
	}
	return protocol, endpoint
}
