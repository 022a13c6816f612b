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
// binary asks the running sidecar the queue probe until it says yes.
type execProbe struct{ period, timeout span }

// span is a duration that may be written as a number of seconds; below 0 it was
// not given.
type span struct {
	given bool
	value time.Duration
}

// String implements flag.Value.
func (s *span) String() string {
	if s == nil || !s.given {
		return "-1"
	}
	return s.value.String()
}

// Set implements flag.Value.
func (s *span) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, nerr := strconv.Atoi(text); nerr == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil {
		return errors.New("want seconds or a duration")
	}
	s.given, s.value = d >= 0, d
	return nil
}

// wanted reports whether one of the flags was given.
func (p *execProbe) wanted() bool { return p.period.given || p.timeout.given }

// run asks until the sidecar on port is ready, is shutting down, or time is up.
func (p *execProbe) run(port int) error {
	limit := max(p.period.value, p.timeout.value)
	if limit == 0 {
		limit = askDefault
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return sidecar.AwaitReady(ctx, port)
}
