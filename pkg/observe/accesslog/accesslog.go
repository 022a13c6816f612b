// Package accesslog writes the request log. The log contains one line for each request to the user container, and for
// each request that was rejected before it reached the user container.
//
// A line is a JSON object, or the output of a template in the template language of Knative. Requests do not wait for
// the writer. Lines are queued, and one goroutine writes them. If the queue is full, lines are dropped and counted.
package accesslog

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// Options select the logged requests and the format. The zero value logs all requests as JSON, except for probes that
// the sidecar answers.
//
// The first of the following rules that applies is used:
//
//   - A request is not logged if observation.Observation.Excluded is set.
//   - A probe that the sidecar answers is logged if Probes is set.
//   - A failed request is logged.
//   - If SlowerThan is set, a request that took at least this long is logged.
//   - If ErrorsOnly is set, the request is not logged.
//   - If Sample is greater than 1, one in Sample requests is logged.
//   - Otherwise, the request is logged if SlowerThan is not set.
type Options struct {
	Template   string        // template in the syntax of text/template, as in Knative; "" means JSON
	Probes     bool          // log probes that the sidecar answers
	ErrorsOnly bool          // log failures: a status of at least 500, a gRPC status that reports a failure, or a reason other than ok
	SlowerThan time.Duration // log requests that took at least this long; 0 disables the rule
	Sample     int           // log one in Sample requests; 0 and 1 mean all requests
	Revision   Revision      // identity of the sidecar

	// Report is called when lines are dropped and when the template fails, at most once a minute in each
	// case. The error contains the number of lines. Report may be called on any goroutine. It may be nil.
	Report func(error)

	// Restored is called with the number of dropped lines when lines are written again after a report. It
	// may be nil.
	Restored func(dropped uint64)

	// WriteNow writes to a file without blocking and returns the number of bytes written. If it is nil, each
	// write may block a thread.
	WriteNow func(fd uintptr, b []byte) int
}

// Revision contains the values that are the same in all lines of a sidecar. A template accesses them as .Revision. JSON
// lines do not contain empty values.
type Revision struct {
	Name, Namespace, Service, Configuration string
	PodName, PodIP                          string
}

// A Log writes the request log. Observe is safe for concurrent use.
type Log struct {
	options  Options
	template *template        // nil means JSON
	tail     []byte           // last part of each JSON line, with the revision and the closing brace
	ordinary atomic.Uint64    // number of requests to which Sample applied
	failures message.Throttle // limits the rate of reports about the template
	scratch  sync.Pool        // buffers for lines (*[]byte)
	writer   *writer
	lines    *export.Batcher[byte]
}

// New returns a Log that writes to w, and starts its goroutine. It executes the template for two example requests and
// returns an error if this fails. The caller may then call New again without a template.
//
// The Log does not call w.Write concurrently. Each write contains complete lines. The Log does not close w.
func New(o Options, w io.Writer) (*Log, error) {
	l := &Log{options: o, tail: appendTail(nil, &o.Revision)}
	l.scratch.New = func() any { return new([]byte) }
	if o.Template != "" {
		t, err := newTemplate(o.Template, &l.options.Revision)
		if err != nil {
			return nil, fmt.Errorf("request log template: %w", err)
		}
		l.template = t
	}
	l.writer = newWriter(w, &o)
	l.lines = l.writer.newBatcher()
	return l, nil
}

// Observe logs a request if the options select it. It does not wait for the writer.
func (l *Log) Observe(o *observation.Observation) {
	if !l.wants(o) {
		return
	}
	scratch := l.scratch.Get().(*[]byte)
	line := l.appendLine((*scratch)[:0], o)
	if !l.lines.Add(line...) {
		l.writer.dropped.Add(1, nil)
	}
	if cap(line) <= keepScratch {
		*scratch = line
	}
	l.scratch.Put(scratch)
}

// keepScratch is the maximum capacity in bytes of buffers that are reused.
const keepScratch = 32 << 10

// wants reports whether a request is logged, as described in the comment of Options.
func (l *Log) wants(o *observation.Observation) bool {
	switch s := &l.options; {
	case o.Excluded:
		return false
	case o.Kind.Answered():
		return s.Probes
	case failed(o), s.SlowerThan > 0 && o.End.Sub(o.Start) >= s.SlowerThan:
		return true
	case s.ErrorsOnly:
		return false
	case s.Sample > 1:
		return l.ordinary.Add(1)%uint64(s.Sample) == 1
	default:
		return s.SlowerThan <= 0
	}
}

func failed(o *observation.Observation) bool { return o.Reason != observation.OK || o.AppFailed() }

// appendLine appends the line of a request.
func (l *Log) appendLine(b []byte, o *observation.Observation) []byte {
	traceID := o.LogTraceID()
	if l.template == nil {
		return l.appendJSON(b, o, traceID, "")
	}
	line, err := l.template.append(b, &entry{
		Request:  detached(o.Exchange.Request()),
		Response: &response{Code: o.Status, Size: o.Out, Latency: o.End.Sub(o.Start).Seconds()},
		Revision: &l.options.Revision,
		TraceID:  traceID,
	})
	if err == nil {
		return line
	}
	l.failures.Error(fmt.Errorf("request log template: %w; the line is written as JSON", err), l.options.Report)
	return l.appendJSON(b, o, traceID, err.Error())
}

// Dropped returns the number of lines that were lost because the queue was full or the writer failed.
func (l *Log) Dropped() uint64 { return l.lines.Dropped() }

// Close writes the queued lines and stops the goroutine. Later requests are not logged. If ctx is done
// before all lines are written, the error contains the number of lines that were not written. If the
// writer is still blocked a second later, Close returns, and the goroutine exits when the writer returns.
func (l *Log) Close(ctx context.Context) error {
	defer l.writer.dropped.Flush()
	if lost, err := l.lines.Close(ctx); err != nil {
		return fmt.Errorf("request log: %d lines not written: %w", lost, err)
	}
	return nil
}
