package header

import "strings"

// Kind says what a request is. It is decided by [KindOf] and nowhere else.
type Kind uint8

// The kinds: the last row of docs/promises.md section 1, which is the zero value,
// then the others in their order.
const (
	Traffic        Kind = iota // proxied, counted and limited
	QueueProbe                 // may the user container serve? (activator, kubelet readiness)
	NetworkProbe               // is the route there? (ingress reconciler)
	UnknownProbe               // a probe that is not for us
	KubeletRequest             // liveness and the like, sent through the proxy to the user container
)

func (k Kind) String() string {
	return [...]string{"traffic", "queue probe", "network probe", "unknown probe", "kubelet probe"}[k]
}

// Answered reports whether the sidecar answers this kind itself, so that the
// user container, the limit and the statistics never see it.
func (k Kind) Answered() bool {
	return k == QueueProbe || k == NetworkProbe || k == UnknownProbe
}

// A Getter returns the first line of the named field with blanks trimmed, or ""
// when there is none.
type Getter interface {
	Header(name string) string
}

// KindOf classifies a request. Only fields decide; method and target never do.
// The first rule that holds wins (docs/promises.md section 1).
func KindOf(h Getter) Kind {
	switch h.Header(Probe) {
	case "":
	case QueueValue:
		return QueueProbe
	case networkValue:
		return NetworkProbe
	default:
		return UnknownProbe
	}
	agent := h.Header(UserAgent)
	if strings.HasPrefix(agent, activatorAgent) || strings.HasPrefix(agent, autoscalingAgent) {
		return UnknownProbe
	}
	if strings.HasPrefix(agent, kubeletAgent) || h.Header(kubeletProbe) != "" {
		return KubeletRequest
	}
	return Traffic
}
