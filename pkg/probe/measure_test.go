package probe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestMeasure prints how soon an app that opens its port is noticed, and what
// asking costs. It takes three minutes and asserts nothing, because a machine's
// speed is not a fact about this code:
//
//	PROBE_MEASURE=1 go test -run TestMeasure -v ./pkg/probe
func TestMeasure(t *testing.T) {
	if os.Getenv("PROBE_MEASURE") == "" {
		t.Skip("a measurement: set PROBE_MEASURE=1")
	}
	measureNoticed(t, "tcpSocket", `{"tcpSocket":{"port":%d}}`)
	measureNoticed(t, "httpGet", `{"httpGet":{"port":%d}}`)
	none := refusedPort(t)
	busy := newRawApp(t, "127.0.0.1:0", text(httpStatus(503)))
	for _, v := range []struct{ name, probe string }{
		{"nobody listens, tcpSocket", fmt.Sprintf(`{"tcpSocket":{"port":%d}}`, none)},
		{"nobody listens, httpGet", fmt.Sprintf(`{"httpGet":{"port":%d}}`, none)},
		{"nobody listens, grpc", fmt.Sprintf(`{"grpc":{"port":%d}}`, none)},
		{"answers 503, httpGet (with the app's own share)", fmt.Sprintf(`{"httpGet":{"port":%d}}`, busy.port)},
	} {
		measureCPU(t, v.name, v.probe)
	}
}

// measureNoticed opens a hundred apps, ten at a time, each at a random moment within
// five seconds, while somebody asks as the activator does: for 300 ms at a time.
func measureNoticed(t *testing.T, name, probe string) {
	const runs, atATime, within = 100, 10, 5 * time.Second
	var mu sync.Mutex
	var took []time.Duration
	ports := refusedPorts(t, runs)
	places := make(chan struct{}, atATime)
	var running sync.WaitGroup
	for _, port := range ports {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			probes, errs := Parse(fmt.Sprintf(probe, port), false)
			if errs != nil {
				t.Error(errs)
				return
			}
			p := New(probes, Options{})
			defer p.Stop(context.Background())
			opened := make(chan time.Time, 1)
			running.Go(func() {
				time.Sleep(rand.N(within))
				openApp(t, port)
				opened <- time.Now()
			})
			for {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				err := p.Ready(ctx)
				now := time.Now()
				cancel()
				if err == nil {
					mu.Lock()
					took = append(took, now.Sub(<-opened))
					mu.Unlock()
					return
				}
			}
		})
	}
	running.Wait()
	slices.Sort(took)
	t.Logf("noticed after, %s: median %v, p99 %v, of %d runs", name, took[len(took)/2], took[len(took)*99/100], len(took))
}

// openApp begins to listen; again, when the system has just lent the port to
// somebody's outgoing connection.
func openApp(t *testing.T, port int) {
	for begin := time.Now(); time.Since(begin) < 10*time.Second; {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			runtime.Gosched()
			continue
		}
		if err != nil {
			t.Error(err)
			return
		}
		app := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		go func() { _ = app.Serve(l) }()
		t.Cleanup(func() { _ = app.Close() })
		return
	}
	t.Errorf("port %d stays taken", port)
}

// measureCPU asks all the time, in the first ten seconds of an app's absence, in
// which it is asked most often, and in the ten after that.
func measureCPU(t *testing.T, name, probe string) {
	const window = 10 * time.Second
	probes, errs := Parse(probe, false)
	if errs != nil {
		t.Fatal(errs)
	}
	p := New(probes, Options{})
	defer p.Stop(context.Background())
	for _, when := range []string{"first", "next"} {
		before, tries := cpuTime(t), p.State().Probes[0].Tries
		ctx, cancel := context.WithTimeout(t.Context(), window)
		for ctx.Err() == nil {
			ask, leave := context.WithTimeout(ctx, 300*time.Millisecond)
			_ = p.Ready(ask)
			leave()
		}
		cancel()
		used := cpuTime(t) - before
		t.Logf("CPU while asked all the time, %s, the %s %v: %.2f %% of a core, %d tries",
			name, when, window, 100*float64(used)/float64(window), p.State().Probes[0].Tries-tries)
	}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
