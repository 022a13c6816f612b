//go:build linux

package main

import (
	"fmt"
	"time"
)

// The requests whose memory is looked at while they wait for the app: as many as a
// limit of waitingLimit lets wait by Knative's rule, ten times it.
const (
	waitingLimit       = 100
	waitingStreams     = 10 * waitingLimit
	waitingConnections = 5
)

// waitingTime is how long the app keeps each request that has come to it: longer than
// the measure.
const waitingTime = time.Minute

// memoryOfWaiting measures what a stream of HTTP/2 costs that waits for its slot: what a
// process has grown by when so many more are opened as the limit lets wait, and not in.
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
