package observation

// A Phase describes the progress of a request.
type Phase uint32

// Values of Phase in the order in which they occur.
const (
	Queued    Phase = iota // the request waits for a slot
	Dialling               // the request has a slot, but no connection
	Waiting                // at least part of the request was sent, and the response has not begun
	Streaming              // the response has begun
	Tunnelled              // the connection was upgraded and transfers bytes in both directions
)

func (p Phase) String() string {
	return [...]string{"queued", "dialling", "waiting", "streaming", "streaming"}[p]
}
