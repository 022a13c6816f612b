package simulation

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
)

// A Row is an application and its clients. The table in test/limits/README.md contains one line for
// each row.
type Row struct {
	Name  string
	What  string
	App   func() App
	Load  Load
	Sweep []int         // fixed limits to compare, in addition to Ceiling
	Warm  time.Duration // end of the warm-up; 0 means 30 s
	For   time.Duration // total time; 0 means 90 s
	Avoid string        // reason not to use the adaptive limit for this row; empty if the row meets the criteria
}

const ms = time.Millisecond

// often returns a function that returns kind for one in n requests, and nil for the others.
func often(n int, kind *Kind) func(client, number int) *Kind {
	return func(client, number int) *Kind {
		if (number*7+client*3)%n == 0 {
			return kind
		}
		return nil
	}
}

// firsts returns a function that returns kind for the requests of the first n clients, and nil for
// the others.
func firsts(n int, kind *Kind) func(client, number int) *Kind {
	return func(client, _ int) *Kind {
		if client < n {
			return kind
		}
		return nil
	}
}

// alternating returns the kind of the request with the given number. A client alternates between
// fast and slow requests.
func alternating(number int) *Kind {
	if number%2 == 0 {
		return &Kind{Scale: 0.1}
	}
	return &Kind{Scale: 1.9}
}

func poolOf(workers int, mean time.Duration) func() App {
	return func() App { return &Pool{Workers: workers, Time: mean, Spread: 1} }
}

// rejecting returns an application that immediately rejects a request if the number of requests in
// progress exceeds the limit.
func rejecting(limit func(at time.Duration) int) func() App {
	return func() App {
		return &Pool{Workers: 100, Time: 20 * ms, Spread: 1, Errors: func(at time.Duration, inApp int) float64 {
			if inApp > limit(at) {
				return 1
			}
			return 0
		}}
	}
}

// after returns a function of time that returns first before the given moment, and second from then on.
func after[T any](moment time.Duration, first, second T) func(time.Duration) T {
	return func(at time.Duration) T {
		if at < moment {
			return first
		}
		return second
	}
}

// Rows returns the rows in which an earlier adaptive limit was worse than a fixed limit, and rows with other
// applications.
func Rows() []Row {
	return slices.Concat(openRows(), pollRows(), problemRows(), phaseRows(), changeRows(), usualRows())
}

// openRows returns rows with requests that hold a slot for a long time.
func openRows() []Row {
	twenty := poolOf(8, 20*ms)
	return []Row{
		{Name: "F1a gRPC streams", What: "6 streams, 20 clients", App: twenty, Sweep: []int{14, 20},
			Load: Load{Clients: 26, Kind: firsts(6, &Kind{Hold: time.Hour, Aside: true})}},
		{Name: "F1b long polls", What: "30 polls of 30 s, 20 clients", App: twenty, Sweep: []int{38, 50},
			Load: Load{Clients: 50, Kind: firsts(30, &Kind{Hold: 30 * time.Second, Aside: true})}},
		{Name: "F1c slow clients", What: "12 clients with slow uploads or downloads, 20 clients", App: twenty, Sweep: []int{20, 32},
			Load: Load{Clients: 32, Kind: func(client, number int) *Kind {
				if client >= 12 || number < 200 {
					return nil
				}
				if client%2 == 0 {
					return &Kind{Upload: 20 * time.Second, Aside: true}
				}
				return &Kind{Read: 20 * time.Second, Aside: true}
			}}},
		{Name: "F1d canceled requests", What: "4 clients that cancel after 400 ms, 20 clients", App: twenty, Sweep: []int{30, 50},
			Load: Load{Clients: 24, Kind: func(client, number int) *Kind {
				if client < 4 && number%3 == 0 {
					return &Kind{Hold: 20 * time.Second, Patience: 400 * ms, Aside: true}
				}
				if client < 4 {
					return &Kind{Hold: 400 * ms, Patience: 400 * ms, Aside: true}
				}
				return nil
			}}},
		{Name: "F1e upload timeouts", What: "6 uploads that reach the timeout of 10 s, 20 clients", App: twenty, Sweep: []int{14, 26},
			Load: Load{Clients: 26, Kind: firsts(6, &Kind{Upload: 10 * time.Second, Fails: true, Aside: true})}},
	}
}

