package http2conn

import (
	"errors"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// The following bounds limit the control frames that a peer may send. Control frames are PING, PRIORITY, SETTINGS,
// WINDOW_UPDATE, frames of unknown types, empty DATA and CONTINUATION frames, and frames on closed streams. Useful
// frames are header blocks and DATA frames with content, in both directions.
//
// grpc-go sends one PING and two WINDOW_UPDATE frames for each DATA frame that it receives. Go's HTTP/2 client sends at
// most four WINDOW_UPDATE frames for each DATA frame that it receives.
const (
	controlBurst     = 10_000 // maximum burst of control frames
	controlRate      = 1000   // number of control frames per second
	controlPerUseful = 100    // number of additional control frames for each useful frame
	// maxControl is the maximum number of control frames that a refill adds to the budget because of useful frames. It
	// is large because a peer may send the control frames for received content much later, for example after a
	// pause or at the end of the stream. The default window of a stream allows 65,535 DATA frames of one byte.
	maxControl = 1_000_000
	// appFactor multiplies these bounds for the user container, which is in the same pod.
	appFactor = 10
	// A SETTINGS frame that changes the windows of open streams counts as one additional control frame for each
	// settingsStreams streams.
	settingsStreams = 16
)

// budget limits the control frames that the peer can send. It is owned by the reader goroutine.
type budget struct {
	left     int       // number of control frames until the next refill
	useful   uint64    // number of useful frames before the last refill
	refilled time.Time // time of the last refill
}

// factor returns the multiplier of the bounds for this peer.
func (c *Conn) factor() int {
	if c.config.Client {
		return appFactor
	}
	return 1
}

// countControl counts control frames. It returns an error if the peer has sent more control frames than the budget
// allows.
func (c *Conn) countControl(frames int) error {
	if c.budget.left -= frames; c.budget.left > 0 {
		return nil
	}
	return c.refill()
}

// refill increases the budget according to the time and the number of useful frames since the last refill. If the
// budget is still exhausted, it returns an error.
func (c *Conn) refill() error {
	c.mu.Lock()
	useful := c.received.Load() + c.sent
	c.mu.Unlock()
	now, b := time.Now(), &c.budget
	factor := c.factor()
	passed := int(min(now.Sub(b.refilled).Seconds()*controlRate, controlBurst)) * factor
	earned := int(min(useful-b.useful, maxControl/controlPerUseful)) * controlPerUseful * factor
	b.left = min(b.left+passed, controlBurst*factor) + earned
	if b.left <= 0 {
		return c.exceeded(bound.ControlFrames, bound.AppControlFrames, "too many control frames")
	}
	b.useful, b.refilled = useful, now
	return nil
}

// exceeded is like hitOf for a bound that closes the connection. It returns the connection error.
func (c *Conn) exceeded(client, app bound.Name, text string) error {
	c.hitOf(client, app)
	return fail(EnhanceYourCalm, text)
}

// hitOf records that the peer exceeded a bound. client is the name of the bound if the peer is a client, and app is the
// name if the peer is the user container.
func (c *Conn) hitOf(client, app bound.Name) {
	if c.config.Client {
		c.Hit(app)
	} else {
		c.Hit(client)
	}
}

// recordError records the error that ended the connection if it is a protocol violation by a client. It does not record
// a bound, because the bound was already recorded. It does not record errors of the user container, because the
// requests report them. wrong is the [Error] in err, or nil.
func (c *Conn) recordError(wrong *Error, err error) {
	violation := wrong != nil && wrong.Code != NoError && wrong.Code != EnhanceYourCalm && !errors.Is(err, errFrameTimeout)
	if !c.config.Client && (violation || errors.Is(err, errPreface)) {
		c.config.Bounds.Fail(bound.HTTP2Error, c.link.RemoteAddr().String(), err)
	}
}

// recordStreamError records a client error that causes a stream reset. It does not record errors of the user container,
// because the requests report them.
func (c *Conn) recordStreamError(err error) {
	if !c.config.Client {
		c.config.Bounds.Fail(bound.MalformedRequest, c.link.RemoteAddr().String(), err)
	}
}

// Hit records that the peer exceeded the given bound.
func (c *Conn) Hit(name bound.Name) { c.config.Bounds.Hit(name, c.link.RemoteAddr().String()) }
