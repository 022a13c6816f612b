//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A variant is the path from the clients to the application.
type variant string

const (
	direct  variant = "direct"
	sidecar variant = "sidecar"
	haproxy variant = "HAProxy"
	nginx   variant = "nginx"
)

// startProxy starts the proxy of a variant, and waits until it is listening. It returns nil
// if the variant has no proxy.
func startProxy(v variant, at *parameters, r *row, o *settings) (*process, error) {
	var argv, env []string
	var file string
	var err error
	switch v {
	case direct:
		return nil, nil
	case sidecar:
		argv, env = []string{o.sidecar}, sidecarSettings(at, r, o.sidecarSettings)
	case haproxy:
		file, err = at.Configure("haproxy.cfg")
		argv = []string{"haproxy", "-db", "-q", "-f", file}
	case nginx:
		file, err = at.Configure("nginx-proxy.conf")
		argv = []string{"nginx", "-p", at.Dir, "-e", "stderr", "-c", file}
	}
	if err != nil {
		return nil, err
	}
	if argv[0], err = findProgram(argv[0]); err != nil {
		return nil, err
	}
	p, err := startProcess(string(v), at.Dir, argv, env, false)
	if err != nil {
		return nil, err
	}
	for _, address := range []string{at.Plain, at.TLS} {
		if err := awaitListener(address, p.done); err != nil {
			p.stop()
			return nil, fmt.Errorf("%s: %w: %s", v, err, p.lastOutput(1000))
		}
	}
	return p, nil
}

// sidecarSettings returns the environment of the sidecar. The settings of the row override all other
// settings, including the settings of the command line.
func sidecarSettings(at *parameters, r *row, all []string) []string {
	return slices.Concat([]string{
		"ON_KNATIVE=false",
		"USER_PORT=" + port(at.App),
		"QUEUE_SERVING_PORT=" + port(at.Plain),
		"QUEUE_SERVING_TLS_PORT=" + port(at.TLS),
		"ADMIN_PORT=" + port(at.Admin),
		"AUTOSCALER_PORT=" + port(at.Autoscaler),
		"METRICS_PORT=" + port(at.Metrics),
		"STATUS_PORT=" + port(at.Status),
		"TLS_CERT_DIR=" + filepath.Dir(at.Cert),
	}, all, r.settings)
}

// restTime is the maximum time until the statistics of the sidecar return to zero. Requests
// of disconnected clients keep their slots for up to 10 s (CLIENT_GONE_GRACE), and the
// statistics cover the last full second.
const restTime = 20 * time.Second

// awaitRest waits until the statistics of the sidecar are zero. It returns "", or a description of the
// statistics that are not zero after restTime.
func awaitRest(ctx context.Context, at *parameters) string {
	wrong := ""
	for end := time.Now().Add(restTime); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		var stats map[string]float64
		text, err := fetch(ctx, "http://"+at.Autoscaler+"/metrics?format=json")
		if err == nil {
			err = json.Unmarshal([]byte(text), &stats)
		}
		if err != nil {
			wrong = "statistics: " + err.Error()
			continue
		}
		concurrency, found := stats["queue_average_concurrent_requests"]
		switch {
		case !found:
			wrong = "statistics: no queue_average_concurrent_requests"
		case concurrency != 0:
			wrong = fmt.Sprintf("statistics: got concurrency %.2f after %v without clients", concurrency, restTime)
		case stats["queue_requests_per_second"] == 0:
			return ""
		}
	}
	return wrong
}

// failureCounters returns the failure counters of the sidecar that are not zero.
func failureCounters(ctx context.Context, at *parameters) []string {
	text, err := fetch(ctx, "http://"+at.Metrics+"/metrics")
	if err != nil {
		return []string{"metrics: " + err.Error()}
	}
	var counters []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		for _, name := range []string{"queue_proxy_request_failures_total", "queue_proxy_bounds_total", "queue_proxy_replays_total"} {
			if strings.HasPrefix(line, name) && !strings.HasSuffix(line, " 0") {
				counters = append(counters, line)
			}
		}
	}
	return counters
}

// fetch returns the content of a URL.
func fetch(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", fmt.Errorf("fetch: %w", err)
	}
	t := &http.Transport{DisableKeepAlives: true}
	w, err := t.RoundTrip(r)
	if err != nil {
		return "", fmt.Errorf("fetch: %w", err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(io.LimitReader(w.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("fetch: %w", err)
	}
	return string(text), nil
}
