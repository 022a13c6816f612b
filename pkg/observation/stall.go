package observation

// A Stall is a transfer that a client stalls. Several timeouts have the reason IdleTimeout, and the
// Stall distinguishes them.
type Stall uint8

// Values of Stall.
const (
	NoStall       Stall = iota
	BodyStall           // the client does not send the next byte of the request body (Clocks.Body)
	ResponseStall       // the client does not read the response (Clocks.Send)
)
