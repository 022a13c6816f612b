package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// A result contains the measurements of the requests in all groups, except groups with aside
// set.
type result struct {
	goodput float64 // number of responses with status 200 per second
	p99     float64 // 99th percentile of the time of these responses in seconds
	failed  float64 // share of unsuccessful responses; canceled requests are excluded
}

// recorder counts the responses of the measured clients.
type recorder struct {
	mu     sync.Mutex
	from   time.Time
	times  []float64
	failed int
}

func (r *recorder) note(began time.Time, ok bool) {
	took := time.Since(began).Seconds()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case time.Now().Before(r.from):
	case ok:
		r.times = append(r.times, took)
	default:
		r.failed++
	}
}

// load runs the clients of a row against an address. It waits for the duration warm, and then
// measures for the duration lasts.
func load(ctx context.Context, groups []group, address string, warm, lasts time.Duration) result {
	began := time.Now()
	ctx, cancel := context.WithDeadline(ctx, began.Add(warm+lasts))
	defer cancel()
	r := &recorder{from: began.Add(warm)}
	var all sync.WaitGroup
	for _, g := range groups {
		for i := range g.n {
			all.Go(func() {
				g.pause(ctx, min(g.after, warm/2))
				g.client(ctx, r, address, i)
			})
		}
	}
	all.Wait()
	slices.Sort(r.times)
	return result{
		goodput: float64(len(r.times)) / lasts.Seconds(),
		p99:     quantile(r.times, 0.99),
		failed:  float64(r.failed) / float64(max(r.failed+len(r.times), 1)),
	}
}

// quantile returns a quantile of sorted values, or 0 if there are no values.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (g *group) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// client sends requests until the context is done.
func (g *group) client(ctx context.Context, r *recorder, address string, number int) {
	t := &http.Transport{DisableCompression: true}
	if g.h2 {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	defer t.CloseIdleConnections()
	for i := number; ctx.Err() == nil; i++ {
		if g.burst > 0 {
			if at := time.Duration(time.Now().UnixNano()) % g.burst; at > g.burst/5 {
				g.pause(ctx, g.burst-at)
				continue
			}
		}
		began := time.Now()
		ok, err := g.request(ctx, &http.Client{Transport: t}, "http://"+address+g.paths[i%len(g.paths)])
		if ctx.Err() == nil && !g.aside {
			r.note(began, ok && err == nil)
		}
		if err != nil {
			g.pause(ctx, 10*time.Millisecond)
		}
	}
}

// request sends a request and reports whether the response has the status 200.
func (g *group) request(ctx context.Context, client *http.Client, url string) (ok bool, err error) {
	if g.cancel > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, g.cancel)
		defer cancel()
	}
	if g.socket {
		return false, openSocket(ctx, url)
	}
	method, body := http.MethodGet, io.Reader(nil)
	if g.upload > 0 {
		method, body = http.MethodPost, &slowBody{ctx: ctx, left: int(g.upload / time.Second)}
	}
	q, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return false, err
	}
	if g.h2 {
		q.Header.Set("Content-Type", "application/grpc")
	}
	res, err := client.Do(q)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	g.pause(ctx, g.read)
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode == http.StatusOK, err
}

// slowBody is a request body of one byte per second.
type slowBody struct {
	ctx  context.Context
	left int
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.left--; b.left < 0 {
		return 0, io.EOF
	}
	select {
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	case <-time.After(time.Second):
		return copy(p, "x"), nil
	}
}

// openSocket opens a WebSocket and keeps it until the context is done.
func openSocket(ctx context.Context, url string) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", q.URL.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	fmt.Fprintf(conn, "GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), q)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		return errors.New(res.Status)
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
