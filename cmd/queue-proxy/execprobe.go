package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

const (
	// askInterval is how often a sidecar that is not ready is asked again.
	askInterval = 25 * time.Millisecond
	// askDefault is how long it is asked when the flag says 0.
	askDefault = 10 * time.Second
	// askAgent is the user agent of the exec probes of Knative since 0.10.
	askAgent = "Knative-Queue-Proxy-Probe"
)

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
	url := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	for {
		answer, err := ask(ctx, url)
		switch {
		case err == nil && answer == header.QueueValue:
			return nil
		case err == nil && strings.HasPrefix(answer, "shutting down"):
			return errors.New("probe returned not ready: shutting down")
		case ctx.Err() != nil && err != nil:
			return fmt.Errorf("failed to probe for %v: %w", limit, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("probe returned not ready for %v: %s", limit, strings.TrimSpace(answer))
		case <-time.After(askInterval):
		}
	}
}

// ask asks once and returns the answer's first bytes.
func ask(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set(header.Probe, header.QueueValue)
	r.Header.Set(header.UserAgent, askAgent)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	return string(body), err
}
