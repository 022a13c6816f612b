//go:build linux

package main

import (
	"fmt"
	"time"
)

// Settings for the memory measurement of queued requests. By default, Knative queues ten
// times as many requests as the concurrency limit.
const (
	waitingLimit       = 100
	waitingStreams     = 10 * waitingLimit
	waitingConnections = 5
)

// waitingTime is the duration of each request in the app. It is longer than the measurement.
const waitingTime = time.Minute

// memoryOfWaiting measures the memory of an HTTP/2 stream that waits for a slot: the increase
// in memory after the concurrency limit is reached and the queue is filled with streams.
func (b *bench) memoryOfWaiting(p *peer, app *runningApp) error {
	r, err := b.start(p, circumstances{app: app, limit: waitingLimit})
	if err != nil {
		return err
	}
	defer r.stop()
	k := client{h2: true}
	var clients []*h2Asker
	for range waitingConnections {
		c, err := k.dial(k.address(r.at))
		if err != nil {
			return err
		}
		defer c.Close()
		a, err := newH2Asker(c, k.address(r.at), fmt.Sprintf("/slow?ms=%d", waitingTime.Milliseconds()), false)
		if err != nil {
			return err
		}
		clients = append(clients, a)
	}
	grown := func(streams int) (float64, error) {
		for range streams / waitingConnections {
			for _, a := range clients {
				if err := a.open(); err != nil {
					return 0, err
				}
			}
		}
		time.Sleep(settle)
		return r.memory("VmRSS")
	}
	served, err := grown(waitingLimit)
	if err != nil {
		return err
	}
	all, err := grown(waitingStreams)
	if err != nil {
		return err
	}
	b.results.add("memory/waiting", p.name, (all-served)/1e3/waitingStreams)
	return nil
}
