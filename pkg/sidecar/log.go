package sidecar

import (
	"cmp"
	"encoding/json"
	"fmt"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
)

// NewLogger returns the configured logger and its level. The level may be changed while the logger is
// in use. SERVING_LOGGING_CONFIG overrides the default configuration of Knative, and
// SERVING_LOGGING_LEVEL sets the level. If a setting is invalid, NewLogger uses the default and returns
// a warning, because an invalid logging configuration must not prevent serving.
func NewLogger(c *config.Config) (_ *zap.Logger, _ zap.AtomicLevel, warnings []string) {
	warn := func(setting string, err error, used any) {
		warnings = append(warnings, fmt.Sprintf("%s: %v; using the default, %v", setting, err, used))
	}
	const defaultOutput = "JSON on the standard error"
	z := baseLogging()
	if c.LoggingConfig.V != "" {
		merged := baseLogging()
		if err := json.Unmarshal([]byte(c.LoggingConfig.V), &merged); err != nil {
			warn(c.LoggingConfig.Name(), err, defaultOutput)
		} else {
			z = merged
		}
	}
	if c.LoggingLevel.V != "" {
		level, err := zapcore.ParseLevel(c.LoggingLevel.V)
		if err = cmp.Or(c.LoggingLevel.Check(c.LoggingLevel.V), err); err != nil {
			warn(c.LoggingLevel.Name(), err, z.Level)
		} else {
			z.Level = zap.NewAtomicLevelAt(level)
		}
	}
	log, output, err := build(z)
	if err != nil {
		warn(c.LoggingConfig.Name(), err, defaultOutput)
		z = baseLogging()
		log, output, err = build(z)
		log = zap.Must(log, err)
	}
	log = log.Named("queueproxy")
	if c.OnKnative.V {
		log = log.With(zap.String("knative.dev/key", c.Namespace.V+"/"+c.Revision.V), zap.String("knative.dev/pod", c.Pod.V))
	}
	output.log.Store(log)
	return log, z.Level, warnings
}

// baseLogging returns the default configuration of Knative, which writes JSON to stderr. The sampler
// keeps the first 100 identical lines in each second and every hundredth line after that.
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

// severity encodes a level as the name that cloud logging services use.
func severity(l zapcore.Level, enc zapcore.PrimitiveArrayEncoder) {
	name := map[zapcore.Level]string{
		zapcore.WarnLevel:   "WARNING",
		zapcore.DPanicLevel: "CRITICAL",
		zapcore.PanicLevel:  "ALERT",
		zapcore.FatalLevel:  "EMERGENCY",
	}[l]
	enc.AppendString(cmp.Or(name, l.CapitalString()))
}

// logStarted logs one line at startup. The line contains all settings that have a value, and the
// warnings about settings. If there are warnings, the line has the level warning, so that it is also
// written if lower levels are disabled.
func (s *sidecar) logStarted() {
	settings := func(to zapcore.ObjectEncoder) error {
		for name, value := range s.config.Values() {
			to.AddString(name, value)
		}
		return nil
	}
	fields := []zap.Field{zap.Object("settings", zapcore.ObjectMarshalerFunc(settings))}
	level := zap.InfoLevel
	if warnings := s.warnings(); len(warnings) > 0 {
		level = zap.WarnLevel
		fields = append(fields, zap.Strings("warnings", warnings))
	}
	s.log.Log(level, "serving", fields...)
}

// logReadinessChange logs that the readiness, or the reason why the user container is not ready, has changed.
func (s *sidecar) logReadinessChange(c probe.Change) {
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

// logFailure logs a failed request. The logger samples identical lines.
func (s *sidecar) logFailure(o *observation.Observation) {
	if o.Reason == observation.OK || o.Excluded {
		return
	}
	fields := []zap.Field{
		zap.Stringer("reason", o.Reason),
		zap.Int("status", o.Status),
		zap.Stringer("phase", o.Phase),
		zap.String("method", observation.Shown(o.Method)),
		zap.String("path", observation.Shown(o.Path())),
		zap.String("protocol", fmt.Sprintf("HTTP/%d.%d", o.Major, o.Minor)),
		zap.Duration("took", o.End.Sub(o.Start)),
		zap.Duration("queued", o.Queued()),
		zap.Bool("cutShort", o.Begun),
		zap.Bool("reset", o.Reset),
		zap.String("peer", observation.Shown(o.Remote)),
	}
	if id := o.LogTraceID(); id != "" {
		fields = append(fields, zap.String("traceId", observation.Shown(id))) // a copy, because a line may be encoded later
	}
	if o.Kind != observation.Traffic {
		fields = append(fields, zap.Stringer("kind", o.Kind))
	}
	fields = append(fields, zap.NamedError("error", o.Err)) // no field if there is no error
	level := zap.WarnLevel
	if o.Reason.IsClient() {
		level = zap.InfoLevel
	}
	s.log.Log(level, "request failed", fields...)
}

// logBound logs that connections, streams or requests ended because of a bound or a client error.
func (s *sidecar) logBound(e bound.Event) {
	key, text := "bound", "bound exceeded; closed a "+string(e.Name.Closes())
	switch {
	case !e.Name.IsError():
	case e.Name.Closes() == bound.Request:
		key, text = "clientError", "request rejected because of a client error"
	default:
		key, text = "clientError", "connection closed because of a client error"
	}
	fields := []zap.Field{
		zap.Stringer(key, e.Name),
		zap.String("peer", e.Peer),
		zap.Uint64("count", e.Count),
		zap.String("cause", e.Name.Text()),
	}
	if e.Error != "" {
		fields = append(fields, zap.String("error", e.Error))
	}
	s.log.Warn(text, fields...)
}
