// Package stats computes the statistics for autoscalers: the average number of requests in flight and the number of
// requests that arrived.
//
// [Stats] has no clock and no goroutine. The caller passes the current time to each method. The first call after the
// end of a second stores the values of that second. [Handler] serves the statistics in protobuf for the Knative
// autoscaler, and as text or JSON for Prometheus, an HPA or KEDA (docs/promises.md 3.3).
package stats

import (
	"sync"
	"time"
)

// remembered is the number of full seconds that are stored. It is the length of the longest window in seconds.
const remembered = 60

// Stats counts the requests of one process. Use [New] to create it. Its methods are safe for concurrent use and do not
// allocate.
//
// Times should be from time.Now, so that the monotonic clock is used and changes to the wall clock have no effect. If a
// time is earlier than the time of a previous call, the time of the previous call is used, because concurrent callers
// can be reordered between time.Now and the call.
type Stats struct {
	start time.Time

	mu      sync.Mutex // guards the following fields; held only for a few additions
	last    int64      // time of the last update to the areas, in nanoseconds since start
	current second     // the second that contains last
	total   int64      // number of requests in flight, including proxied requests
	proxied int64      // number of requests in flight from the activator

	full  int64              // number of full seconds since start
	ended [remembered]second // ended[k%remembered] is second k
}

// second contains the statistics of one second. An area is the integral of the number of requests in flight over time,
// in request-nanoseconds. Areas are integers, so that rounding errors do not accumulate. The sum of the areas for 100
// million requests in flight during 60 s does not overflow an int64.
type second struct {
	area, proxiedArea         int64
	requests, proxiedRequests int64
}

// New returns a Stats without requests in flight. The first second begins at start, so the seconds are not aligned with
// the wall clock.
func New(start time.Time) *Stats {
	return &Stats{start: start}
}

// In records that a request arrived at the time now. The request is in flight until Out is called, including the time
// in the queue. If proxied is true, the request was sent by the activator, which also counts it. The totals include
// proxied requests.
func (s *Stats) In(now time.Time, proxied bool) {
	s.mu.Lock()
	s.advance(now)
	s.total++
	s.current.requests++
	if proxied {
		s.proxied++
		s.current.proxiedRequests++
	}
	s.mu.Unlock()
}

// Out records that a request ended at the time now. It must be called exactly once for each call to In, with the same
// value of proxied.
func (s *Stats) Out(now time.Time, proxied bool) {
	s.mu.Lock()
	s.advance(now)
	s.total--
	if proxied {
		s.proxied--
	}
	s.mu.Unlock()
}

// A Report contains the statistics at a point in time. The windows end with the last full second, so all reports within
// one second have the same windows.
type Report struct {
	// InFlight and ProxiedInFlight are the numbers of requests in flight at the time of the report.
	InFlight, ProxiedInFlight int

	// Last contains the averages for the last full second. Last6 and Last60 contain the averages for the last 6 and
	// the last 60 full seconds, or for all full seconds since the start if there are fewer. If the averages included
	// the time before the start, a new pod under load would appear idle.
	Last, Last6, Last60 Window

	// Uptime is the time from the start to the end of the last full second. If it is 0, no full second has passed, and
	// all averages are 0.
	Uptime time.Duration
}

// A Window contains averages over full seconds. All values are 0 before the first full second.
type Window struct {
	// Concurrency is the time-weighted average number of requests in flight. ProxiedConcurrency includes only proxied
	// requests.
	Concurrency, ProxiedConcurrency float64

	// Requests is the number of requests that arrived per second. ProxiedRequests includes only proxied requests.
	Requests, ProxiedRequests float64
}

// Report returns the statistics at the time now.
func (s *Stats) Report(now time.Time) Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(now)
	return Report{
		InFlight:        int(s.total),
		ProxiedInFlight: int(s.proxied),
		Last:            s.window(1),
		Last6:           s.window(6),
		Last60:          s.window(remembered),
		Uptime:          time.Duration(s.full) * time.Second,
	}
}

// advance updates the areas up to now and stores the values of the seconds that have ended. If many seconds have ended
// since the last call, advance stores only the values that a window can include. s.mu must be held.
func (s *Stats) advance(now time.Time) {
	at := int64(now.Sub(s.start))
	if at <= s.last {
		return
	}
	if k := at / int64(time.Second); k > s.full {
		s.addTime((s.full+1)*int64(time.Second) - s.last)
		s.end(s.current)
		silent := second{area: s.total * int64(time.Second), proxiedArea: s.proxied * int64(time.Second)}
		s.full = max(s.full, k-remembered)
		for s.full < k {
			s.end(silent)
		}
		s.current = second{}
		s.last = k * int64(time.Second)
	}
	s.addTime(at - s.last)
	s.last = at
}

// addTime adds ns nanoseconds with the current number of requests in flight to the areas of the current second.
func (s *Stats) addTime(ns int64) {
	s.current.area += s.total * ns
	s.current.proxiedArea += s.proxied * ns
}

// end stores the values of a second that has ended.
func (s *Stats) end(what second) {
	s.ended[s.full%remembered] = what
	s.full++
}

// window returns the averages over the last n full seconds, or over all full seconds if there are fewer.
func (s *Stats) window(n int64) Window {
	n = min(n, s.full)
	if n == 0 {
		return Window{}
	}
	var sum second
	for k := s.full - n; k < s.full; k++ {
		one := &s.ended[k%remembered]
		sum.area += one.area
		sum.proxiedArea += one.proxiedArea
		sum.requests += one.requests
		sum.proxiedRequests += one.proxiedRequests
	}
	ns, seconds := float64(n)*float64(time.Second), float64(n)
	return Window{
		Concurrency:        float64(sum.area) / ns,
		ProxiedConcurrency: float64(sum.proxiedArea) / ns,
		Requests:           float64(sum.requests) / seconds,
		ProxiedRequests:    float64(sum.proxiedRequests) / seconds,
	}
}
