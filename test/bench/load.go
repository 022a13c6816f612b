//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A load is a sequence of requests that each peer serves in turn at its maximum rate.
type load struct {
	id          string
	group       string // group that contains the rows of the load
	title       string
	connections int
	streams     int // number of concurrent streams on each HTTP/2 connection; 0 selects HTTP/1.1
	tls         bool
	grpc        bool // send gRPC calls to the app that supports only gRPC; otherwise, the app supports only HTTP/1.1
	path        string
	script      string // Lua script for wrk
	latency     bool   // measure the median latency
}

// post10k is a wrk script that sends requests with a body of 10 KB.
const post10k = `wrk.method = "POST"
wrk.body = string.rep("x", 10240)
wrk.headers["Content-Type"] = "application/octet-stream"
`

// grpcRequest is a gRPC message of 100 bytes with its prefix of five bytes.
var grpcRequest = append([]byte{0, 0, 0, 0, 100}, make([]byte, 100)...)

const grpcPath = "/bench.Echo/Call"

// loads lists all loads in the order in which they run.
var loads = []load{
	{id: "get-1", group: "plain", title: "GET 1 KB, 1 connection", connections: 1, path: "/"},
	{id: "get-16", group: "plain", title: "GET 1 KB, 16 connections", connections: 16, path: "/"},
	{id: "get-64", group: "plain", title: "GET 1 KB, 64 connections", connections: 64, path: "/"},
	{id: "post-10k", group: "plain", title: "POST 10 KB, 16 connections", connections: 16, path: "/", script: post10k},
	{id: "down-100k", group: "plain", title: "GET 100 KB, 16 connections", connections: 16, path: "/100k"},

	{id: "tls-1", group: "tls", title: "GET 1 KB, TLS, 1 connection", connections: 1, tls: true, path: "/"},
	{id: "tls-16", group: "tls", title: "GET 1 KB, TLS, 16 connections", connections: 16, tls: true, path: "/"},
	{id: "tls-post-10k", group: "tls", title: "POST 10 KB, TLS, 16 connections", connections: 16, tls: true, path: "/", script: post10k},
	{id: "tls-100k", group: "tls", title: "GET 100 KB, TLS, 16 connections", connections: 16, tls: true, path: "/100k"},

	{id: "h2c-1x1", group: "h2", title: "GET 1 KB, h2c, 1 connection of 1 stream", connections: 1, streams: 1, path: "/"},
	{id: "h2c-1x100", group: "h2", title: "GET 1 KB, h2c, 1 connection of 100 streams", connections: 1, streams: 100, path: "/"},
	{id: "h2c-4x16", group: "h2", title: "GET 1 KB, h2c, 4 connections of 16 streams", connections: 4, streams: 16, path: "/"},
	{id: "h2c-100k-4x4", group: "h2", title: "GET 100 KB, h2c, 4 connections of 4 streams", connections: 4, streams: 4, path: "/100k"},
	{id: "h2tls-4x16", group: "h2", title: "GET 1 KB, HTTP/2 over TLS, 4 connections of 16 streams", connections: 4, streams: 16, tls: true, path: "/"},

	{id: "grpc-1x1", group: "grpc", title: "gRPC, 1 connection of 1 call", connections: 1, streams: 1, grpc: true, path: grpcPath},
	{id: "grpc-1x64", group: "grpc", title: "gRPC, 1 connection of 64 calls", connections: 1, streams: 64, grpc: true, path: grpcPath, latency: true},
	{id: "grpc-16x4", group: "grpc", title: "gRPC, 16 connections of 4 calls", connections: 16, streams: 4, grpc: true, path: grpcPath},
}

// telemetryLoad is the load that is used to compare the variants.
const telemetryLoad = "get-16"

// pairedLoads lists the loads of the paired rounds.
var pairedLoads = []string{"get-16", "get-64"}

// findLoad returns the load with the given ID. It panics if there is no such load.
func findLoad(id string) *load {
	for i := range loads {
		if loads[i].id == id {
			return &loads[i]
		}
	}
	panic("no load " + id)
}

// An outcome is the result of a load.
type outcome struct {
	requests int
	perSec   float64
	p50      time.Duration // median latency; only set for loads with latency
}

// run sends requests to a peer for the given number of seconds. It returns an error if a
// connection fails or if the status of a response is not 2xx or 3xx.
func (l *load) run(ctx context.Context, at *parameters, seconds int) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+patience)
	defer cancel()
	argv, parse := l.wrk, parseWrk
	if l.streams > 0 {
		argv, parse = l.h2load, parseH2load
	}
	args, err := argv(at, seconds)
	if err != nil {
		return outcome{}, err
	}
	text, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return outcome{}, fmt.Errorf("%v: %w: %s", args, err, text)
	}
	o, err := parse(string(text))
	if err != nil {
		return outcome{}, fmt.Errorf("%v: %w", args, err)
	}
	if l.latency {
		o.p50, err = medianOfLog(l.log(at))
	}
	return o, err
}

