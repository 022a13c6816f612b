package simulation

import (
	"math"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
)

// A Case is a synthetic application with more clients than it can serve at the same time.
type Case struct {
	Name string
	What string
	App  func() App
	For  time.Duration
}

const (
	// Ceiling is the maximum of the adaptive limit in every simulation.
	Ceiling = 100

	// Settled is the time at which the adaptive limit must be stable. The measurement starts at
	// this time.
	Settled = 30 * time.Second

	clients = 100
	usual   = 90 * time.Second
)

// Cases returns the synthetic applications.
func Cases() []Case {
	return []Case{
		{"fixed pool", "13 workers, 20 ms",
			func() App { return &Pool{Workers: 13, Time: 20 * ms, Spread: 1} }, usual},
		{"CPU-bound", "8 cores, 10 ms, and 10 ms of waiting",
			func() App { return &CPU{Cores: 8, Time: 10 * ms, Wait: 10 * ms, Switch: 0.002} }, usual},
		{"lock-bound", "20 ms, and at least 1.5 ms with the lock",
			func() App { return &Pool{Workers: 1, Time: 3 * ms / 2, Spread: 0.5, Local: 20 * ms, Convoy: 0.005} }, usual},
		{"GPU batch", "up to 8 requests, 24 ms per batch and 2 ms per request",
			func() App { return &Batch{Size: 8, Gather: 2 * ms, Fixed: 24 * ms, Each: 2 * ms} }, usual},
		{"slow start", "13 workers, 20 ms, 120 ms at the start",
			func() App {
				return &Pool{Workers: 13, Time: 20 * ms, Spread: 1, Factor: func(at time.Duration) float64 {
					return 1 + 5*math.Exp(-at.Seconds()/6)
				}}
			}, usual},
		{"noisy neighbour", "10 cores, 10 ms, 5 cores from 45 s to 65 s",
			func() App {
				return &CPU{Cores: 10, Time: 10 * ms, Switch: 0.002, Share: func(at time.Duration) float64 {
					if at >= 45*time.Second && at < 65*time.Second {
						return 0.5
					}
					return 1
				}}
			}, 120 * time.Second},
		{"leak", "12 workers, 15 ms, 0.5 % longer each second",
			func() App {
				return &Pool{Workers: 12, Time: 15 * ms, Spread: 1, Factor: func(at time.Duration) float64 {
					return math.Exp(0.005 * at.Seconds())
				}}
			}, usual},
		{"cold cache", "10 database connections, 25 ms; a full cache serves 80 %",
			func() App {
				return &Pool{Workers: 10, Time: 25 * ms, Spread: 1, Hits: func(served int) float64 {
					return 0.8 * (1 - math.Exp(-float64(served)/4000))
				}}
			}, usual},
	}
}

// Sweep returns the fixed limits that are compared with the adaptive limit.
func Sweep() []int { return []int{8, 9, 10, 12, 13, 14, 16, 18, 20, 24, Ceiling} }

// Requests is the default seed of the requests.
const Requests = 1

// run returns a run with a seed for the requests.
func (c *Case) run(requests uint64) Run {
	return Run{App: c.App(), Load: Load{Clients: clients}, For: c.For, From: Settled, Seed: requests}
}

// Fixed runs the case with a fixed limit.
func (c *Case) Fixed(limit int, requests uint64) Result {
	r := c.run(requests)
	r.Gate = Fixed(limit)
	return r.Do()
}

// Best returns the lowest fixed limit whose throughput is within 1 % of the maximum.
func Best(limits []int, results []Result) (limit int, result Result) {
	most := 0.0
	for i := range results {
		most = max(most, results[i].Throughput)
	}
	for i := range results {
		if results[i].Throughput >= 0.99*most {
			return limits[i], results[i]
		}
	}
	return 0, Result{}
}

// A Point is a change to the limit.
type Point struct {
	At    time.Duration
	State observation.LimitState
}

// Adaptive runs the case with the adaptive limit and the seed jitter. It returns the result and
// each change to the limit.
func (c *Case) Adaptive(requests, jitter uint64) (Result, []Point) {
	r := c.run(requests)
	return follow(&r, adapt.New(adapt.Settings{Max: Ceiling, Seed: jitter}))
}

// follow runs the simulation with an adaptive limit and records each change to the limit.
func follow(r *Run, l *adapt.Limiter) (Result, []Point) {
	var points []Point
	r.Gate = l
	r.Trace = func(at time.Duration) { points = append(points, Point{at, l.State()}) }
	return r.Do(), points
}
