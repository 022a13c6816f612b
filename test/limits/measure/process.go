package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Where app and sidecar listen.
const (
	appAddress     = "127.0.0.1:18480"
	sidecarAddress = "127.0.0.1:18412"
	statusAddress  = "127.0.0.1:18408"
)

// queueDepth is how many may wait behind every limit: in the closed loop nobody is refused.
const queueDepth = clients

// A process is the app or the sidecar.
type process struct{ *exec.Cmd }

func startApp(ctx context.Context, app string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(ctx, exec.Command(self, "app", app, appAddress), appAddress)
}

func startSidecar(ctx context.Context, path string, env []string) (*process, error) {
	c := exec.Command(path)
	c.Env = append(os.Environ(), "ON_KNATIVE=false", "USER_PORT=18480", "QUEUE_SERVING_PORT=18412", "QUEUE_SERVING_TLS_PORT=18413",
		"ADMIN_PORT=18422", "AUTOSCALER_PORT=18490", "METRICS_PORT=18491", "STATUS_PORT=18408", "DRAIN_QUIET_PERIOD=0s",
		fmt.Sprintf("QUEUE_DEPTH=%d", queueDepth))
	c.Env = append(c.Env, env...)
	return start(ctx, c, sidecarAddress)
}

// start starts a process and waits until it answers.
func start(ctx context.Context, c *exec.Cmd, address string) (*process, error) {
	if err := c.Start(); err != nil {
		return nil, err
	}
	p := &process{c}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		if got, err := get(ctx, http.DefaultClient, address); err == nil && got == http.StatusOK {
			return p, nil
		}
		select {
		case <-ctx.Done():
			p.stop()
			return nil, fmt.Errorf("%s: no answer at %s: %w", c.Path, address, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the process and waits until it has.
func (p *process) stop() {
	_ = p.Process.Signal(syscall.SIGKILL) // nothing of it is asked for afterwards
	_ = p.Wait()
	http.DefaultClient.CloseIdleConnections()
}

// limitFound returns the limit that the sidecar has found.
func limitFound(ctx context.Context) (int, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+statusAddress+"/status.json", nil)
	if err != nil {
		return 0, err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	var s struct{ Adaptive struct{ Base int } }
	err = json.NewDecoder(r.Body).Decode(&s)
	return s.Adaptive.Base, err
}
