package main

import (
	"fmt"
	"time"
)

// A row is an application and its clients.
type row struct {
	name, what string
	app        app
	clients    []group
	sweep      []int    // fixed limits to measure, in addition to the ceiling
	settings   []string // settings of the sidecar
}

// A group is a number of clients. Each client sends a request as soon as its previous request is
// complete.
type group struct {
	n      int
	paths  []string      // paths that each client requests in turn
	aside  bool          // the requests are not measured
	h2     bool          // the clients send gRPC requests
	cancel time.Duration // the client disconnects after this time; 0 means never
	upload time.Duration // time during which the client sends one byte of the request body per second
	read   time.Duration // pause before the response is read
	socket bool          // the clients open WebSockets
	burst  time.Duration // the client pauses for four fifths of this interval; 0 means no pauses
	after  time.Duration // time before the first request; at most half of the warm-up
}

const ms = time.Millisecond

// short returns n clients with short calls.
func short(n int) group { return group{n: n, paths: []string{"/"}} }

// realRows returns the rows that are measured with real programs.
func realRows() []row {
	eight := app{workers: 8, took: 20 * ms}
	return []row{
		{"F1a gRPC streams", "6 streams, 20 clients", eight, []group{{n: 6, paths: []string{"/hold?for=10m&stream"}, aside: true, h2: true}, short(20)}, []int{14, 20}, nil},
		{"F1b long polls", "30 polls of 30 s, 20 clients", eight, []group{{n: 30, paths: []string{"/hold?for=30s"}, aside: true}, short(20)}, []int{38, 50}, nil},
		{"F1c slow clients", "12 clients with slow uploads or reads after 15 s, 20 clients", eight, []group{
			{n: 6, paths: []string{"/upload"}, aside: true, upload: time.Minute, after: 15 * time.Second},
			{n: 6, paths: []string{"/large"}, aside: true, read: time.Minute, after: 15 * time.Second}, short(20)}, []int{20, 32}, nil},
		{"F1d canceled requests", "3.3 requests/s that are canceled after 400 ms, 20 clients", eight, []group{
			{n: 2, paths: []string{"/hold?for=20s"}, aside: true, cancel: 600 * ms}, short(20)}, []int{40, 60}, nil},
		{"F1e upload timeouts", "6 uploads that reach the timeout of 5 s, 20 clients", eight, []group{
			{n: 6, paths: []string{"/upload"}, aside: true, upload: time.Minute}, short(20)}, []int{14, 26}, []string{"REVISION_TIMEOUT_SECONDS=5"}},
		{"F2 impatient clients", "16 workers, 500 ms, 60 clients that disconnect after 2 s", app{workers: 16, took: 500 * ms},
			[]group{{n: 60, paths: []string{"/"}, cancel: 2 * time.Second}}, []int{16, 32}, nil},
		{"F3a fast errors", "one of 8 requests fails", eight, []group{{n: 40, paths: []string{"/", "/", "/", "/", "/", "/", "/", "/error"}}}, []int{8, 10}, nil},
		{"F3b unknown methods", "8 clients that call one, 20 clients", eight, []group{{n: 8, paths: []string{"/unknown"}, aside: true, h2: true}, short(20)}, []int{8, 12, 16}, nil},
		{"F3c errors and alternating calls", "8 clients with errors, 20 with alternating calls", app{workers: 16, took: 50 * ms},
			[]group{{n: 8, paths: []string{"/error"}, aside: true}, {n: 20, paths: []string{"/?fast", "/?slow"}}}, []int{16, 20}, nil},
		{"F4a 503 above 13", "", app{workers: 100, took: 20 * ms, reject: 13, status: 503}, []group{short(60)}, []int{12, 13}, nil},
		{"F4c 429 above 13", "", app{workers: 100, took: 20 * ms, reject: 13, status: 429}, []group{short(60)}, []int{12, 13}, nil},
		{"F6a 5 ms and 2 s", "5 % take 2 s", app{workers: 1000, took: 5 * ms}, []group{{n: 100, paths: append(repeat("/", 19), "/hold?for=2s")}}, nil, nil},
		{"F8 alternating calls", "40 clients with fast and slow calls", app{workers: 16, took: 50 * ms}, []group{{n: 40, paths: []string{"/?fast", "/?slow"}}}, []int{16, 20}, nil},
		{"pool of 8", "8 workers, 20 ms", eight, []group{short(40)}, []int{8, 10}, nil},
		{"pool of 64", "64 workers, 100 ms", app{workers: 64, took: 100 * ms}, []group{short(100)}, []int{64, 72}, nil},
		{"pool of 1", "1 worker, 10 ms", app{workers: 1, took: 10 * ms}, []group{short(20)}, []int{1, 2}, nil},
		{"warm-up", "response times are six times as long at the start", app{workers: 13, took: 40 * ms, warm: 20 * time.Second}, []group{short(60)}, []int{13, 16}, nil},
		{"garbage collection", "pauses of 80 ms", app{workers: 13, took: 40 * ms, pause: 80 * ms}, []group{short(60)}, []int{13, 16}, nil},
		{"bursts", "60 clients with bursts of 200 ms", app{workers: 64, took: 40 * ms}, []group{{n: 60, paths: []string{"/"}, burst: time.Second}, short(2)}, []int{32, 64}, nil},
		{"slow readers", "10 that read slowly, 20 clients", eight, []group{{n: 10, paths: []string{"/large"}, aside: true, read: 2 * time.Second}, short(20)}, []int{18, 30}, nil},
		{"slower", "10 ms, 40 ms after 35 s", app{workers: 13, took: 10 * ms, changed: change(4)}, []group{short(40)}, []int{13, 16}, nil},
		{"faster", "40 ms, 20 ms after 35 s", app{workers: 13, took: 40 * ms, changed: change(0.5)}, []group{short(40)}, []int{13, 16}, nil},
		{"WebSockets", "20 WebSockets, 20 clients", eight, []group{{n: 20, paths: []string{"/"}, aside: true, socket: true}, short(20)}, []int{28, 40}, nil},
		{"batches", "up to 8 requests, 24 ms per batch and 2 ms per request", app{workers: 1, took: 24 * ms, batch: 8, each: 2 * ms}, []group{short(40)}, []int{8, 10, 16}, nil},
		{"database pool", "10 connections, 25 ms, half need no connection", app{workers: 10, took: 25 * ms}, []group{{n: 40, paths: []string{"/", "/cached"}}}, []int{10, 12, 20}, nil},
		{"mixed requests", "8 workers, fast and slow calls", eight, []group{{n: 40, paths: []string{"/?fast", "/?fast", "/", "/?slow"}}}, []int{8, 12}, nil},
	}
}

func repeat(path string, n int) (all []string) {
	for range n {
		all = append(all, path)
	}
	return all
}

// change returns a function for app.changed. Its value is 1 before 35 s, and factor afterwards.
func change(factor float64) func(time.Duration) float64 {
	return func(at time.Duration) float64 {
		if at < 35*time.Second {
			return 1
		}
		return factor
	}
}

func (r *row) String() string {
	if r.what == "" {
		return r.name
	}
	return fmt.Sprintf("%s: %s", r.name, r.what)
}
