package status

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// maxBody is the maximum length of the response in bytes. The client limits the header section.
const maxBody = 1 << 20

// Why requests the status page on the given port of this host. It writes the status as text or JSON to w.
// If the pod is not ready, the status contains the reason.
func Why(ctx context.Context, client *http.Client, port int, asJSON bool, w io.Writer) (ready bool, err error) {
	s, err := get(ctx, client, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false, err
	}
	if asJSON {
		return s.Ready, message.JSON(w, struct {
			Pod       string    `json:"pod"`
			Namespace string    `json:"namespace"`
			Ready     bool      `json:"ready"`
			Reason    string    `json:"reason,omitempty"`
			Problem   string    `json:"problem,omitempty"`
			Readiness any       `json:"readiness"`
			Drain     Drain     `json:"drain"`
			Running   int       `json:"running"`
			Waiting   int       `json:"waiting"`
			Limit     int       `json:"limit"`
			Depth     int       `json:"depth"`
			Adaptive  *adaptive `json:"adaptive,omitempty"`
			Totals    totals    `json:"totals"`

			Slots       []observation.Holder `json:"slots"`
			Held        int                  `json:"held"`
			Bounds      []boundState         `json:"bounds,omitempty"`
			Connections Connections          `json:"connections"`
			TLS         TLS                  `json:"tls"`
			Warnings    []string             `json:"warnings,omitempty"`
		}{s.Pod, s.Namespace, s.Ready, s.Reason, s.Problem, s.Readiness, s.Drain, s.Running, s.Waiting, s.Limit, s.Depth, s.Adaptive, s.Totals, s.Slots, s.Held, s.Bounds, s.Connections, s.TLS, s.Warnings})
	}
	_, err = io.WriteString(w, message.Lines(s.text()))
	return s.Ready, err
}

// get updates and returns the status. address is a host and a port.
func get(ctx context.Context, client *http.Client, address string) (s snapshot, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path+"?ask", nil)
	if err != nil {
		return s, err
	}
	res, err := client.Do(r)
	if err != nil {
		return s, fmt.Errorf("no sidecar found on this host: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return s, fmt.Errorf("the sidecar responded with %s", res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxBody)).Decode(&s); err != nil {
		return s, fmt.Errorf("parse the response of the sidecar: %w", err)
	}
	return s, nil
}

// text returns the state as text.
func (s *snapshot) text() string {
	var b strings.Builder
	since := func(t time.Time) time.Duration { return max(s.Now.Sub(t), 0).Round(time.Second) }
	switch {
	case s.Drain.Draining:
		fmt.Fprintf(&b, "not ready: draining, the pod is terminating; %d in flight", s.Drain.InFlight)
		if !s.Drain.Deadline.IsZero() {
			fmt.Fprintf(&b, ", remaining requests are aborted in %v", max(s.Drain.Deadline.Sub(s.Now), 0).Round(time.Second))
		}
		b.WriteByte('\n')
	case s.Ready:
		fmt.Fprintf(&b, "ready for %v\n", since(s.Readiness.Since))
	default:
		fmt.Fprintf(&b, "%s\nfor %v\n", s.Reason, since(s.Readiness.Since))
	}
	b.WriteString(s.problemsText())
	b.WriteString(s.limitsText())
	for _, p := range s.Readiness.Probes {
		fmt.Fprintf(&b, "  probe %d  %s %s: %s", p.Index, p.Kind, p.Target, p.Phase)
		if p.Word != "" {
			fmt.Fprintf(&b, ", %s", p.Word)
		}
		if p.Code != 0 {
			fmt.Fprintf(&b, " %d", p.Code)
		}
		fmt.Fprintf(&b, ", %d attempts\n", p.Tries)
		if p.Detail != "" {
			fmt.Fprintf(&b, "           %s\n", p.Detail)
		}
		if p.Warning != "" {
			fmt.Fprintf(&b, "           warning: %s\n", p.Warning)
		}
	}
	fmt.Fprintf(&b, "%d running, %d waiting", s.Running, s.Waiting)
	if s.Limit > 0 {
		fmt.Fprintf(&b, " (at most %d and %d)", s.Limit, s.Depth)
	}
	if s.Adaptive != nil {
		fmt.Fprintf(&b, "; the limit is adaptive: %s", s.Adaptive.text())
	}
	b.WriteString(s.slotsText())
	if m := s.Memory; m != nil {
		fmt.Fprintf(&b, "\nmemory of requests: %s of %s", megabytes(m.Used), megabytes(m.Limit))
	}
	requests, failed := s.Totals.sum()
	fmt.Fprintf(&b, "\nsince the start %v ago: %s, %d failed%s\n", since(s.Started), message.Count(requests, "request"), failed, s.Totals.reasons())
	if !s.TLS.failed() && s.TLS.Text != "" {
		fmt.Fprintf(&b, "TLS: %s\n", s.TLS.Text)
	}
	if s.Pod != "" {
		fmt.Fprintf(&b, "pod %s", s.Pod)
		if s.Namespace != "" {
			fmt.Fprintf(&b, ", namespace %s", s.Namespace)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// problemsText returns a line for rejected requests, for each problem and for each warning.
func (s *snapshot) problemsText() string {
	var b strings.Builder
	if r := s.Rejecting; r != nil {
		fmt.Fprintf(&b, "rejecting %.1f requests per second: %s\n", r.PerSecond, r.Reason)
	}
	if s.Problem != "" {
		fmt.Fprintf(&b, "problem: %s\n", s.Problem)
	}
	if s.TLS.failed() {
		fmt.Fprintf(&b, "problem: TLS: %s\n", s.TLS.Text)
	}
	for _, w := range s.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

// megabytes returns a number of bytes in MiB.
func megabytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// slotsText returns a line for each request that holds a slot, beginning with the oldest.
func (s *snapshot) slotsText() string {
	var b strings.Builder
	for _, h := range s.Slots {
		fmt.Fprintf(&b, "\n  %s %s: %s for %v", h.Method, h.Path, h.Phase, max(s.Now.Sub(h.Since), 0).Round(time.Millisecond))
		if s.Adaptive != nil {
			fmt.Fprintf(&b, ", %s", h.Counted)
		}
	}
	if more := s.Running - len(s.Slots) - s.Held; more > 0 && len(s.Slots) > 0 {
		fmt.Fprintf(&b, "\n  %s", message.Count(more, "more request"))
	}
	if s.Held > 0 {
		fmt.Fprintf(&b, "\n  %d slots of disconnected clients, whose requests the application still processes", s.Held)
	}
	return b.String()
}

// reasons returns the number of failures of each reason, such as ": 20 queue-full, 1 app-garbage". The reasons are
// sorted by frequency.
func (t totals) reasons() string {
	words := slices.DeleteFunc(slices.Collect(maps.Keys(t)), func(word string) bool { return word == observation.OK.String() })
	slices.SortFunc(words, func(a, b string) int { return cmp.Or(cmp.Compare(t[b], t[a]), cmp.Compare(a, b)) })
	var b strings.Builder
	separator := ": "
	for _, word := range words {
		fmt.Fprintf(&b, "%s%d %s", separator, t[word], word)
		separator = ", "
	}
	return b.String()
}
