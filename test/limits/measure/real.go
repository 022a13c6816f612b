package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/test/limits/simulation"
)

// The addresses of the application and the sidecar.
const (
	appAddress     = "127.0.0.1:18480"
	sidecarAddress = "127.0.0.1:18412"
	statusAddress  = "127.0.0.1:18408"
)

// ceiling is the maximum of the adaptive limit.
const ceiling = 100

// fixedWarm is the time before the measurement of a fixed limit.
const fixedWarm = 5 * time.Second

// realTable returns the table of the rows that are measured with real programs.
func realTable(ctx context.Context, s *settings) table {
	t := table{
		title:  "Real rows",
		header: "| row | best fixed | goodput, 1/s | ceiling | adaptive | found | p99 | errors, % | result | measured |",
	}
	for _, r := range realRows() {
		t.lines = append(t.lines, line{r.name, r.String(), func() (string, error) { return s.line(ctx, &r) }})
	}
	return t
}

// line measures a row with each limit. It returns the cells of the row except the first.
func (s *settings) line(ctx context.Context, r *row) (string, error) {
	began := time.Now()
	limits := append(append([]int(nil), r.sweep...), ceiling)
	var results []result
	var measured []simulation.Measurement
	for _, n := range limits {
		got, _, err := s.measure(ctx, r, "CONCURRENCY_MODE=fixed", n, s.fixedWarm(r))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(os.Stderr, "%s, limit %d: %.1f/s, p99 %.0f ms, %.1f %% errors\n", r.name, n, got.goodput, 1000*got.p99, 100*got.failed)
		results = append(results, got)
		measured = append(measured, simulation.Measurement{Goodput: got.goodput, P99: got.p99, Errors: got.failed})
	}
	i := simulation.Choose(measured)
	limit, best, top := limits[i], results[i], results[len(results)-1]
	got, found, err := s.measure(ctx, r, "CONCURRENCY_MODE=adaptive", ceiling, s.warm)
	if err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return fmt.Sprintf("%d | %.1f | %.2f | %.2f | %d | %.2f | %.1f | %s | %s", limit, best.goodput,
		top.goodput/best.goodput, got.goodput/best.goodput, found, got.p99/best.p99, 100*got.failed,
		verdict(&got, &best, &top), began.UTC().Format(time.DateOnly)), nil
}

// fixedWarm returns the time before the measurement of a fixed limit. If the application changes
// over time, this is also the time before the measurement of the adaptive limit.
func (s *settings) fixedWarm(r *row) time.Duration {
	if r.app.warm > 0 || r.app.changed != nil {
		return s.warm
	}
	return fixedWarm
}

// verdict returns the criteria that the adaptive limit does not meet.
func verdict(got, best, top *result) string {
	var missed []string
	if got.goodput < 0.85*best.goodput || got.goodput == 0 {
		missed = append(missed, "goodput of the best")
	}
	if got.p99 > 1.5*best.p99 {
		missed = append(missed, "p99")
	}
	if got.goodput < 0.97*top.goodput {
		missed = append(missed, "goodput of the ceiling")
	}
	if len(missed) == 0 {
		return "pass"
	}
	return "**not recommended**: " + strings.Join(missed, ", ")
}

// measure starts the application and the sidecar with a limit and measures the load. found
// is the limit at the end.
func (s *settings) measure(ctx context.Context, r *row, mode string, limit int, warm time.Duration) (got result, found int, err error) {
	self, err := os.Executable()
	if err != nil {
		return got, 0, err
	}
	app, err := start(ctx, exec.Command(self, "app", r.name, appAddress), appAddress)
	if err != nil {
		return got, 0, err
	}
	defer app.stop()
	c := exec.Command(s.proxy)
	c.Env = append(os.Environ(), "ON_KNATIVE=false", "USER_PORT=18480", "QUEUE_SERVING_PORT=18412", "QUEUE_SERVING_TLS_PORT=18413",
		"ADMIN_PORT=18422", "AUTOSCALER_PORT=18490", "METRICS_PORT=18491", "STATUS_PORT=18408", "DRAIN_QUIET_PERIOD=0s",
		"QUEUE_DEPTH=1000", mode, "CONTAINER_CONCURRENCY="+strconv.Itoa(limit))
	c.Env = append(c.Env, r.settings...)
	p, err := start(ctx, c, sidecarAddress)
	if err != nil {
		return got, 0, err
	}
	defer p.stop()
	got = load(ctx, r.clients, sidecarAddress, warm, s.lasts)
	if found, err = limitFound(ctx); found == 0 {
		found = limit
	}
	return got, found, err
}

// A process is the application or the sidecar.
type process struct{ *exec.Cmd }

// startTime is the maximum time that a process may take to start.
const startTime = 10 * time.Second

// start starts a process and waits until it responds.
func start(ctx context.Context, c *exec.Cmd, address string) (*process, error) {
	if err := c.Start(); err != nil {
		return nil, err
	}
	p := &process{c}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		if got, err := get(ctx, "http://"+address+"/hold?for=0s"); err == nil && got.StatusCode == http.StatusOK {
			got.Body.Close()
			return p, nil
		}
		select {
		case <-ctx.Done():
			p.stop()
			return nil, fmt.Errorf("%s: no response at %s: %w", c.Path, address, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the process and waits for it.
func (p *process) stop() {
	_ = p.Process.Signal(syscall.SIGKILL)
	_ = p.Wait()
	http.DefaultClient.CloseIdleConnections()
}

func get(ctx context.Context, url string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(q)
}

// limitFound returns the adaptive limit of the sidecar, or 0 if the limit is fixed.
func limitFound(ctx context.Context) (int, error) {
	res, err := get(ctx, "http://"+statusAddress+"/status.json")
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var s struct{ Adaptive struct{ Base int } }
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return 0, err
	}
	return s.Adaptive.Base, nil
}
