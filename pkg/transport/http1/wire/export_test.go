package wire

// Limits and functions for the tests.
const (
	MaxOptions    = maxOptions
	MaxConnection = maxConnection
	MaxTrailer    = maxTrailer
	MaxExtension  = maxExtension
)

// Unusual reports whether net/http may reject the request or parse it differently.
func (r *Request) Unusual() bool {
	h := &r.head
	ofField := len(r.Host) == 0 || len(h.host) > 0 && &r.Host[0] == &h.host[0]
	return h.unlisted || h.hosts > 0 && plainHost(h.host) < 0 || ofField && (string(r.Method) == "CONNECT" || r.Target[0] != '/')
}
