//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// An outcome is the result of a row in one variant.
type outcome struct {
	result
	connections int      // highest number of connections to the application
	gauges      []string // values of the gauges in a row of an hour
	notes       []string // counters and output that help to find the cause of failures
}

// runRow runs a row in one variant.
func runRow(ctx context.Context, dir string, r *row, v variant, o *settings) (*outcome, error) {
	at, err := newParameters(dir, r, v, o)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(at.Dir)
	app, err := startApplication(at, r)
	if err != nil {
		return nil, err
	}
	defer app.stop()
	proxy, err := startProxy(v, at, r, o)
	if err != nil {
		return nil, err
	}
	if proxy != nil {
		defer proxy.stop()
	}
	application := at.App
	if v == direct {
		application = at.Target
	}
	highest := countConnections(application)
	var samples func() series
	if r.hour {
		samples = sampleGauges(ctx, at, max(time.Second, time.Duration(at.Seconds)*time.Second/samplesOfHour))
	}
	out := &outcome{}
	err = runLoads(ctx, at, r, &out.result)
	out.connections = highest()
	if samples != nil {
		out.checkGrowth(samples())
	}
	if err != nil {
		return nil, err
	}
	out.check(ctx, at, v, app, proxy)
	return out, nil
}

// check adds the failures that are visible after the load: processes that have exited, and
// statistics of the sidecar that do not return to zero.
func (out *outcome) check(ctx context.Context, at *parameters, v variant, app, proxy *process) {
	for _, p := range []*process{app, proxy} {
		if p != nil && !p.running() {
			out.fail(p.name+" ended", 1)
			out.notes = append(out.notes, p.lastOutput(2000))
		}
	}
	if v != sidecar || !proxy.running() {
		return
	}
	if wrong := awaitRest(ctx, at); wrong != "" {
		out.fail(wrong, 1)
	}
	out.notes = append(out.notes, failureCounters(ctx, at)...)
}

// samplesOfHour is the number of samples in a row that takes an hour.
const samplesOfHour = 240

// checkGrowth adds a failure for each gauge that grows.
func (out *outcome) checkGrowth(samples series) {
	grown, gauges := samples.growth()
	for _, name := range grown {
		out.fail(name, 1)
	}
	out.gauges = gauges
}

// startApplication starts the application of a row, and waits until it listens.
func startApplication(at *parameters, r *row) (*process, error) {
	argv, err := at.argv(r.app)
	if err != nil {
		return nil, err
	}
	p, err := startProcess("application", at.Dir, argv, at.environment(), false)
	if err != nil {
		return nil, err
	}
	if err := awaitListener(at.App, p.done); err != nil {
		p.stop()
		return nil, fmt.Errorf("application: %w: %s", err, p.lastOutput(1000))
	}
	return p, nil
}

// environment returns the environment of applications and clients.
func (p *parameters) environment() []string {
	return append(os.Environ(), "NODE_PATH="+p.Modules, "PYTHONPATH="+p.Peers, "PYTHONDONTWRITEBYTECODE=1")
}

// loadTime is the maximum time that a client load takes in addition to its duration, for example
// to reach the minimum number of requests.
const loadTime = maxLoadTime + maxCallTime + patience

// runLoads runs all clients of a row at the same time and adds up their results.
func runLoads(ctx context.Context, at *parameters, r *row, sum *result) error {
	var clients []*process
	defer func() {
		for _, p := range clients {
			p.stop()
		}
	}()
	for _, c := range r.loads {
		argv, err := at.argv(c)
		if err != nil {
			return err
		}
		p, err := startProcess("client", at.Dir, argv, at.environment(), true)
		if err != nil {
			return err
		}
		clients = append(clients, p)
	}
	late := time.After(time.Duration(at.Seconds)*time.Second + loadTime)
	for i, p := range clients {
		select {
		case <-p.done:
		case <-late:
			sum.fail("client is still running: "+filepath.Base(p.cmd.Path), 1)
			continue
		case <-ctx.Done():
			return ctx.Err()
		}
		part, err := parseResult(p.cmd.Path, p.stdout.String())
		if err != nil {
			return fmt.Errorf("client %d of %q: %w: %s", i+1, r.name, err, p.lastOutput(2000))
		}
		if len(clients) > 1 {
			part.Failures = withPrefix(fmt.Sprintf("client %d: ", i+1), part.Failures)
		}
		sum.add(part)
	}
	return nil
}
