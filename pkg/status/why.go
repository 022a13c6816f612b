package status

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Why asks the sidecar whose status page is at address (host:port) whether the
// pod is ready and, if not, why not. The answer is written to w, as text for
// people or as JSON.
func Why(ctx context.Context, address string, asJSON bool, w io.Writer) (ready bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+Path+"?ask", nil)
	if err != nil {
		return false, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(r)
	if err != nil {
		return false, fmt.Errorf("no sidecar answers on this host: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return false, fmt.Errorf("the sidecar answered %s", res.Status)
	}
	var s Snapshot
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		return false, fmt.Errorf("the sidecar's answer cannot be read: %w", err)
	}
	if asJSON {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return s.Ready, out.Encode(struct {
			Ready     bool   `json:"ready"`
			Reason    string `json:"reason,omitempty"`
			Readiness any    `json:"readiness"`
			Drain     Drain  `json:"drain"`
			Running   int    `json:"running"`
			Waiting   int    `json:"waiting"`
		}{s.Ready, s.Reason, s.Readiness, s.Drain, s.Running, s.Waiting})
	}
	_, err = io.WriteString(w, s.text())
	return s.Ready, err
}

// text is the answer for people.
func (s *Snapshot) text() string {
	var b strings.Builder
	since := func(t time.Time) time.Duration { return max(s.Now.Sub(t), 0).Round(time.Second) }
	switch {
	case s.Drain.Draining:
		fmt.Fprintf(&b, "not ready: draining, the pod is ending; %d in flight", s.Drain.InFlight)
		if s.Drain.Deadline != nil {
			fmt.Fprintf(&b, ", what is left is cut in %v", max(s.Drain.Deadline.Sub(s.Now), 0).Round(time.Second))
		}
		b.WriteByte('\n')
	case s.Ready:
		fmt.Fprintf(&b, "ready for %v\n", since(s.Readiness.Since))
	default:
		fmt.Fprintf(&b, "%s\nfor %v\n", s.Reason, since(s.Readiness.Since))
	}
	for _, p := range s.Readiness.Probes {
		fmt.Fprintf(&b, "  probe %d  %s %s: %s", p.Index, p.Kind, p.Target, p.Phase)
		if p.Word != "" {
			fmt.Fprintf(&b, ", %s", p.Word)
		}
		if p.Code != 0 {
			fmt.Fprintf(&b, " %d", p.Code)
		}
		fmt.Fprintf(&b, ", asked %d times\n", p.Tries)
		if p.Detail != "" {
			fmt.Fprintf(&b, "           %s\n", p.Detail)
		}
		if p.Warning != "" {
			fmt.Fprintf(&b, "           passed in spite of: %s\n", p.Warning)
		}
	}
	fmt.Fprintf(&b, "%d running, %d waiting", s.Running, s.Waiting)
	if s.Limit > 0 {
		fmt.Fprintf(&b, " (at most %d and %d)", s.Limit, s.Depth)
	}
	b.WriteByte('\n')
	return b.String()
}
