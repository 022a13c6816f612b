package knative

import "strings"

import (
	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// KindOf returns the kind of a request. The kind depends only on the header fields, and not on the
// method or the target. The first matching rule applies (docs/promises.md section 1).
func KindOf(h observation.Getter) observation.Kind {
	switch h.Header(Probe) {
	case "":
	case QueueValue:
		return observation.QueueProbe
	case networkValue:
		return observation.NetworkProbe
	default:
		return observation.UnknownProbe
	}
	agent := h.Header(transport.UserAgent)
	if strings.HasPrefix(agent, activatorAgent) || strings.HasPrefix(agent, autoscalingAgent) {
		return observation.UnknownProbe
	}
	if strings.HasPrefix(agent, kubeletAgent) || h.Header(kubeletProbe) != "" {
		return observation.KubeletRequest
	}
	return observation.Traffic
}
