package adapt

import (
	"fmt"
	"math"
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

// What an advice is made of.
const (
	fewest      = 100  // requests of a place on the curve
	nearlyAll   = 0.95 // of the greatest throughput that the limit must bring
	beyond      = 1.25 // times the limit: requests there say that throughput has stopped growing
	farBeyond   = 1.5
	together    = 1.2 // times as many in flight
	mediumCount = 300 // requests beyond
	highCount   = 2000
)

// Sureness is how sure an advice is.
type Sureness string

// The degrees of sureness.
const (
	No     Sureness = "no" // there is no advice
	Low    Sureness = "low"
	Medium Sureness = "medium"
	High   Sureness = "high"
)

// A Seen is what was seen with so many requests in flight.
type Seen struct {
	InFlight   float64 `json:"inFlight"`
	Requests   uint64  `json:"requests"`   // of late; old ones are forgotten
	AppTime    float64 `json:"appTimeMs"`  // mean
	Throughput float64 `json:"throughput"` // requests a second, if so many were in flight all the time
}

// An Advice says which limit would have been right.
type Advice struct {
	Limit  int      `json:"limit"` // 0: it cannot be told
	Sure   Sureness `json:"sure"`
	Reason string   `json:"reason"`
	Seen   []Seen   `json:"seen"` // the fewest first
}

// seen returns the curve, with levels that few requests came at joined to the next.
func (c *Curve) seen() (all []Seen) {
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

// greatest returns the greatest throughput: of places near one another together, because
// one of many places always looks better than it is.
func greatest(seen []Seen) (most float64) {
	for _, middle := range seen {
		var requests, weighted float64
		for _, s := range seen {
			if s.InFlight <= together*middle.InFlight && s.InFlight*together >= middle.InFlight {
				requests += float64(s.Requests)
				weighted += float64(s.Requests) * s.Throughput
			}
		}
		most = max(most, weighted/requests*(1-1/math.Sqrt(requests)))
	}
	return most
}

// Advice says from what was seen which limit would have been right: the least with which
// throughput is nearly as great as with any.
func (c *Curve) Advice() Advice {
	seen := c.seen()
	a := Advice{Sure: No, Seen: seen}
	if len(seen) == 0 {
		a.Reason = "too few requests were seen"
		return a
	}
	most := greatest(seen)
	knee := 0
	for knee < len(seen)-1 && seen[knee].Throughput < nearlyAll*most {
		knee++
	}
	at, top := seen[knee], seen[len(seen)-1]
	count := uint64(0)
	for _, s := range seen[knee:] {
		if s.InFlight >= beyond*at.InFlight {
			count += s.Requests
		}
	}
	switch {
	case knee == 0 && at.InFlight > 1:
		a.Reason = fmt.Sprintf("fewer than %.0f in flight were hardly seen, so throughput may have stopped growing before", at.InFlight)
	case count == 0:
		a.Reason = fmt.Sprintf("more than %.0f in flight were hardly seen, so throughput may still grow there", top.InFlight)
	default:
		a.Limit, a.Sure = int(math.Round(at.InFlight)), Low
		if count >= mediumCount {
			a.Sure = Medium
		}
		if count >= highCount && top.InFlight >= farBeyond*at.InFlight {
			a.Sure = High
		}
		a.Reason = fmt.Sprintf("at %d in flight throughput stopped growing", a.Limit)
	}
	return a
}
