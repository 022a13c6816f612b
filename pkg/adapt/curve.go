package adapt

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// The levels of a [Curve]: each number of requests in flight up to 16, then eight for each
// doubling, up to 1024 and more.
const (
	exact       = 16
	perDoubling = 8
	numLevels   = exact + 6*perDoubling
)

// AgeInterval is how often [Curve.Age] is to be called. It makes what was seen five
// minutes ago count for half of what is seen now.
const AgeInterval = 30 * time.Second

const (
	agePart     = 16 // of which one part is forgotten each time
	longestTook = time.Minute
)

// A Curve is how long requests took by how many were in flight when they came. It has a
// fixed size, and its methods may be called concurrently.
type Curve struct {
	levels [numLevels]struct{ requests, micros atomic.Uint64 }
}

// Note notes a request that went through, which costs two atomic additions: how many were in
// flight when it came, itself included, and how long it was in the app. Streams
// are not to be noted.
func (c *Curve) Note(inFlight int, took time.Duration) {
	if inFlight < 1 {
		return
	}
	level := &c.levels[levelOf(inFlight)]
	level.requests.Add(1)
	level.micros.Add(uint64(max(0, min(took, longestTook)).Microseconds()))
}

func levelOf(n int) int {
	if n <= exact {
		return n - 1
	}
	doubling := bits.Len(uint(n-1)) - bits.Len(exact-1) // of exact, that n lies in
	base := exact << (doubling - 1)
	return min(exact+(doubling-1)*perDoubling+(n-1-base)*perDoubling/base, numLevels-1)
}

// middleOf returns the number of requests that a level stands for.
func middleOf(level int) float64 {
	if level < exact {
		return float64(level + 1)
	}
	doubling, part := (level-exact)/perDoubling, (level-exact)%perDoubling
	base := float64(int(exact) << doubling)
	return base + base/perDoubling*(float64(part)+0.5) + 0.5
}

// Age forgets a part of what was seen.
func (c *Curve) Age() {
	for i := range c.levels {
		l := &c.levels[i]
		n, t := l.requests.Load(), l.micros.Load()
		// Rounded up, so that what is old goes altogether.
		l.requests.Add(-((n + agePart - 1) / agePart))
		l.micros.Add(-((t + agePart - 1) / agePart))
	}
}

// fewest is the number of requests of a place on the curve.
const fewest = 100

// A Seen describes the requests with a number of requests in flight.
type Seen struct {
	InFlight   float64 `json:"inFlight"`
	Requests   uint64  `json:"requests"`   // of late; old ones are forgotten
	AppTime    float64 `json:"appTimeMs"`  // mean
	Throughput float64 `json:"throughput"` // requests a second, if so many were in flight all the time
}

// Seen returns the curve, in ascending order. Levels with few requests are joined to the
// next.
func (c *Curve) Seen() (all []Seen) {
	var requests, micros uint64
	var inFlight float64
	for i := range c.levels {
		n, t := c.levels[i].requests.Load(), c.levels[i].micros.Load()
		requests, micros, inFlight = requests+n, micros+t, inFlight+float64(n)*middleOf(i)
		if requests < fewest || micros == 0 {
			continue
		}
		s := Seen{InFlight: inFlight / float64(requests), Requests: requests, AppTime: float64(micros) / float64(requests) / 1000}
		s.Throughput = 1000 * s.InFlight / s.AppTime
		all = append(all, s)
		requests, micros, inFlight = 0, 0, 0
	}
	return all
}

// An Advice contains the settled limit.
type Advice struct {
	Limit  int    `json:"limit"` // 0: unknown
	Reason string `json:"reason"`
	Seen   []Seen `json:"seen"` // ascending
}

// settledReason is the reason for an advice.
const settledReason = "a lower and a higher limit were tried, and both are worse"

// fixedReason is the reason for which there is no advice if the limit is fixed.
const fixedReason = "the limit is fixed, so that no other limit was tried"

// Advise returns the limit that the state of an adaptive limit recommends, or the data that
// is missing. adaptive is false if the limit is fixed.
func Advise(s State, adaptive bool) Advice {
	switch {
	case !adaptive:
		return Advice{Reason: fixedReason}
	case s.Settled == 0:
		return Advice{Reason: s.Missing}
	}
	return Advice{Limit: s.Settled, Reason: settledReason}
}