// pollRows returns rows with many requests that use no worker, but take several seconds.
func pollRows() []Row {
	sixteen := func() App { return &Pool{Workers: 16, Time: 100 * ms, Spread: 0.2} }
	mixture := func(slow int) func(client, number int) *Kind { // slow is the number of slow requests per 20 requests
		return func(client, number int) *Kind {
			if (number*7+client*3)%20 < slow {
				return &Kind{Hold: 3 * time.Second}
			}
			return &Kind{Hold: 100 * ms}
		}
	}
	polls := func(n int, k Kind) func(client, number int) *Kind {
		k.Aside, k.Path = true, 2
		return func(client, _ int) *Kind {
			if client < n {
				return &k
			}
			return &Kind{Path: 1}
		}
	}
	return []Row{
		{Name: "3 s and 100 ms", What: "half of the requests take 3 s", App: sixteen, Sweep: []int{60}, Warm: time.Minute, For: 2 * time.Minute,
			Load: Load{Clients: 60, Kind: mixture(10)}},
		{Name: "35 % of 3 s", What: "the others take 100 ms", App: sixteen, Sweep: []int{60}, Warm: time.Minute, For: 2 * time.Minute,
			Load: Load{Clients: 60, Kind: mixture(7)}},
		{Name: "polls of 3 s", What: "40 polls, 30 clients", App: sixteen, Sweep: []int{70}, Warm: time.Minute, For: 2 * time.Minute,
			Load: Load{Clients: 70, Kind: polls(40, Kind{Hold: 3 * time.Second})}},
		{Name: "polls of 4 s", What: "60 polls, 30 clients", App: sixteen, Sweep: []int{90}, Warm: time.Minute, For: 2 * time.Minute,
			Load: Load{Clients: 90, Kind: polls(60, Kind{Hold: 4 * time.Second})}},
		{Name: "polls without paths", What: "60 polls of 4 s with different paths, 30 clients", App: sixteen, Sweep: []int{90}, Warm: time.Minute, For: 2 * time.Minute,
			Load: Load{Clients: 90, Kind: firsts(60, &Kind{Hold: 4 * time.Second, Aside: true})}},
		{Name: "polls with common responses", What: "60 polls, responses every 4 s, 30 clients", App: sixteen, Sweep: []int{90}, Warm: time.Minute, For: 2 * time.Minute,
			Load: Load{Clients: 90, Kind: polls(60, Kind{Every: 4 * time.Second})}},
		{Name: "polls with early responses", What: "60 polls, responses every 4 s, after the start of 30 clients", App: sixteen, Sweep: []int{90}, Warm: time.Minute, For: 2 * time.Minute,
			Load: Load{Clients: 90, Kind: func(client, number int) *Kind {
				switch {
				case number == 0:
					return &Kind{Hold: time.Duration(1+5*client) * ms, Stream: true, Aside: true}
				case client < 30:
					return &Kind{Path: 1}
				}
				return &Kind{Every: 4 * time.Second, Aside: true, Path: 2}
			}}},
		{Name: "polls with rare responses", What: "60 polls, responses every 30 s, 30 clients", App: sixteen, Sweep: []int{90}, Warm: 90 * time.Second, For: 210 * time.Second,
			Load: Load{Clients: 90, Kind: polls(60, Kind{Every: 30 * time.Second})}},
		{Name: "late polls", What: "30 clients, 60 polls of 4 s after 40 s", App: sixteen, Sweep: []int{90}, Warm: 45 * time.Second,
			Load: Load{Clients: 90, Kind: func(client, number int) *Kind {
				switch {
				case client >= 60:
					return &Kind{Path: 1}
				case number == 0:
					return &Kind{Hold: 40 * time.Second, Stream: true, Aside: true, Path: 2}
				}
				return &Kind{Hold: 4 * time.Second, Aside: true, Path: 2}
			}}},
	}
}

