package sidecar

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

const (
	// lineTime is the maximum time that a caller waits for a line to be written.
	lineTime = time.Second

	// queuedLines is the maximum number of queued lines.
	queuedLines = 100
)

// timedCore is a zapcore.Core for outputs that may block, such as a pipe for standard error without
// a reader. With an ordinary core, such an output would block requests, probes and the exit of the
// process. A caller waits at most lineTime for a line to be written. After a wait has timed out,
// further calls return without waiting, until the output accepts a line again. If the queue is
// full, lines are dropped, and the number of dropped lines is logged before the next line. The
// number of lines that the sampler drops is logged at most once a minute.
type timedCore struct {
	zapcore.Core
	output *output
}

// An output writes the lines of all cores that are derived from one core.
type output struct {
	log      atomic.Pointer[zap.Logger] // logs omitted; nil during the construction
	omitted  message.Tally              // lines that the sampler dropped
	lines    *export.Batcher[line]
	blocked  atomic.Bool // no line has been written since a wait timed out
	reported uint64      // number of dropped lines that were logged; used only by write
}

// A line is a log entry before encoding. Its core encodes and writes the entry.
type line struct {
	core   zapcore.Core
	entry  zapcore.Entry
	fields []zapcore.Field
	sync   bool // sync the core instead of writing an entry
	done   chan error
}

// build builds a logger from z. Its core is a timedCore, which writes to the returned output. The
// caller sets output.log.
func build(z zap.Config) (*zap.Logger, *output, error) {
	o := &output{}
	o.omitted.Report = o.reportOmitted
	sampling := z.Sampling
	z.Sampling = nil // the sampler must be the outer core, because timedCore.Check does not call the inner core
	log, err := z.Build(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		o.lines = export.NewBatcher(export.BatcherOptions[line]{MaxMessages: queuedLines, Write: o.write})
		c = timedCore{c, o}
		if sampling != nil {
			c = zapcore.NewSamplerWithOptions(c, time.Second, sampling.Initial, sampling.Thereafter, zapcore.SamplerHook(o.sampled))
		}
		return c
	}))
	return log, o, err
}

// sampled is called by the sampler for each line.
func (o *output) sampled(_ zapcore.Entry, decision zapcore.SamplingDecision) {
	if decision&zapcore.LogDropped != 0 {
		o.omitted.Add(1, nil)
	}
}

// reportOmitted logs the number of lines that the sampler dropped.
func (o *output) reportOmitted(lines uint64, _ error) {
	if log := o.log.Load(); log != nil {
		log.Warn("repeated log lines were omitted", zap.Uint64("lines", lines))
	}
}

// With implements zapcore.Core.
func (c timedCore) With(fields []zapcore.Field) zapcore.Core {
	return timedCore{c.Core.With(fields), c.output}
}

// Check implements zapcore.Core.
func (c timedCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write implements zapcore.Core. The field values must not change after Write has returned, because the
// line may be encoded later.
func (c timedCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	return c.output.add(line{core: c.Core, entry: e, fields: fields})
}

// Sync implements zapcore.Core.
func (c timedCore) Sync() error {
	c.output.omitted.Flush()
	return c.output.add(line{core: c.Core, sync: true})
}

// add queues a line and waits up to lineTime until the line is written.
func (o *output) add(l line) error {
	l.done = make(chan error, 1)
	if !o.lines.Add(l) || o.blocked.Load() {
		return nil
	}
	select {
	case err := <-l.done:
		return err
	case <-time.After(lineTime):
		o.blocked.Store(true)
		return nil
	}
}

// write writes a batch of lines.
func (o *output) write(_ context.Context, batch []line, _ int) (lost int) {
	for _, l := range batch {
		l.done <- o.writeLine(l)
		o.blocked.Store(false)
	}
	return 0
}

func (o *output) writeLine(l line) error {
	if dropped := o.lines.Dropped(); dropped > o.reported {
		_ = l.core.Write(zapcore.Entry{Level: zapcore.WarnLevel, Time: cmp.Or(l.entry.Time, time.Now()), LoggerName: l.entry.LoggerName, Message: "log lines were dropped"},
			[]zapcore.Field{zap.Uint64("lines", dropped-o.reported)})
		o.reported = dropped
	}
	if l.sync {
		return l.core.Sync()
	}
	return l.core.Write(l.entry, l.fields)
}