// wrk returns the command line of wrk, which generates a load over HTTP/1.1.
func (l *load) wrk(at *parameters, seconds int) ([]string, error) {
	args := []string{"wrk", "-t", "1", "-c", strconv.Itoa(l.connections), "-d", strconv.Itoa(seconds) + "s"}
	if l.script != "" {
		name := filepath.Join(at.Dir, l.id+".lua")
		if err := os.WriteFile(name, []byte(l.script), 0o600); err != nil {
			return nil, err
		}
		args = append(args, "-s", name)
	}
	if l.tls {
		return append(args, "https://"+at.TLS+l.path), nil
	}
	return append(args, "http://"+at.Address+l.path), nil
}

// h2load returns the command line of a load over HTTP/2.
func (l *load) h2load(at *parameters, seconds int) ([]string, error) {
	args := []string{"h2load", "-t", "1", "-c", strconv.Itoa(l.connections), "-m", strconv.Itoa(l.streams), "-D", strconv.Itoa(seconds)}
	if l.grpc {
		name := filepath.Join(at.Dir, l.id+".message")
		if err := os.WriteFile(name, grpcRequest, 0o600); err != nil {
			return nil, err
		}
		args = append(args, "-d", name, "-H", "content-type: application/grpc", "-H", "te: trailers")
	}
	if l.latency {
		// Remove the log of an earlier run, because h2load appends to an existing file.
		if err := os.Remove(l.log(at)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		args = append(args, "--log-file="+l.log(at))
	}
	if l.tls {
		return append(args, "https://"+at.TLS+l.path), nil
	}
	return append(args, "http://"+at.H2C+l.path), nil
}

// log returns the path of the log in which h2load writes a line for each request.
func (l *load) log(at *parameters) string { return filepath.Join(at.Dir, l.id+".log") }

// medianOfLog returns the median duration in a log of h2load. The third column contains
// the durations in microseconds.
func medianOfLog(name string) (time.Duration, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	var took []time.Duration
	for line := range strings.Lines(string(text)) {
		columns := strings.Fields(line)
		if len(columns) < 3 {
			return 0, fmt.Errorf("%s: invalid line %q", filepath.Base(name), line)
		}
		us, err := strconv.Atoi(columns[2])
		if err != nil {
			return 0, fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
		took = append(took, time.Duration(us)*time.Microsecond)
	}
	if len(took) == 0 {
		return 0, fmt.Errorf("%s: no requests were sent", filepath.Base(name))
	}
	return percentile(took, 50), nil
}

var (
	wrkRequests = regexp.MustCompile(`(?m)^\s*(\d+) requests in `)
	wrkRate     = regexp.MustCompile(`(?m)^Requests/sec:\s*([0-9.]+)`)
	wrkErrors   = regexp.MustCompile(`(?m)^\s*(Socket errors: .*|Non-2xx or 3xx responses: .*)$`)

	h2loadRate     = regexp.MustCompile(`(?m)^finished in .*?, ([0-9.]+) req/s`)
	h2loadRequests = regexp.MustCompile(`(?m)^requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored`)
	h2loadStatus   = regexp.MustCompile(`(?m)^status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx`)
)

// parseWrk parses the output of wrk 4.
func parseWrk(text string) (outcome, error) {
	if m := wrkErrors.FindStringSubmatch(text); m != nil {
		return outcome{}, errors.New(m[1])
	}
	return parseOutcome(wrkRequests.FindStringSubmatch(text), wrkRate.FindStringSubmatch(text), text)
}

// parseH2load parses the output of h2load 1.x.
func parseH2load(text string) (outcome, error) {
	requests := h2loadRequests.FindStringSubmatch(text)
	status := h2loadStatus.FindStringSubmatch(text)
	if requests == nil || status == nil {
		return outcome{}, fmt.Errorf("unexpected output: %s", text)
	}
	if requests[2] != "0" || requests[3] != "0" || status[3] != "0" || status[4] != "0" {
		return outcome{}, fmt.Errorf("%s; %s", requests[0], status[0])
	}
	return parseOutcome(requests, h2loadRate.FindStringSubmatch(text), text)
}

func parseOutcome(requests, rate []string, text string) (o outcome, err error) {
	if requests == nil || rate == nil {
		return o, fmt.Errorf("unexpected output: %s", text)
	}
	if o.requests, err = strconv.Atoi(requests[1]); err != nil {
		return o, err
	}
	if o.perSec, err = strconv.ParseFloat(rate[1], 64); err != nil {
		return o, err
	}
	if o.requests == 0 {
		return o, fmt.Errorf("no request succeeded: %s", text)
	}
	return o, nil
}
