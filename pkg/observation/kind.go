package observation

// A Kind is the type of a request. Only knative.KindOf determines the type.
type Kind uint8

// Values of Kind. The zero value corresponds to the last row of the table in docs/promises.md section 1.
// The other values are in the order of the table.
const (
	Traffic        Kind = iota // proxied, counted and limited
	QueueProbe                 // checks whether the user container can serve requests (activator, kubelet readiness)
	NetworkProbe               // checks whether the route exists (ingress reconciler)
	UnknownProbe               // a probe that the sidecar does not support
	KubeletRequest             // a liveness or startup probe, which is forwarded to the user container
)

func (k Kind) String() string {
	return [...]string{"traffic", "queue probe", "network probe", "unknown probe", "kubelet probe"}[k]
}

// Answered reports whether the sidecar itself responds to requests of this kind. Such requests are not
// forwarded to the user container, and they are neither limited nor included in the statistics.
func (k Kind) Answered() bool {
	return k == QueueProbe || k == NetworkProbe || k == UnknownProbe
}

// A Getter provides the header fields of a request. Header returns the first line of the named field
// without leading and trailing whitespace, or "" if there is none.
type Getter interface {
	Header(name string) string
}
