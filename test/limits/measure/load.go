package main

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	clients  = 24          // of the closed loop: each sends its next request when it has the answer to the last
	overload = 1.5         // times the app's capacity, the rate of the open loop
	deadline = time.Second // after which a client goes away
)

// A load is clients, or requests that come at a rate, whatever becomes of those before.
type load struct {
	clients int
	rate    float64 // a second; 0: a closed loop
}

// seen is what came of a load.
type seen struct {
	throughput float64 // answers with 200 a second
	p50, p99   float64 // seconds, of those
	refused    float64 // part of all requests: 503
	failed     float64 // and those that the app failed or that were too late
}

// recorder notes what becomes of each request.
type recorder struct {
	client  *http.Client
	address string

	mu                   sync.Mutex
	times                []float64
	all, refused, failed int
}

func (r *recorder) request(ctx context.Context) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	status, err := get(ctx, r.client, r.address)
	took := time.Since(began).Seconds()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all++
	switch {
	case err == nil && status == http.StatusOK:
		r.times = append(r.times, took)
	case status == http.StatusServiceUnavailable:
		r.refused++
	default:
		r.failed++
	}
}

// do drives the load for so long, waits for the last answers, and returns what came of it.
func (l *load) do(ctx context.Context, address string, lasts time.Duration) seen {
	t := &http.Transport{MaxIdleConnsPerHost: 1000, MaxIdleConns: 1000}
	defer t.CloseIdleConnections()
	r := &recorder{client: &http.Client{Transport: t}, address: address}
	began := time.Now()
	end := began.Add(lasts)
	var all sync.WaitGroup
	for range l.clients {
		all.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				r.request(ctx)
			}
		})
	}
	if l.rate > 0 {
		rng := rand.New(rand.NewPCG(1, 2))
		for at := began; at.Before(end) && ctx.Err() == nil; at = at.Add(time.Duration(rng.ExpFloat64() / l.rate * float64(time.Second))) {
			time.Sleep(time.Until(at))
			all.Go(func() { r.request(ctx) })
		}
	}
	all.Wait()
	return r.seen(lasts)
}

func (r *recorder) seen(lasts time.Duration) seen {
	slices.Sort(r.times)
	return seen{
		throughput: float64(len(r.times)) / lasts.Seconds(),
		p50:        quantile(r.times, 0.5),
		p99:        quantile(r.times, 0.99),
		refused:    float64(r.refused) / float64(max(r.all, 1)),
		failed:     float64(r.failed) / float64(max(r.all, 1)),
	}
}

// quantile returns a quantile of sorted values; 0 of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

// get asks and returns the status, 0 if there was none.
func get(ctx context.Context, client *http.Client, address string) (int, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return 0, err
	}
	r, err := client.Do(q)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return r.StatusCode, err
}
