package status

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// The maximum size of the output of `queue-proxy why`, which is the size of a terminal with 24 lines of 80 characters.
const (
	maxLines = 24
	maxWidth = 80
)

// text returns the status as text that fits on a screen. Each part has a maximum number of lines. If all parts use
// their maximum, the last part is omitted.
func (s *snapshot) text() string {
	var t text
	t.add(2, s.stateText())
	if len(s.Problems) > 0 {
		p := &s.Problems[0]
		t.add(2, "problem: "+p.Problem)
		t.add(1, fmt.Sprintf("  since: %v ago (%s), confidence: %s", brief(s.Now.Sub(p.Since)), p.Since.UTC().Format("15:04:05 MST"), p.Confidence))
		if p.Numbers != "" {
			t.add(4, "  numbers: "+p.Numbers)
		}
		t.add(2, "  action: "+p.Action)
	} else if s.Ready {
		line := "no problems found"
		if l := &s.Latest; l.Requests > l.Responses {
			result := "failed"
			if l.Reasons[observation.ClientGone.String()] == uint64(l.Requests-l.Responses) {
				result = "ended because of the client"
			}
			line += fmt.Sprintf("; %s %s in the %s", message.Count(l.Requests-l.Responses, "request"), result, l.period())
		}
		t.add(1, line)
	}
	if len(s.Problems) > 1 {
		var others []string
		for _, p := range s.Problems[1:] {
			others = append(others, p.Name)
		}
		t.add(1, "also: "+strings.Join(others, ", "))
	}
	t.add(3, s.probesText()...)
	t.add(2, s.loadText())
	t.add(2, s.slotsText()...)
	t.add(3, s.latestText()...)
	t.add(2, s.totalsText())
	tls := s.TLS.Text
	if len(s.Problems) > 0 && s.Problems[0].Name == certificate {
		tls = s.TLS.inUse()
	}
	if tls != "" {
		t.add(3, "TLS: "+tls)
	}
	if m := s.Memory; m != nil {
		t.add(1, fmt.Sprintf("memory used by requests: %s of %s", megabytes(m.Used), megabytes(m.Limit)))
	}
	pod := s.podText()
	t.addWarnings(s.Warnings, maxLines-len(pod))
	t.add(1, pod...)
	return t.String()
}

// podText returns a line with the name of the pod, or nil if the name is unknown.
func (s *snapshot) podText() []string {
	switch {
	case s.Pod == "":
		return nil
	case s.Namespace == "":
		return []string{"pod " + s.Pod}
	}
	return []string{"pod " + s.Pod + ", namespace " + s.Namespace}
}

// A text contains at most maxLines lines of at most maxWidth characters.
type text struct {
	strings.Builder
	lines int
}

// add adds paragraphs. limit is the maximum number of lines. If there are more lines, the last line ends in an
// ellipsis.
func (t *text) add(limit int, paragraphs ...string) {
	var lines []string
	for _, p := range paragraphs {
		lines = append(lines, wrap(p)...)
	}
	if limit = min(limit, maxLines-t.lines); limit == 0 {
		return
	}
	if len(lines) > limit {
		lines = lines[:limit]
		lines[limit-1] = shorten(lines[limit-1]+" …", maxWidth)
	}
	for _, line := range lines {
		t.WriteString(line + "\n")
	}
	t.lines += len(lines)
}

// addWarnings adds warnings until the text has the given number of lines. It does not truncate a warning. If warnings
// do not fit, the last line contains their number.
func (t *text) addWarnings(warnings []string, lines int) {
	for i, w := range warnings {
		paragraph := "warning: " + w
		n := len(wrap(paragraph))
		left := len(warnings) - i
		if left > 1 {
			n++ // a line for the number of remaining warnings
		}
		if t.lines+n > lines {
			t.add(1, message.Count(left, "warning")+" not shown; run why -o json")
			return
		}
		t.add(n, paragraph)
	}
}

// wrap breaks a paragraph into lines. The first line has the indent of the paragraph. The indent of all other lines is
// two characters longer.
func wrap(paragraph string) (lines []string) {
	indent := paragraph[:min(len(paragraph)-len(strings.TrimLeft(paragraph, " ")), 2)]
	line, width := indent, utf8.RuneCountInString(indent)
	first := true
	for word := range strings.FieldsSeq(paragraph) {
		n := utf8.RuneCountInString(word)
		if !first && width+1+n > maxWidth {
			lines = append(lines, line)
			line, width, first = indent+"  ", utf8.RuneCountInString(indent)+2, true
		}
		if !first {
			line, width = line+" ", width+1
		}
		line, width, first = line+word, width+n, false
		if width > maxWidth { // a word that is longer than a line
			line = shorten(line, maxWidth)
			width = maxWidth
		}
	}
	return append(lines, line)
}

