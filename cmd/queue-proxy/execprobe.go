package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/sidecar"
)

// askDefault is how long the sidecar is asked when the flag says 0.
const askDefault = 10 * time.Second

// execProbe is the exec probe that Knative 0.8 to 0.25 put on this container: the
// binary asks the running sidecar the queue probe until it says yes. What is below 0 was
// not given.
type execProbe struct{ period, timeout time.Duration }

// setSpan returns what reads a duration that may be written as a number of seconds.
func setSpan(to *time.Duration) func(text string) error {
	return func(text string) error {
		d, err := time.ParseDuration(text)
		if n, nerr := strconv.Atoi(text); nerr == nil {
			d, err = time.Duration(n)*time.Second, nil
		}
		if err != nil {
			return errors.New("want seconds or a duration")
		}
		*to = d
		return nil
	}
}

// wanted reports whether one of the flags was given.
func (p *execProbe) wanted() bool { return max(p.period, p.timeout) >= 0 }

// run asks until the sidecar on port is ready, is shutting down, or time is up.
func (p *execProbe) run(port int) error {
	limit := max(p.period, p.timeout)
	if limit == 0 {
		limit = askDefault
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return sidecar.AwaitReady(ctx, port)
}