func problemRows() []Row {
	return []Row{
		{Name: "F2 impatient clients", What: "16 workers, 500 ms, 60 clients that disconnect after 2 s",
			App: func() App { return &Pool{Workers: 16, Time: 500 * ms, Spread: 0.2} }, Sweep: []int{12, 16, 20, 32}, For: 150 * time.Second,
			Avoid: "a trial of a lower limit increases the number of clients that disconnect",
			Load:  Load{Clients: 60, Kind: func(int, int) *Kind { return &Kind{Patience: 2 * time.Second} }}},
		{Name: "F3a fast errors", What: "one of 8 requests fails after 2 ms", App: poolOf(8, 25*ms), Sweep: []int{8, 10},
			Load: Load{Clients: 40, Kind: often(8, &Kind{Hold: 2 * ms, Fails: true})}},
		{Name: "F3b unknown methods", What: "8 clients that call one, 20 clients", App: poolOf(8, 20*ms), Sweep: []int{8, 12, 16},
			Load: Load{Clients: 28, Kind: firsts(8, &Kind{Hold: ms, Aside: true})}},
		{Name: "F3c errors and alternating calls", What: "8 clients with fast errors, 32 with alternating calls", App: poolOf(16, 60*ms), Sweep: []int{16, 20},
			Load: Load{Clients: 40, Kind: func(client, number int) *Kind {
				if client < 8 {
					return &Kind{Hold: 2 * ms, Fails: true, Aside: true}
				}
				return alternating(number)
			}}},
		{Name: "F3c errors and a short queue", What: "the same with 20 instead of 32 clients", App: poolOf(16, 50*ms), Sweep: []int{16, 20, 24},
			Load: Load{Clients: 28, Kind: func(client, number int) *Kind {
				if client < 8 {
					return &Kind{Hold: ms / 2, Fails: true, Aside: true}
				}
				return alternating(number + client)
			}}},
		{Name: "F4a 503 above 13", Sweep: []int{12, 13},
			App: rejecting(after(0, 13, 13)), Load: Load{Clients: 100}},
		{Name: "F4c 429 above 13", Sweep: []int{12, 13},
			App: func() App { return &Pool{Workers: 100, Time: 20 * ms, Spread: 1, Reject: 13} }, Load: Load{Clients: 60}},
		{Name: "F4b 503, from 13 to 5", What: "above 5 concurrent requests after 40 s", Sweep: []int{5}, Warm: 70 * time.Second, For: 150 * time.Second,
			App: rejecting(after(40*time.Second, 13, 5)), Load: Load{Clients: 100}},
		{Name: "F6a 5 ms and 2 s", What: "5 % take 2 s, 100 clients", App: poolOf(1000, 5*ms), Sweep: []int{100},
			Load: Load{Clients: 100, Kind: often(20, &Kind{Hold: 2 * time.Second})}},
		{Name: "F6b 30 s", What: "32 workers, 30 s", App: func() App { return &Pool{Workers: 32, Time: 30 * time.Second, Spread: 0.3} },
			Sweep: []int{32}, Warm: 600 * time.Second, For: time.Hour, Load: Load{Clients: 60}},
		{Name: "F7 more workers", What: "4 workers, 16 after 40 s", Sweep: []int{16}, Warm: 60 * time.Second, For: 150 * time.Second,
			App: func() App { return &Pool{Workers: 4, More: 12, MoreAt: 40 * time.Second, Time: 20 * ms, Spread: 1} }, Load: Load{Clients: 40}},
		{Name: "F8 alternating calls", What: "40 clients with fast and slow calls", App: poolOf(16, 60*ms), Sweep: []int{14, 16, 20},
			Load: Load{Clients: 40, Kind: func(_, number int) *Kind { return alternating(number) }}},
	}
}

