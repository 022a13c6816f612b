package sidecar

import (
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// lineTime is how long a line of the log may take until nobody waits for it any more.
const lineTime = time.Second

// impatient is a core for outputs that may be stuck, as standard error is whose reader has
// stopped: requests, probes and the end of the process would wait with it. One line then
// waits in a goroutine; those that come meanwhile are dropped, counted, and reported by the
// first that is written again.
type impatient struct {
	zapcore.Core
	output *output
}

// output is what the cores of one output share.
type output struct {
	turn  chan struct{} // held by the line that is being written
	stuck atomic.Bool   // that line has had its time
	lost  atomic.Uint64 // lines
}

// build is z.Build with an impatient core.
func build(z zap.Config) (*zap.Logger, error) {
	sampling := z.Sampling
	z.Sampling = nil // the sampler must stand before us, or it is passed by
	return z.Build(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		c = impatient{c, &output{turn: make(chan struct{}, 1)}}
		if sampling != nil {
			c = zapcore.NewSamplerWithOptions(c, time.Second, sampling.Initial, sampling.Thereafter)
		}
		return c
	}))
}

// With implements zapcore.Core.
func (c impatient) With(fields []zapcore.Field) zapcore.Core {
	return impatient{c.Core.With(fields), c.output}
}

// Check implements zapcore.Core.
func (c impatient) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write implements zapcore.Core. What the fields speak of must not change.
func (c impatient) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if !c.output.enter() {
		c.output.lost.Add(1)
		return nil
	}
	return c.output.wait(func() error {
		if lost := c.output.lost.Swap(0); lost > 0 {
			_ = c.Core.Write(zapcore.Entry{Level: zapcore.WarnLevel, Time: e.Time, LoggerName: e.LoggerName, Message: "lines of this log are lost"},
				[]zapcore.Field{zap.Uint64("lines", lost)})
		}
		return c.Core.Write(e, fields)
	})
}

// Sync implements zapcore.Core.
func (c impatient) Sync() error {
	if !c.output.enter() {
		return nil
	}
	return c.output.wait(c.Core.Sync)
}

// enter takes the turn, which wait gives back; false: the output is stuck.
func (o *output) enter() bool {
	select {
	case o.turn <- struct{}{}:
		return true
	default:
	}
	if o.stuck.Load() {
		return false
	}
	select {
	case o.turn <- struct{}{}:
		return true
	case <-time.After(lineTime):
		return false
	}
}

// wait runs f, and waits for it as long as a line may take.
func (o *output) wait(f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := f()
		o.stuck.Store(false)
		<-o.turn
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(lineTime):
		o.stuck.Store(true)
		return nil
	}
}
