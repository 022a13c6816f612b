package status

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// adaptive is what an adaptive limit has decided.
type adaptive struct {
	Base   int          `json:"base"` // the limit that was chosen; another one is in force while it is compared
	Reason adapt.Reason `json:"reason"`
}

// Advice returns the limit that an adaptive limit has settled on, or the data that is missing.
func (b *Board) Advice() adapt.Advice {
	a := adapt.Advise(b.sources.Adaptive())
	a.Seen = b.curve.Seen()
	return a
}

// WhyLimit asks the sidecar whose status page is at address (host:port) which limit on
// concurrency is in force, and which limit it has settled on. The answer is written to w,
// as text for people or as JSON.
func WhyLimit(ctx context.Context, address string, asJSON bool, w io.Writer) error {
	s, err := get(ctx, address, path)
	if err != nil {
		return err
	}
	if asJSON {
		return printable.JSON(w, struct {
			Limit    int          `json:"limit"`
			Depth    int          `json:"depth"`
			Running  int          `json:"running"`
			Waiting  int          `json:"waiting"`
			Adaptive *adaptive    `json:"adaptive,omitempty"`
			Advice   adapt.Advice `json:"advice"`
		}{s.Limit, s.Depth, s.Running, s.Waiting, s.Adaptive, s.Advice})
	}
	_, err = io.WriteString(w, printable.Lines(s.limitText()))
	return err
}

// limitText is the answer for people.
func (s *snapshot) limitText() string {
	var b strings.Builder
	switch {
	case s.Adaptive != nil:
		fmt.Fprintf(&b, "limit in force: %d, adaptive: %s\n", s.Limit, s.Adaptive.Reason.Words())
	case s.Limit > 0:
		fmt.Fprintf(&b, "limit in force: %d\n", s.Limit)
	default:
		b.WriteString("limit in force: none\n")
	}
	if s.Advice.Limit > 0 {
		fmt.Fprintf(&b, "settled limit: %d\n", s.Advice.Limit)
	} else {
		b.WriteString("settled limit: unknown\n")
	}
	fmt.Fprintf(&b, "  %s\n", s.Advice.Reason)
	if seen := fewer(s.Advice); len(seen) > 0 {
		b.WriteString("seen in the last minutes:\n  in flight   requests    app time  throughput\n")
		for _, x := range seen {
			fmt.Fprintf(&b, "  %9.0f %10d %8.1f ms %9.1f/s\n", x.InFlight, x.Requests, x.AppTime, x.Throughput)
		}
	}
	return b.String()
}

// fewer returns as much of what was seen as people read: the place that is advised, the
// last one, and others that lie well apart.
func fewer(a adapt.Advice) (seen []adapt.Seen) {
	const apart = 1.2
	last := 0.0
	for i, x := range a.Seen {
		if x.InFlight >= apart*last || i == len(a.Seen)-1 || int(x.InFlight+0.5) == a.Limit {
			seen, last = append(seen, x), x.InFlight
		}
	}
	return seen
}