// phaseRows returns a row with rare bursts, and a row with a slow phase.
func phaseRows() []Row {
	return []Row{
		{Name: "rare bursts", What: "32 workers, 50 ms, 64 requests every 10 s", App: func() App { return &Pool{Workers: 32, Time: 50 * ms, Spread: 0.2} },
			Sweep: []int{32}, Warm: 2 * time.Minute, For: 5 * time.Minute,
			Load: Load{Clients: 64, Kind: func(_, number int) *Kind {
				if number%2 == 0 {
					return &Kind{Every: 10 * time.Second, Stream: true, Aside: true}
				}
				return nil
			}}},
		{Name: "slow phase and two paths", What: "8 cores, 20 ms, 5 % of the cores from 40 s to 50 s; one of 5 requests needs no CPU", Sweep: []int{8, 12, 16}, Warm: 55 * time.Second, For: 2 * time.Minute,
			Load: Load{Clients: 100, Kind: func(client, number int) *Kind {
				if (number*7+client*3)%5 == 0 {
					return &Kind{Hold: 5 * ms, Path: 1}
				}
				return &Kind{Path: 2}
			}},
			App: func() App {
				return &CPU{Cores: 8, Time: 20 * ms, Switch: 0.03, Share: func(at time.Duration) float64 {
					if at >= 40*time.Second && at < 50*time.Second {
						return 0.05
					}
					return 1
				}}
			}},
	}
}

// changeRows returns rows in which the duration of the requests for a path changes, and rows with
// clients that wait after an error.
func changeRows() []Row {
	workers := func(n int) func() App { return func() App { return &Pool{Workers: n, Time: 60 * ms} } }
	paths := func(first int) func(client, number int) *Kind { // path 1 for the first clients, and path 2 for the others
		return func(client, _ int) *Kind {
			if client < first {
				return &Kind{Path: 1}
			}
			return &Kind{Path: 2}
		}
	}
	return []Row{
		{Name: "path becomes long", What: "24 clients, 60 clients with requests of 5 s after 40 s", App: workers(8), Sweep: []int{84}, Warm: 45 * time.Second,
			Avoid: "the requests for a path suddenly take several seconds",
			Load: Load{Clients: 84, Kind: paths(24), Change: func(at time.Duration, k *Kind) *Kind {
				if at >= 40*time.Second && k.Path == 2 {
					return &Kind{Hold: 5 * time.Second, Aside: true, Path: 2}
				}
				return k
			}}},
		{Name: "path becomes short", What: "12 cores, 40 ms, 20 clients, 40 clients with requests of 2 s before 45 s", Sweep: []int{12, 16}, Warm: 75 * time.Second, For: 2 * time.Minute,
			App: func() App { return &CPU{Cores: 12, Time: 40 * ms, Switch: 0.03} },
			Load: Load{Clients: 60, Kind: paths(20), Change: func(at time.Duration, k *Kind) *Kind {
				if at < 45*time.Second && k.Path == 2 {
					return &Kind{Hold: 2 * time.Second, Path: 2}
				}
				return k
			}}},
		{Name: "polls of 20 ms and 10 s", What: "60 clients with polls, 24 clients", App: workers(8), Sweep: []int{84}, Warm: 32 * time.Second,
			Load: Load{Clients: 84, Kind: func(client, number int) *Kind {
				hash := uint32(client)*2654435761 ^ uint32(number)*2246822519
				switch {
				case client >= 60:
					return &Kind{Path: 1}
				case hash>>16%2 == 0:
					return &Kind{Hold: 20 * ms, Aside: true, Path: 2}
				}
				return &Kind{Hold: 10 * time.Second, Aside: true, Path: 2}
			}}},
		{Name: "only errors for 10 s", What: "12 workers, 60 clients, 5 % take 2 s", App: workers(12), Sweep: []int{60}, Warm: 50 * time.Second, For: 110 * time.Second,
			Load: Load{Clients: 60, Backoff: 50 * ms, Kind: func(client, number int) *Kind {
				if (number*7+client*3)%20 == 0 {
					return &Kind{Hold: 2 * time.Second, Aside: true, Path: 2}
				}
				return &Kind{Path: 1}
			}, Change: func(at time.Duration, k *Kind) *Kind {
				if at >= 30*time.Second && at < 40*time.Second {
					return &Kind{Hold: ms, Fails: true, Aside: k.Aside, Path: k.Path}
				}
				return k
			}}},
		{Name: "429 above 13 and patient clients", What: "clients wait for 50 ms after an error", Sweep: []int{12, 13},
			App:  func() App { return &Pool{Workers: 100, Time: 60 * ms, Reject: 13} },
			Load: Load{Clients: 40, Backoff: 50 * ms}},
	}
}

