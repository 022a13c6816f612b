// Package accesslog writes the request log: one line for each request that went
// to the user container or would have gone.
//
// A line is JSON, valid for every input, or what a template in Knative's language
// makes of the request. A request never waits for the writer: lines are queued, and one
// goroutine writes them. If the queue is full, lines are dropped and counted.
package accesslog

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/sink"
)

// Options say which requests are logged and how. The zero value logs all of them
// as JSON.
//
// Of the switches the first that holds wins: a probe that the sidecar answers
// itself is logged with Probes alone; a failure is always logged, and so is a
// request that took SlowerThan; with ErrorsOnly nothing else is; with Sample one in
// so many of the rest is; with SlowerThan alone nothing else is.
type Options struct {
	Template   string        // in Go's text/template, as Knative's; "": JSON
	Probes     bool          // log the probes too that the sidecar answers itself
	ErrorsOnly bool          // log failures: a status of 500 or more, or a reason but ok
	SlowerThan time.Duration // log requests that took so long; 0: off
	Sample     int           // log one in so many; 0 and 1: all
	Revision   Revision      // who we are

	// Report is called if a write or the template fails, at most once a minute for each of
	// them. It can be called by any goroutine that logs. It may be nil.
	Report func(error)
}

// Revision is what the lines of one sidecar have in common: .Revision of a template.
// Empty fields are left out of JSON lines.
type Revision struct {
	Name, Namespace, Service, Configuration string
	PodName, PodIP                          string
}

// A Log writes the request log. Observe may be called by many goroutines at once.
type Log struct {
	options  Options
	template *template // nil: JSON
	tail     []byte    // of every JSON line: the revision, the closing brace
	ordinary atomic.Uint64
	failures sink.Throttle          // of the template
	scratch  sync.Pool              // of *[]byte
	second   atomic.Pointer[second] // of the last line
	lines    *sink.Batcher[byte]
}

// New returns a log that writes to w, and starts the goroutine that does. The error
// says what is wrong with the template, which has been tried on two requests; a
// caller that wants to log nevertheless calls again without it.
//
// w is written to by one goroutine at a time, whole lines at once, and never closed.
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
	l.lines = newBatcher(w, o.Report)
	return l, nil
}

// Observe logs a request, if it is one to be logged. It never waits for the writer.
func (l *Log) Observe(o *queue.Observation) {
	if !l.wants(o) {
		return
	}
	scratch := l.scratch.Get().(*[]byte)
	line := l.appendLine((*scratch)[:0], o)
	l.lines.Add(line...)
	if cap(line) <= keepScratch {
		*scratch = line
	}
	l.scratch.Put(scratch)
}

// keepScratch is the largest line whose memory is kept.
const keepScratch = 32 << 10

// wants decides by the switches of Options, whose comment is the rule.
func (l *Log) wants(o *queue.Observation) bool {
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

func failed(o *queue.Observation) bool { return o.Reason != queue.OK || o.Status >= 500 }

// appendLine appends the line of a request.
func (l *Log) appendLine(b []byte, o *queue.Observation) []byte {
	traceID := traceID(o)
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
	l.failures.Error(fmt.Errorf("request log template: %w; the default JSON is written instead", err), l.options.Report)
	return l.appendJSON(b, o, traceID, err.Error())
}

// Dropped returns the number of lines that were lost because the queue was full or the writer failed.
func (l *Log) Dropped() uint64 { return l.lines.Dropped() }

// Close writes the queued lines and stops the goroutine. Later requests are not logged. If ctx is done
// first, the error contains the number of lines that were not written. If the writer is still blocked
// a second later, the goroutine exits when the writer returns.
func (l *Log) Close(ctx context.Context) error {
	if lost, err := l.lines.Close(ctx); err != nil {
		return fmt.Errorf("request log: %d lines not written: %w", lost, err)
	}
	return nil
}
