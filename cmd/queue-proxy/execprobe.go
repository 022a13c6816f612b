package main

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/sidecar"
)

// defaultProbeTime is the time limit of an exec probe if the flag value is 0.
const defaultProbeTime = 10 * time.Second

// execProbe is the exec probe that Knative 0.8 to 0.25 configures for this container. It waits until the
// sidecar in the container is ready. A negative duration means that the flag is not set.
type execProbe struct{ period, timeout time.Duration }

// parseTime returns a function that parses a duration or a number of seconds and stores it in to.
func parseTime(to *time.Duration) func(text string) error {
	return func(text string) error {
		d, err := time.ParseDuration(text)
		if n, nerr := strconv.Atoi(text); nerr == nil {
			d, err = time.Duration(n)*time.Second, nil
		}
		if err != nil {
			return errors.New("must be a number of seconds or a duration")
		}
		*to = d
		return nil
	}
}

// given reports whether one of the flags is set.
func (p *execProbe) given() bool { return max(p.period, p.timeout) >= 0 }

// run waits until the sidecar on port is ready. It returns an error if the sidecar is shutting down
// or the time limit expires.
func (p *execProbe) run(port int) error {
	limit := cmp.Or(max(p.period, p.timeout), defaultProbeTime)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return sidecar.AwaitReady(ctx, port)
}