func usualRows() []Row {
	rows := []Row{
		{Name: "pool of 8", What: "8 workers, 20 ms", App: poolOf(8, 20*ms), Sweep: []int{8, 10}, Load: Load{Clients: 40}},
		{Name: "pool of 64", What: "64 workers, 40 ms", App: poolOf(64, 40*ms), Sweep: []int{64, 72}, Load: Load{Clients: 100}},
		{Name: "pool of 1", What: "1 worker, 10 ms", App: poolOf(1, 10*ms), Sweep: []int{1, 2}, Load: Load{Clients: 20}},
		{Name: "garbage collection", What: "13 workers, 20 ms, a pause of 80 ms every 2 s", Sweep: []int{13, 16}, Load: Load{Clients: 100},
			App: func() App {
				return &Pool{Workers: 13, Time: 20 * ms, Spread: 1, Factor: func(at time.Duration) float64 {
					if at%(2*time.Second) < 80*ms {
						return 5
					}
					return 1
				}}
			}},
		{Name: "bursts", What: "64 workers, 20 ms, 1500 requests/s for 200 ms of each second", App: poolOf(64, 20*ms), Sweep: []int{32, 64},
			Load: Load{Rate: func(at time.Duration) float64 {
				if at%time.Second < 200*ms {
					return 1500
				}
				return 50
			}}},
		{Name: "idle times", What: "13 workers, 20 ms, pauses of 10 s", App: poolOf(13, 20*ms), Sweep: []int{13, 16},
			Load: Load{Depth: 100, Rate: func(at time.Duration) float64 {
				if at%(20*time.Second) < 10*time.Second {
					return 1000
				}
				return 1
			}}},
		{Name: "slow readers", What: "clients read one of four responses in 2 s", App: poolOf(13, 20*ms), Sweep: []int{100},
			Load: Load{Clients: 100, Kind: often(4, &Kind{Read: 2 * time.Second})}},
		{Name: "database pool", What: "10 connections, 25 ms, half need no connection", Sweep: []int{10, 12, 16}, Load: Load{Clients: 60},
			App: func() App {
				return &Pool{Workers: 10, Time: 25 * ms, Spread: 1, Hits: func(int) float64 { return 0.5 }}
			}},
		{Name: "faster", What: "13 workers, 40 ms, 10 ms after 40 s", Sweep: []int{13, 16}, Warm: 50 * time.Second, Load: Load{Clients: 60},
			App: func() App {
				return &Pool{Workers: 13, Time: 40 * ms, Spread: 1, Factor: after(40*time.Second, 1, 0.25)}
			}},
		{Name: "slower", What: "13 workers, 10 ms, 60 ms after 40 s", Sweep: []int{13, 16}, Warm: 50 * time.Second, Load: Load{Clients: 60},
			App: func() App {
				return &Pool{Workers: 13, Time: 10 * ms, Spread: 1, Factor: after(40*time.Second, 1, 6.0)}
			}},
		{Name: "WebSockets", What: "30 WebSockets, 40 clients", App: poolOf(13, 20*ms), Sweep: []int{43, 60},
			Load: Load{Clients: 70, Kind: firsts(30, &Kind{Hold: time.Hour, Stream: true, Aside: true})}},
		{Name: "400 ms", What: "13 workers, 400 ms", App: poolOf(13, 400*ms), Sweep: []int{13, 16}, For: 150 * time.Second, Load: Load{Clients: 60}},
		{Name: "2 s", What: "13 workers, 2 s", App: poolOf(13, 2*time.Second), Sweep: []int{13, 16}, Warm: 40 * time.Second, For: 400 * time.Second, Load: Load{Clients: 40}},
		{Name: "hang", What: "13 workers, 20 ms, no response for 5 s", Sweep: []int{13, 16}, Load: Load{Clients: 60},
			App: func() App {
				return &Pool{Workers: 13, Time: 20 * ms, Spread: 1, Stop: 40 * time.Second, StopFor: 5 * time.Second}
			}},
		{Name: "lock and hang", What: "requests use a lock, no response for 5 s", Sweep: []int{12, 16}, Load: Load{Clients: 100},
			App: func() App {
				return &Pool{Workers: 1, Time: 3 * ms / 2, Spread: 0.5, Local: 20 * ms, Convoy: 0.005, Stop: 40 * time.Second, StopFor: 5 * time.Second}
			}},
	}
	for _, c := range Cases() {
		rows = append(rows, Row{Name: c.Name, What: c.What, App: c.App, Sweep: []int{8, 10, 13, 16, 20}, For: c.For, Load: Load{Clients: clients}})
	}
	return rows
}

