package sidecar

import (
	"cmp"
	"encoding/json"
	"fmt"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// NewLogger returns the logger that the settings ask for: SERVING_LOGGING_CONFIG
// merged over the configuration that Knative starts from, at the level of
// SERVING_LOGGING_LEVEL. Logging never takes traffic down: what cannot be used
// falls back to the default, and the logger says so. The level can be changed
// while the logger is in use.
func NewLogger(c *config.Config) (*zap.Logger, zap.AtomicLevel) {
	z := baseLogging()
	var wrong []error
	if c.LoggingConfig.V != "" {
		merged := baseLogging()
		if err := json.Unmarshal([]byte(c.LoggingConfig.V), &merged); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", c.LoggingConfig.Name(), err))
		} else {
			z = merged
		}
	}
	if c.LoggingLevel.V != "" {
		if level, err := zapcore.ParseLevel(c.LoggingLevel.V); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", c.LoggingLevel.Name(), err))
		} else {
			z.Level = zap.NewAtomicLevelAt(level)
		}
	}
	log, err := build(z)
	if err != nil {
		wrong = append(wrong, fmt.Errorf("%s: %w", c.LoggingConfig.Name(), err))
		z = baseLogging()
		log = zap.Must(build(z))
	}
	log = log.Named("queueproxy")
	if c.OnKnative.V {
		log = log.With(zap.String("knative.dev/key", c.Namespace.V+"/"+c.Revision.V), zap.String("knative.dev/pod", c.Pod.V))
	}
	for _, err := range wrong {
		log.Warn("logging falls back to its default", zap.Error(err))
	}
	return log, z.Level
}

// baseLogging is Knative's: JSON on stderr, at most 100 equal lines a second and
// then every hundredth.
func baseLogging() zap.Config {
	return zap.Config{
		Level:            zap.NewAtomicLevelAt(zap.InfoLevel),
		Encoding:         "json",
		Sampling:         &zap.SamplingConfig{Initial: 100, Thereafter: 100},
		OutputPaths:      []string{"stderr"},
		ErrorOutputPaths: []string{"stderr"},
		EncoderConfig: zapcore.EncoderConfig{
			TimeKey:        "timestamp",
			LevelKey:       "severity",
			NameKey:        "logger",
			CallerKey:      "caller",
			MessageKey:     "message",
			StacktraceKey:  "stacktrace",
			EncodeTime:     zapcore.RFC3339NanoTimeEncoder,
			EncodeLevel:    severity,
			EncodeDuration: zapcore.StringDurationEncoder,
			EncodeCaller:   zapcore.ShortCallerEncoder,
		},
	}
}

// severity writes a level as cloud log services know it.
func severity(l zapcore.Level, enc zapcore.PrimitiveArrayEncoder) {
	name := map[zapcore.Level]string{
		zapcore.WarnLevel:   "WARNING",
		zapcore.DPanicLevel: "CRITICAL",
		zapcore.PanicLevel:  "ALERT",
		zapcore.FatalLevel:  "EMERGENCY",
	}[l]
	enc.AppendString(cmp.Or(name, l.CapitalString()))
}

// sayStarted is the one line at start, with the settings in force (those that have a
// value) and the warnings about settings. If there are any it is a warning itself, so
// that they are seen where no line of a lower level is.
func (s *sidecar) sayStarted() {
	settings := func(to zapcore.ObjectEncoder) error {
		for name, value := range s.config.Values() {
			to.AddString(name, value)
		}
		return nil
	}
	fields := []zap.Field{zap.Object("settings", zapcore.ObjectMarshalerFunc(settings))}
	level := zap.InfoLevel
	if warnings := s.config.Warnings(); len(warnings) > 0 {
		level = zap.WarnLevel
		fields = append(fields, zap.Strings("warnings", warnings))
	}
	s.log.Log(level, "serving", fields...)
}

// sayReadiness is one line for each change of readiness or of its reason.
func (s *sidecar) sayReadiness(c probe.Change) {
	if c.Now.Ready() {
		fields := []zap.Field{zap.Duration("notReadyFor", c.Now.Since.Sub(c.Before.Since))}
		if detail := c.Now.Detail(); detail != "" {
			fields = append(fields, zap.String("detail", detail))
		}
		s.log.Info("the user container is ready", fields...)
		return
	}
	s.log.Warn("the user container is not ready",
		zap.String("phase", string(c.Now.Phase)), zap.String("reason", c.Now.Reason()), zap.String("detail", c.Now.Detail()))
}

// sayFailure is one line for each request that did not go through, sampled where
// they are many.
func (s *sidecar) sayFailure(o *queue.Observation) {
	if o.Reason == queue.OK || o.Excluded {
		return
	}
	fields := []zap.Field{
		zap.Stringer("reason", o.Reason),
		zap.Int("status", o.Status),
		zap.Stringer("phase", o.Phase),
		zap.String("method", queue.Shown(o.Method)),
		zap.String("path", queue.Shown(o.Path())),
		zap.String("protocol", fmt.Sprintf("HTTP/%d.%d", o.Major, o.Minor)),
		zap.Duration("took", o.End.Sub(o.Start)),
		zap.Duration("queued", o.Queued()),
		zap.Bool("cutShort", o.Begun),
	}
	if o.Kind != header.Traffic {
		fields = append(fields, zap.Stringer("kind", o.Kind))
	}
	fields = append(fields, zap.NamedError("error", o.Err)) // nothing, where there is none
	level := zap.WarnLevel
	if o.Reason == queue.ClientGone {
		level = zap.InfoLevel
	}
	s.log.Log(level, "request failed", fields...)
}

// logBound logs that a bound closed connections, streams or requests of a peer.
func (s *sidecar) logBound(e bound.Event) {
	s.log.Warn("a bound closed a "+string(e.Name.Closes()),
		zap.Stringer("bound", e.Name), zap.String("peer", e.Peer), zap.Uint64("count", e.Count), zap.String("cause", e.Name.Text()))
}
