// Package stats counts what an autoscaler wants to know: how many requests
// were in flight, averaged over time, and how many arrived.
//
// [Stats] is pure arithmetic. It has no clock and no goroutine: every call
// brings the time, and a second that has ended is put away by whichever call
// first sees a later one. [Handler] serves the numbers to Knative's autoscaler
// in protobuf, and to Prometheus, an HPA or KEDA as text or JSON
// (docs/promises.md 3.3).
package stats

import (
	"sync"
	"time"
)

// remembered is how many full seconds are kept: the longest window.
const remembered = 60

// Stats counts the requests of one process. The zero value is not ready; make
// one with [New]. All methods may be called concurrently, and none allocates.
//
// Times should come from time.Now, so that the monotonic clock is compared and
// a step of the wall clock moves nothing. A time that is earlier than one seen
// before counts as that later one: concurrent callers overtake each other
// between asking for the time and being counted.
type Stats struct {
	start time.Time

	mu      sync.Mutex // held for a few additions; guards everything below
	last    int64      // ns since start up to which the areas are summed
	current second     // the second that last is in
	total   int64      // requests in flight, proxied ones included
	proxied int64      // those of them that came through the activator

	full  int64              // full seconds since start
	ended [remembered]second // ended[k%remembered] is second k
}

// second is what happened in one second. An area is the sum over time of the
// requests in flight, in request nanoseconds: integers, so that no rounding
// gathers. 60 s of 100 million requests still fit.
type second struct {
	area, proxiedArea         int64
	requests, proxiedRequests int64
}

// New begins counting at start, with nothing in flight. Seconds are counted
// from start, not from the second of the clock on the wall.
func New(start time.Time) *Stats {
	return &Stats{start: start}
}

// In says that a request arrived at now. It counts as in flight while it waits
// in a queue as well. A request is proxied if it came through the activator,
// which counts it too; the totals include it.
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

// Out says that the exchange of a request ended at now. There is exactly one
// Out for each In, with the same proxied.
func (s *Stats) Out(now time.Time, proxied bool) {
	s.mu.Lock()
	s.advance(now)
	s.total--
	if proxied {
		s.proxied--
	}
	s.mu.Unlock()
}

// A Report is what is known at one moment. Windows end with the last full
// second, so all reports of one second agree.
type Report struct {
	// InFlight and ProxiedInFlight are the requests in flight at the moment of
	// the report.
	InFlight, ProxiedInFlight int

	// Last is the last full second, Last6 and Last60 the last 6 and 60.
	Last, Last6, Last60 Window

	// Uptime is the time from start to the end of the last full second: whole
	// seconds. 0: no second has passed yet, and all windows are empty.
	Uptime time.Duration
}

// A Window is an average over full seconds. Its numbers are 0 as long as there
// is none.
type Window struct {
	// Seconds is over how many full seconds the average is. A process that is
	// younger than the window averages over the seconds that it has lived, so
	// that a new pod under load does not look idle.
	Seconds int

	// Concurrency is the average of the requests in flight, weighted by time.
	// ProxiedConcurrency is the proxied part of it.
	Concurrency, ProxiedConcurrency float64

	// Requests is how many requests arrived per second. ProxiedRequests is the
	// proxied part of it.
	Requests, ProxiedRequests float64
}

// Report tells the state at now.
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

// advance sums the areas up to now and puts away the seconds that have ended.
// After a long silence it does so for the remembered ones only.
func (s *Stats) advance(now time.Time) {
	at := int64(now.Sub(s.start))
	if at <= s.last {
		return
	}
	if k := at / int64(time.Second); k > s.full {
		s.spend((s.full+1)*int64(time.Second) - s.last)
		s.end(s.current)
		silent := second{area: s.total * int64(time.Second), proxiedArea: s.proxied * int64(time.Second)}
		s.full = max(s.full, k-remembered)
		for s.full < k {
			s.end(silent)
		}
		s.current = second{}
		s.last = k * int64(time.Second)
	}
	s.spend(at - s.last)
	s.last = at
}

// spend adds ns nanoseconds of what is in flight to the current second.
func (s *Stats) spend(ns int64) {
	s.current.area += s.total * ns
	s.current.proxiedArea += s.proxied * ns
}

// end puts away what happened in the second that has just ended.
func (s *Stats) end(what second) {
	s.ended[s.full%remembered] = what
	s.full++
}

// window averages over the last n full seconds, or those that there are.
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
		Seconds:            int(n),
		Concurrency:        float64(sum.area) / ns,
		ProxiedConcurrency: float64(sum.proxiedArea) / ns,
		Requests:           float64(sum.requests) / seconds,
		ProxiedRequests:    float64(sum.proxiedRequests) / seconds,
	}
}
