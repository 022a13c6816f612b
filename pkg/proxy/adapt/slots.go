package adapt

import (
	"math"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// A request is long after longTimes times the typical application time, but not before shortestLong.
const (
	shortestLong = 200 * time.Millisecond
	longTimes    = 10 // multiple of the typical application time
)

// A Result describes how a request ended.
type Result uint8

// Values of [Result].
const (
	Answered   Result = iota // the application responded
	Failed                   // the application responded with an error that load can cause
	TimedOut                 // the application did not respond in time; End replaces it with Unknown if the client may be the cause
	Late                     // the application responded after the client disconnected
	Unfinished               // the request ended before the application responded; the true application time is longer
	Unknown                  // the end of the request does not depend on the application
)

// A Slot is the state that a [Limiter] keeps for a request. The zero value is ready to use.
// A Slot may be reused after [Limiter.End].
type Slot struct {
	active     bool          // the request holds the slot; true from Admit to End
	since      time.Time     // when the request got the slot
	client     time.Duration // total time that the request waited for its client
	waiting    time.Time     // when the request began to wait for the client; zero if it is not waiting
	exempt     Exemption     // Counted, Stream or Long; Client is derived from waiting
	counted    bool          // the request counts toward the adaptive limit
	longPath   bool          // most requests of the path are long, so the request was never counted
	path       uint32        // hash of the path; 0 means unknown
	prev, next *Slot         // links in the list of [Limiter]; used if exempt is Counted
}

// An Exemption is the reason why a request counts only toward the ceiling.
type Exemption uint8

// Values of [Exemption].
const (
	Counted Exemption = iota // the request counts toward the adaptive limit
	Stream                   // the request is an upgraded connection or an event stream
	Long                     // the request, or most requests for its path, take much longer than the typical application time
	Client                   // the request waits for its client to send the request body or to read the response
)

// String returns the exemption as shown to users.
func (e Exemption) String() string {
	return [...]string{"counted", "stream", "long", "waits for the client"}[e]
}

// Exemption returns the reason why the request does not count toward the adaptive limit.
func (s *Slot) Exemption() Exemption {
	if s.exempt == Counted && !s.waiting.IsZero() {
		return Client
	}
	return s.exempt
}

// A Limiter is a concurrency limit that adapts to the application. It counts the requests
// that hold a slot, and limits the number of requests that are running in the application.
// All requests that hold a slot count toward the ceiling.
//
// Its methods must not be called concurrently.
type Limiter struct {
	controller controller
	running    int // number of requests that hold a slot
	counted    int // number of requests that count toward the adaptive limit

	oldest, newest *Slot         // list of all requests except streams and long requests
	longAfter      time.Duration // application time after which a request is long
	responded      bool          // a response has arrived since Tick last exempted a long request
	typical        float64       // estimated lower quartile of the application time in seconds, excluding streams and paths with mostly long requests
	increased      time.Time     // last time that typical was increased
	shortened      time.Time     // end of the last request with an application time of at most typical
	credit         float64       // maximum increase of log(typical)
	polls          int           // number of running requests for paths with mostly long requests
	polledAt       time.Time     // last time that a poll ended while many polls were running
	paths          paths
}

// New returns a limiter.
func New(s Settings) *Limiter {
	return &Limiter{controller: newController(s), longAfter: shortestLong, typical: shortestLong.Seconds() / longTimes}
}

// mostExempt is the maximum ratio of the number of exempt requests to the base. Above this ratio, the
// limit is not reported as settled, because a fixed limit would count the exempt requests.
const mostExempt = 0.1

// After one of many polls has ended, the limit is not reported as settled for the duration pollAge.
// Clients usually send the next polls within this time. A poll is a request for a path with mostly
// long requests.
const pollAge = time.Minute

// State returns the state of the limit for the status page and for logs.
func (l *Limiter) State() observation.LimitState {
	s := l.controller.state()
	exempt := float64(l.running-l.counted) > mostExempt*float64(s.Base)
	polled := !l.polledAt.IsZero() && l.controller.at.Sub(l.polledAt) < pollAge
	if s.Settled > 0 && (exempt || polled) {
		s.Settled, s.Missing = 0, "streams and long requests are not included in the adaptive limit"
	}
	return s
}

// Load returns the number of requests that hold a slot, and the number of requests that count
// toward the adaptive limit.
func (l *Limiter) Load() (running, counted int) { return l.running, l.counted }

// Free reports whether a slot is free.
func (l *Limiter) Free() bool {
	return l.running < l.controller.max && l.counted < l.controller.limit
}

// Admit gives a slot to a request. path is the hash of the request path, or 0 if the path is unknown.
// If most requests for the path are long, the request does not count toward the adaptive limit.
func (l *Limiter) Admit(now time.Time, s *Slot, path uint32) {
	*s = Slot{active: true, since: now, path: path}
	l.running++
	if l.paths.isLong(path) {
		s.exempt, s.longPath = Long, true
		l.polls++
		return
	}
	s.prev = l.newest
	if l.newest == nil {
		l.oldest = s
	} else {
		l.newest.next = s
	}
	l.newest = s
	l.count(now, s)
}

// End releases the slot of a request that ended with the result r. It must be called once for each
// call to Admit.
func (l *Limiter) End(now time.Time, s *Slot, r Result) {
	waiting := s.endWait(now)
	took := now.Sub(s.since) - s.client
	if r == TimedOut && (waiting || s.client > took) { // the client may be the cause
		r = Unknown
	}
	if s.exempt != Stream && r != Unknown {
		if !s.longPath {
			l.note(now, took.Seconds(), r)
		}
		l.controller.done(now, took, r, s.exempt == Counted)
		l.notePath(now, took, s, r)
	}
	l.uncount(now, s)
	if s.exempt == Counted {
		l.remove(s)
	}
	l.running--
	if s.longPath {
		if float64(l.polls) > mostExempt*float64(l.controller.base) {
			l.polledAt = now
		}
		l.polls--
	}
	s.active = false
	if l.responded {
		l.longAfter = max(shortestLong, time.Duration(longTimes*l.typical*float64(time.Second)))
	}
}

// notePath records whether the request was long, unless Tick has already recorded that it became
// long while it was running.
func (l *Limiter) notePath(now time.Time, took time.Duration, s *Slot, r Result) {
	switch long := took >= l.longAfter; {
	case !long && r != Unfinished && r != Failed:
		l.paths.noteShort(now, s.path)
	case long && (s.longPath || s.exempt == Counted):
		l.paths.noteLong(now, s.path)
	}
}

// note adjusts the typical application time. The size of a step does not depend on the application
// time of the request. The result is close to the lower quartile rather than the median, because a
// large share of the requests may be long. Each increase is limited by the number of short requests
// and by the time since the last increase. Many long requests that end at the same time therefore
// have little effect.
func (l *Limiter) note(now time.Time, took float64, r Result) {
	const (
		up     = 0.05 // increase in log(typical) per request
		down   = 0.15 // decrease per request; three times the value of up, so that typical is close to the lower quartile
		rate   = 0.5  // increase in credit per second without short requests
		single = 0.2  // maximum increase in credit by one request
		most   = 0.5  // maximum of credit
	)
	took = max(took, shortestTime)
	if !l.responded && l.shortened.IsZero() && r != Unfinished && took < shortestLong.Seconds() {
		l.typical = took // the first response
	}
	switch {
	case took <= l.typical && r == Unfinished: // the true application time may be longer than typical
	case took <= l.typical:
		l.shortened = now
		l.typical = max(l.typical*math.Exp(-down), took)
		l.credit = min(l.credit+down, most)
	default:
		// If a short response has arrived since this request got its slot, the application as a
		// whole has not become slower.
		gain := 0.0
		if now.Sub(l.shortened).Seconds() > took {
			gain = min(rate*now.Sub(l.increased).Seconds(), single)
		}
		l.credit = min(l.credit+gain, most)
		increase := min(l.credit, max(up, gain))
		l.credit -= increase
		l.typical = min(l.typical*math.Exp(increase), took)
		l.increased = now
	}
	l.responded = l.responded || r != Unfinished
}

// AwaitClient records that the request waits for its client until ClientReady is called. It
// does nothing after End.
func (l *Limiter) AwaitClient(now time.Time, s *Slot) {
	if s.active && s.waiting.IsZero() {
		s.waiting = now
		l.uncount(now, s)
	}
}

// ClientReady records that the client has sent or read data.
func (l *Limiter) ClientReady(now time.Time, s *Slot) {
	if s.active && s.endWait(now) && s.exempt == Counted {
		l.count(now, s)
	}
}

func (s *Slot) endWait(now time.Time) bool {
	if s.waiting.IsZero() {
		return false
	}
	s.client += now.Sub(s.waiting)
	s.waiting = time.Time{}
	return true
}

// Stream records that the request has become a stream.
func (l *Limiter) Stream(now time.Time, s *Slot) { l.exempt(now, s, Stream) }

// Tick updates the limiter. It must be called at regular intervals while requests are queued. waited
// is how long the first queued request has waited.
func (l *Limiter) Tick(now time.Time, waited time.Duration) {
	exempted := false
	for s := l.oldest; s != nil && now.Sub(s.since) >= l.longAfter; {
		next := s.next
		if now.Sub(s.since)-s.client >= l.longAfter && s.waiting.IsZero() {
			l.controller.exempted(now, now.Sub(s.since)-s.client)
			l.paths.noteLong(now, s.path)
			l.exempt(now, s, Long)
			exempted = true
		}
		s = next
	}
	if exempted {
		// If the application does not respond, longAfter is increased, so that the number of requests
		// in the application grows slowly.
		if !l.responded {
			l.longAfter += l.longAfter / 2
		}
		l.responded = false
	}
	l.controller.tick(now, waited)
}

// Move transfers the state of a request from one slot to another. The caller may then reuse the first slot.
func (l *Limiter) Move(from, to *Slot) {
	*to = *from
	from.active = false
	if from.exempt != Counted {
		return
	}
	if to.prev == nil {
		l.oldest = to
	} else {
		to.prev.next = to
	}
	if to.next == nil {
		l.newest = to
	} else {
		to.next.prev = to
	}
}

func (l *Limiter) exempt(now time.Time, s *Slot, e Exemption) {
	if !s.active {
		return
	}
	if s.exempt == Counted {
		l.remove(s)
	}
	l.uncount(now, s)
	s.exempt = e
}

func (l *Limiter) count(now time.Time, s *Slot) {
	if !s.counted && s.exempt == Counted {
		s.counted = true
		l.counted++
		l.controller.count(now, l.counted)
	}
}

func (l *Limiter) uncount(now time.Time, s *Slot) {
	if s.counted {
		s.counted = false
		l.counted--
		l.controller.count(now, l.counted)
	}
}

func (l *Limiter) remove(s *Slot) {
	if s.prev == nil {
		l.oldest = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		l.newest = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
}