// AdviceRows returns the rows of applications that have free capacity most of the time. The settled
// limit must not reduce the goodput if it is used as a fixed limit.
func AdviceRows() []Row {
	slowPhases := func(at time.Duration) float64 {
		if at%(20*time.Second) < 10*time.Second {
			return 1
		}
		return 15
	}
	wave := func(most float64) Load { // wave simulates the load of a day in two minutes
		return Load{Rate: func(at time.Duration) float64 { return most * (0.55 - 0.45*math.Cos(2*math.Pi*at.Seconds()/120)) }}
	}
	rows := []Row{{
		Name: "64 workers", What: "64 workers, alternates between 10 ms and 150 ms, 190 requests/s", Load: Load{Rate: steadily(190)},
		App: func() App { return &Pool{Workers: 64, Time: 10 * ms, Spread: 1, Factor: slowPhases} },
	}}
	for _, c := range Cases() {
		rows = append(rows, Row{Name: c.Name, What: c.What, App: c.App, Load: wave(loads[c.Name])})
	}
	for i := range rows {
		rows[i].For = 4 * time.Minute
	}
	return rows
}

// loads contains the number of requests per second for each case, which is about 70 % of the
// capacity.
var loads = map[string]float64{
	"fixed pool": 450, "CPU-bound": 550, "lock-bound": 420, "GPU batch": 140,
	"slow start": 450, "noisy neighbour": 400, "leak": 300, "cold cache": 1000,
}

