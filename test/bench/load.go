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
	"time"
)

// A load is what is asked of every peer in turn, as fast as it answers.
type load struct {
	id          string
	connections int
	streams     int // at once on each connection, over HTTP/2; 0: HTTP/1.1
	tls         bool
	path        string
	script      string // of wrk, in Lua
}

// post10k is a request of wrk's with a body of 10 KB.
const post10k = `wrk.method = "POST"
wrk.body = string.rep("x", 10240)
wrk.headers["Content-Type"] = "application/octet-stream"
`

// loads are all of them, in the order in which they run.
var loads = []load{
	{id: "get-1", connections: 1, path: "/"},
	{id: "get-16", connections: 16, path: "/"},
	{id: "get-64", connections: 64, path: "/"},
	{id: "post-10k", connections: 16, path: "/", script: post10k},
	{id: "down-100k", connections: 16, path: "/100k"},
	{id: "h2c", connections: 4, streams: 16, path: "/"},
	{id: "tls", connections: 16, tls: true, path: "/"},
}

// telemetryLoad is the one for which the variants are compared.
const telemetryLoad = "get-16"

// outcome is what a load came to.
type outcome struct {
	requests int
	perSec   float64
}

// run asks the peer at this place for so many seconds. An answer that is not 2xx
// or 3xx, and every error of a connection, is an error.
func (l *load) run(ctx context.Context, at *place, seconds int) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+patience)
	defer cancel()
	var cmd *exec.Cmd
	parse := parseWrk
	if l.streams > 0 {
		parse = parseH2load
		cmd = exec.CommandContext(ctx, "h2load", "-t", "1", "-c", strconv.Itoa(l.connections), "-m", strconv.Itoa(l.streams),
			"-D", strconv.Itoa(seconds), "http://"+at.H2C+l.path)
	} else {
		args := []string{"-t", "1", "-c", strconv.Itoa(l.connections), "-d", strconv.Itoa(seconds) + "s"}
		if l.script != "" {
			name := filepath.Join(at.Dir, l.id+".lua")
			if err := os.WriteFile(name, []byte(l.script), 0o600); err != nil {
				return outcome{}, err
			}
			args = append(args, "-s", name)
		}
		if l.tls {
			args = append(args, "https://"+at.TLS+l.path)
		} else {
			args = append(args, "http://"+at.Address+l.path)
		}
		cmd = exec.CommandContext(ctx, "wrk", args...)
	}
	text, err := cmd.CombinedOutput()
	if err != nil {
		return outcome{}, fmt.Errorf("%v: %w: %s", cmd.Args, err, text)
	}
	o, err := parse(string(text))
	if err != nil {
		return outcome{}, fmt.Errorf("%v: %w", cmd.Args, err)
	}
	return o, nil
}

var (
	wrkRequests = regexp.MustCompile(`(?m)^\s*(\d+) requests in `)
	wrkRate     = regexp.MustCompile(`(?m)^Requests/sec:\s*([0-9.]+)`)
	wrkErrors   = regexp.MustCompile(`(?m)^\s*(Socket errors: .*|Non-2xx or 3xx responses: .*)$`)

	h2loadRate     = regexp.MustCompile(`(?m)^finished in .*?, ([0-9.]+) req/s`)
	h2loadRequests = regexp.MustCompile(`(?m)^requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored`)
	h2loadStatus   = regexp.MustCompile(`(?m)^status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx`)
)

// parseWrk reads what wrk 4 prints.
func parseWrk(text string) (outcome, error) {
	if m := wrkErrors.FindStringSubmatch(text); m != nil {
		return outcome{}, errors.New(m[1])
	}
	return parseOutcome(wrkRequests.FindStringSubmatch(text), wrkRate.FindStringSubmatch(text), text)
}

// parseH2load reads what h2load 1.x prints.
func parseH2load(text string) (outcome, error) {
	requests := h2loadRequests.FindStringSubmatch(text)
	status := h2loadStatus.FindStringSubmatch(text)
	if requests == nil || status == nil {
		return outcome{}, fmt.Errorf("not understood: %s", text)
	}
	if requests[2] != "0" || requests[3] != "0" || status[3] != "0" || status[4] != "0" {
		return outcome{}, fmt.Errorf("%s; %s", requests[0], status[0])
	}
	return parseOutcome(requests, h2loadRate.FindStringSubmatch(text), text)
}

func parseOutcome(requests, rate []string, text string) (o outcome, err error) {
	if requests == nil || rate == nil {
		return o, fmt.Errorf("not understood: %s", text)
	}
	if o.requests, err = strconv.Atoi(requests[1]); err != nil {
		return o, err
	}
	if o.perSec, err = strconv.ParseFloat(rate[1], 64); err != nil {
		return o, err
	}
	if o.requests == 0 {
		return o, fmt.Errorf("no request was answered: %s", text)
	}
	return o, nil
}