// shorten truncates s to n characters. A truncated string ends in an ellipsis.
func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// stateText returns the readiness and its duration.
func (s *snapshot) stateText() string {
	since := brief(s.Now.Sub(s.Readiness.Since))
	switch {
	case s.Drain.Draining:
		text := fmt.Sprintf("not ready: draining for %v, because the pod is terminating; requests in flight: %d", brief(s.Now.Sub(s.Drain.Since)), s.Drain.InFlight)
		if s.Drain.InFlight > 0 && !s.Drain.Deadline.IsZero() {
			text += fmt.Sprintf(", aborted in %v", brief(s.Drain.Deadline.Sub(s.Now)))
		}
		return text
	case s.Ready && s.Unprobed:
		return fmt.Sprintf("ready for %v; no readiness probe was received; this command sent a probe", since)
	case s.Ready:
		return fmt.Sprintf("ready for %v", since)
	}
	return fmt.Sprintf("%s (for %v)", s.Reason, since)
}

// probesText returns a line for each probe, and a line for its error or warning.
func (s *snapshot) probesText() (all []string) {
	for _, p := range s.Readiness.Probes {
		line := fmt.Sprintf("probe %d: %s %s: %s", p.Index, p.Kind, p.Target, p.Phase)
		if p.Word != "" {
			line += ", " + string(p.Word)
		}
		if p.Code != 0 {
			line += fmt.Sprintf(" %d", p.Code)
		}
		all = append(all, line+", "+message.Count(p.Tries, "attempt"))
		if p.Detail != "" {
			all = append(all, "  "+p.Detail)
		}
		if p.Warning != "" {
			all = append(all, "  warning: "+p.Warning)
		}
	}
	return all
}

// loadText returns the numbers of running and waiting requests and the limits.
func (s *snapshot) loadText() string {
	line := fmt.Sprintf("%d running, %d waiting", s.Running, s.Waiting)
	if s.Limit > 0 {
		line += fmt.Sprintf(" (at most %d and %d)", s.Limit, s.Depth)
	}
	if s.Adaptive != nil {
		line += "; the limit is adaptive: " + limitText(s.Adaptive)
	}
	return line
}

// limitText returns the state of an adaptive limit.
func limitText(l *observation.LimitState) string {
	if l.Settled == 0 {
		return fmt.Sprintf("%s; not settled because %s", l.Reason.Words(), l.Missing)
	}
	return fmt.Sprintf("%s; settled at %d", l.Reason.Words(), l.Settled)
}

// slotsText returns a line for the oldest request with a slot, and a line for the slots of disconnected clients.
func (s *snapshot) slotsText() (all []string) {
	if len(s.Slots) > 0 {
		h := &s.Slots[0]
		line := fmt.Sprintf("oldest request: %s for %v", phaseText(h), brief(s.Now.Sub(h.Slot)))
		if s.Adaptive != nil {
			line += " (" + h.Counted + ")"
		}
		all = append(all, "  "+line+", "+shorten(h.Method+" "+h.Path, maxRequest))
	}
	if s.Held > 0 {
		all = append(all, "  "+message.Count(s.Held, "slot")+" used by requests of disconnected clients")
	}
	return all
}

// phaseText returns the phase of a request with a slot as text. It replaces "waiting", which could be understood as
// waiting in the queue.
func phaseText(h *observation.Holder) string {
	switch {
	case h.Uploading:
		return "incomplete body"
	case h.Phase == observation.Dialling.String():
		return "connecting"
	case h.Phase == observation.Waiting.String():
		return "no response"
	}
	return h.Phase
}

// maxRequest is the maximum number of characters of a method and a path.
const maxRequest = 40

// latestText returns a line for the requests of the last few minutes, and a line for the response times.
func (s *snapshot) latestText() (all []string) {
	l := &s.Latest
	period := l.period()
	if l.Requests == 0 {
		return []string{period + ": no requests"}
	}
	line := fmt.Sprintf("%s: %s, %d failed%s", period, message.Count(l.Requests, "request"), l.Requests-l.Responses, l.Reasons.reasons())
	if l.Responses > 0 {
		line += fmt.Sprintf("; %s, %s", message.Count(l.Responses, "application response"), message.Count(l.Errors, "error"))
	}
	all = append(all, line)
	switch queued := brief(inMilliseconds(l.QueuedP99)); {
	case l.P50 > 0:
		all = append(all, fmt.Sprintf("  p50 %v, p99 %v, queue p99 %v", brief(inMilliseconds(l.P50)), brief(inMilliseconds(l.P99)), queued))
	case queued > 0:
		all = append(all, fmt.Sprintf("  no response; queue p99 %v", queued))
	}
	return all
}

// totalsText returns the request and error counts since the start.
func (s *snapshot) totalsText() string {
	requests, failed := s.Totals.sum()
	text := fmt.Sprintf("since the start %v ago: %s, %d failed%s", brief(s.Now.Sub(s.Started)), message.Count(requests, "request"), failed, s.Totals.reasons())
	if s.AppErrors > 0 {
		text += fmt.Sprintf("; the application returned %s", message.Count(s.AppErrors, "error"))
	}
	return text
}

// megabytes returns a number of bytes in MiB.
func megabytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