func steadily(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

// hostile is the number of attackers, and victims is the number of other clients.
const (
	hostile = 8
	victims = 32
)

// HostileRows returns the rows with attackers. Only the requests of the other clients are measured.
func HostileRows() []Row {
	app := poolOf(13, 20*ms)
	var rows []Row
	for _, a := range []struct {
		what   string
		kind   Kind
		others Kind // kind of the requests in every second group
		group  int  // number of consecutive requests of the same kind; 0 if others is not used
	}{
		{what: "requests without work", kind: Kind{Hold: ms}},
		{what: "errors without work", kind: Kind{Hold: ms, Fails: true}},
		{what: "requests of 900 ms", kind: Kind{Hold: 900 * ms}},
		{what: "requests of 5 s", kind: Kind{Hold: 5 * time.Second}},
		{what: "errors after 900 ms", kind: Kind{Hold: 900 * ms, Fails: true}},
		{what: "uploads of 5 s", kind: Kind{Upload: 5 * time.Second}},
		{what: "reads of 5 s", kind: Kind{Read: 5 * time.Second}},
		{what: "canceled after 50 ms", kind: Kind{Hold: 900 * ms, Patience: 50 * ms}},
		{what: "WebSockets", kind: Kind{Hold: time.Hour, Stream: true}},
		{what: "requests of 190 ms", kind: Kind{Hold: 190 * ms}},
		{what: "requests of 1 ms and 190 ms", kind: Kind{Hold: ms}, others: Kind{Hold: 190 * ms}, group: 1},
		{what: "20 errors alternate with 20 requests of 900 ms", kind: Kind{Hold: ms, Fails: true}, others: Kind{Hold: 900 * ms}, group: 20},
		{what: "2000 errors alternate with 2000 successful requests", kind: Kind{Hold: ms, Fails: true}, others: Kind{Hold: ms}, group: 2000},
	} {
		a.kind.Aside, a.others.Aside = true, true
		kind := func(client, number int) *Kind {
			switch {
			case client >= hostile:
				return nil
			case a.group > 0 && number/a.group%2 == 1:
				return &a.others
			}
			return &a.kind
		}
		rows = append(rows, Row{Name: a.what, App: app, Sweep: []int{16, 24}, Load: Load{Clients: hostile + victims, Kind: kind}})
	}
	return rows
}

func (r *Row) run(g Gate) Run {
	run := Run{App: r.App(), Load: r.Load, Gate: g, From: r.Warm, For: r.For, Seed: Requests}
	if run.From == 0 {
		run.From = Settled
	}
	if run.For == 0 {
		run.For = usual
	}
	return run
}

// Compare runs the row with a limit.
func (r *Row) Compare(g Gate) Result {
	run := r.run(g)
	return run.Do()
}

// moreErrors is the maximum difference between the error share with the best limit and the lowest error share.
const moreErrors = 0.2

// ErrorShare returns the share of responses that are errors.
func (r *Row) ErrorShare(got *Result) float64 {
	run := r.run(nil)
	failed := float64(got.Failed)
	return failed / max(failed+got.Throughput*(run.For-run.From).Seconds(), 1)
}

// A Measurement is the result with one limit.
type Measurement struct {
	Goodput float64 // successful requests per second
	P99     float64 // 99th percentile of the response time in seconds
	Errors  float64 // share of the responses that are errors
}

// Choose returns the index of the best measurement. It ignores measurements with many errors. If
// the goodput differs by less than 1 %, the shortest 99th percentile is best.
func Choose(all []Measurement) (best int) {
	most, least := 0.0, 1.0
	for _, m := range all {
		least = min(least, m.Errors)
	}
	few := func(m Measurement) bool { return m.Errors <= least+moreErrors }
	for _, m := range all {
		if few(m) {
			most = max(most, m.Goodput)
		}
	}
	p99 := math.Inf(1)
	for i, m := range all {
		if few(m) && m.Goodput >= 0.99*most && m.P99 < 0.98*p99 {
			best, p99 = i, m.P99
		}
	}
	return best
}

// Best returns the best fixed limit and the result with the ceiling.
func (r *Row) Best() (limit int, best, ceiling Result) {
	limits := append(append([]int(nil), r.Sweep...), Ceiling)
	results, measured := make([]Result, len(limits)), make([]Measurement, len(limits))
	for i, n := range limits {
		results[i] = r.Compare(Fixed(n))
		measured[i] = Measurement{results[i].Throughput, results[i].P99, r.ErrorShare(&results[i])}
	}
	i := Choose(measured)
	return limits[i], results[i], results[len(limits)-1]
}

// The criteria of each row. Each criterion is the ratio of a result to the result with a fixed
// limit.
const (
	LeastOfBest    = 0.85 // minimum ratio of the goodput to the goodput with the best fixed limit
	MostP99        = 1.5  // maximum ratio of the 99th percentile to the 99th percentile with the best fixed limit
	LeastOfCeiling = 0.97 // minimum ratio of the goodput to the goodput with the ceiling as a fixed limit
)

// Criteria returns the criteria that a result does not meet.
func Criteria(got, best, ceiling *Result) string {
	var missed []string
	note := func(ok bool, format string, args ...any) {
		if !ok {
			missed = append(missed, fmt.Sprintf(format, args...))
		}
	}
	note(got.Throughput > 0, "no goodput")
	note(got.Throughput >= LeastOfBest*best.Throughput, "goodput %.2f of the best", got.Throughput/best.Throughput)
	note(got.P99 <= MostP99*best.P99, "p99 %.2f of the best", got.P99/best.P99)
	note(got.Throughput >= LeastOfCeiling*ceiling.Throughput, "goodput %.2f of the ceiling", got.Throughput/ceiling.Throughput)
	return strings.Join(missed, "; ")
}

// State runs the row with the adaptive limit and returns the state at the end.
func (r *Row) State() observation.LimitState {
	l := adapt.New(adapt.Settings{Max: Ceiling})
	r.Compare(l)
	return l.State()
}

// Adaptive runs the row with the adaptive limit. It returns the result and each change to the limit.
func (r *Row) Adaptive(jitter uint64) (Result, []Point) {
	run := r.run(nil)
	return follow(&run, adapt.New(adapt.Settings{Max: Ceiling, Seed: jitter}))
}
