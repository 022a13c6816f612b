package sidecar

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// logged calls use with a logger built from c and returns the written lines. In the logging
// configuration, OUT is replaced with the path of the output file.
func logged(t *testing.T, c *config.Config, use func(*zap.Logger)) []map[string]any {
	t.Helper()
	out := filepath.Join(t.TempDir(), "log")
	c.LoggingConfig.V = strings.ReplaceAll(c.LoggingConfig.V, "OUT", out)
	log, _, _ := NewLogger(c)
	use(log)
	_ = log.Sync()
	text, err := os.ReadFile(out)
	harness.NoError(t, err)
	var lines []map[string]any
	for line := range strings.Lines(string(text)) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("line %q is not JSON: %v", line, err)
		}
		lines = append(lines, m)
	}
	return lines
}

func TestLoggingDefaultsMatchKnative(t *testing.T) {
	c := config.Default()
	c.OnKnative.V, c.Namespace.V, c.Revision.V, c.Pod.V = true, "ns", "rev", "pod1"
	c.LoggingConfig.V = `{"outputPaths":["OUT"]}`
	lines := logged(t, c, func(l *zap.Logger) { l.Warn("a message"); l.Debug("too quiet") })
	if len(lines) != 1 {
		t.Fatalf("got %d lines, want 1", len(lines))
	}
	for key, want := range map[string]string{
		"severity": "WARNING", "logger": "queueproxy", "message": "a message",
		"knative.dev/key": "ns/rev", "knative.dev/pod": "pod1",
	} {
		harness.Equal[any](t, lines[0][key], want, key)
	}
}

func TestLoggingAcceptsKnativeConfig(t *testing.T) {
	c := config.Default()
	c.LoggingLevel.V = "debug"
	c.LoggingConfig.V = `{"level":"info","development":false,"outputPaths":["OUT"],"errorOutputPaths":["stderr"],"encoding":"json",
		"encoderConfig":{"timeKey":"timestamp","levelKey":"severity","nameKey":"logger","callerKey":"caller","messageKey":"message",
		"stacktraceKey":"stacktrace","lineEnding":"","levelEncoder":"","timeEncoder":"iso8601","durationEncoder":"","callerEncoder":""}}`
	lines := logged(t, c, func(l *zap.Logger) { l.Debug("a message") })
	if len(lines) != 1 || lines[0]["severity"] != "debug" || lines[0]["message"] != "a message" {
		t.Errorf("got %v, want one line of level debug", lines)
	}
}

// A client must not be able to produce long log lines or to write control characters to a terminal.
func TestRequestFailureLogIsBounded(t *testing.T) {
	c := config.Default()
	c.LoggingConfig.V = `{"outputPaths":["OUT"]}`
	lines := logged(t, c, func(l *zap.Logger) {
		o := &observation.Observation{Line: transport.Line{Method: strings.Repeat("M", 1<<20), Target: "/\u009b2J\u2028" + strings.Repeat("x", 1<<20)}}
		o.Reason = observation.QueueFull
		(&sidecar{log: l}).logFailure(o)
	})
	if len(lines) != 1 {
		t.Fatalf("got %d lines, want 1", len(lines))
	}
	method, path := lines[0]["method"].(string), lines[0]["path"].(string)
	if len(method) > 512 || len(path) > 512 || !strings.HasPrefix(path, "/\ufffd2J\ufffdxxx") {
		t.Errorf("got a method of %d bytes and path %.20q of %d bytes, want at most 512 printable bytes", len(method), path, len(path))
	}
}

func TestClientFailuresAreLoggedAsInfo(t *testing.T) {
	reasons := map[observation.Reason]string{observation.BadRequest: "INFO", observation.ClientGone: "INFO", observation.AppReset: "WARNING"}
	for reason, want := range reasons {
		c := config.Default()
		c.LoggingConfig.V = `{"outputPaths":["OUT"]}`
		lines := logged(t, c, func(l *zap.Logger) {
			o := &observation.Observation{}
			o.Reason = reason
			(&sidecar{log: l}).logFailure(o)
		})
		harness.Equal[any](t, lines[0]["severity"], want, "severity for the reason", reason)
	}
}

func TestRequestFailureLogContainsPeerAndTraceID(t *testing.T) {
	const id, peer = "4bf92f3577b34da6a3ce929d0e0e4736", "10.0.0.1:1234"
	c := config.Default()
	c.LoggingConfig.V = `{"outputPaths":["OUT"]}`
	lines := logged(t, c, func(l *zap.Logger) {
		for _, traceID := range []string{id, ""} {
			o := &observation.Observation{TraceID: traceID, Line: transport.Line{Remote: peer}}
			o.Reason = observation.QueueFull
			(&sidecar{log: l}).logFailure(o)
		}
	})
	if len(lines) != 2 {
		t.Fatalf("got %d lines, want 2", len(lines))
	}
	harness.Equal[any](t, lines[0]["peer"], peer, "peer")
	harness.Equal[any](t, lines[0]["traceId"], id, "traceId")
	harness.Equal[any](t, lines[1]["traceId"], nil, "traceId without an ID")
}

// Warnings about settings must be logged even if the level is warning.
func TestStartLogUsesWarningLevelForWarnings(t *testing.T) {
	for level, want := range map[string]int{"info": 2, "warn": 1} {
		misspelt, err := config.Read([]config.EnvVar{{Name: "CONTAINER_CONCURENCY", Value: "4"}, {Name: "METRICS_NAMES", Value: "x"}})
		harness.NoError(t, err)
		misspelt.LoggingConfig.V, misspelt.LoggingLevel.V = `{"outputPaths":["OUT"]}`, level
		lines := logged(t, misspelt, func(l *zap.Logger) {
			(&sidecar{log: l, config: misspelt}).logStarted()
			(&sidecar{log: l, config: config.Default()}).logStarted()
		})
		if len(lines) != want {
			t.Fatalf("%s: got %d lines, want %d", level, len(lines), want)
		}
		warnings, _ := lines[0]["warnings"].([]any)
		if lines[0]["severity"] != "WARNING" || len(warnings) != 2 || !slices.Contains(warnings, any("CONTAINER_CONCURENCY: unknown variable ignored; did you mean CONTAINER_CONCURRENCY?")) {
			t.Errorf("%s: got %v with warnings %q, want a warning that contains both names", level, lines[0]["severity"], warnings)
		}
		if want > 1 && (lines[1]["severity"] != "INFO" || lines[1]["warnings"] != nil) {
			t.Errorf("%s: got %v with warnings %q, want no warnings", level, lines[1]["severity"], lines[1]["warnings"])
		}
	}
}

func TestInvalidLoggingConfigUsesDefaults(t *testing.T) {
	for _, broken := range []string{`{`, `[]`, `{"level":"loud"}`, `{"encoding":"xml"}`, `{"outputPaths":["/no/such/folder/file"]}`} {
		c := config.Default()
		c.LoggingConfig.V, c.LoggingLevel.V = broken, "louder"
		log, level, _ := NewLogger(c)
		if log == nil || level.Level() != zap.InfoLevel {
			t.Errorf("%s: got %v at %v, want a logger at info", broken, log, level)
		}
	}
}

func TestLoggerSupportsAllowedLevels(t *testing.T) {
	for _, level := range []string{"debug", "info", "warn", "warning", "error", "dpanic", "panic", "fatal", "INFO", "Warn"} {
		c := config.Default()
		c.LoggingLevel.V = level
		_, _, warnings := NewLogger(c)
		harness.Equal(t, warnings, nil, level)
	}
}

// An output blocks when its reader has stopped and the pipe is full.
func TestBlockedLogOutputDropsLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	harness.NoError(t, syscall.Mkfifo(path, 0o600))
	r, err := os.OpenFile(path, os.O_RDWR, 0) // opening a pipe without a reader would fail
	harness.NoError(t, err)
	defer r.Close()
	c := config.Default()
	c.LoggingConfig.V = `{"outputPaths":["` + path + `"],"sampling":null}`
	log, _, _ := NewLogger(c)

	written := make(chan struct{})
	go func() {
		defer close(written)
		for range 5000 {
			log.Warn("a message", zap.Int("a number", 1))
		}
		_ = log.Sync()
	}()
	harness.Receive(t, written, "end of writing 5000 lines")

	lost := make(chan int, 1)
	go func() { lost <- lostLines(t, r) }() // start reading
	var n int
	harness.Until(t, "line with the number of dropped lines", func() bool {
		log.Warn("another message")
		select {
		case n = <-lost:
			return true
		default:
			return false
		}
	})
	if n == 0 || n >= 5000 {
		t.Errorf("got %d dropped lines, want between 1 and 4999", n)
	}
}

// lostLines reads a log until it reports lost lines, and returns their number. It returns 0 if the
// log does not report any.
func lostLines(t *testing.T, log io.Reader) int {
	for in := bufio.NewScanner(log); in.Scan(); {
		var line struct {
			Message string
			Lines   int
		}
		harness.Equal(t, json.Unmarshal(in.Bytes(), &line), nil, "the line", in.Text())
		if line.Message == "log lines were dropped" {
			return line.Lines
		}
	}
	return 0
}

// As in Knative, the first 100 identical lines of each second are logged, and every hundredth line after that.
func TestLogSamplesEqualLines(t *testing.T) {
	c := config.Default()
	c.LoggingConfig.V = `{"outputPaths":["OUT"],"initialFields":{"who":"me"}}`
	lines := logged(t, c, func(l *zap.Logger) {
		for range 1000 {
			l.Named("child").With(zap.Int("n", 1)).Info("a message")
		}
	})
	if len(lines) >= 200 || len(lines) < 100 || lines[0]["who"] != "me" {
		t.Fatalf("got %d of 1000 lines, the first is %v, want 109 lines with the initial field", len(lines), lines[:min(1, len(lines))])
	}
	last := lines[len(lines)-1]
	if last["message"] != "repeated log lines were omitted" || last["severity"] != "WARNING" || last["lines"] != float64(1000-len(lines)+1) {
		t.Errorf("got the last line %v, want a warning with %d omitted lines", last, 1000-len(lines)+1)
	}
}

func TestLogLevelChangesAtRuntime(t *testing.T) {
	c := config.Default()
	out := filepath.Join(t.TempDir(), "log")
	c.LoggingConfig.V = `{"outputPaths":["` + out + `"]}`
	log, level, _ := NewLogger(c)
	log.Debug("before")
	level.SetLevel(zap.DebugLevel)
	log.Debug("after")
	text, err := os.ReadFile(out)
	harness.NoError(t, err)
	if strings.Contains(string(text), "before") || !strings.Contains(string(text), "after") {
		t.Errorf("got %q, want only the line after the change", text)
	}
}

func TestLogBoundIncludesPeerAndCount(t *testing.T) {
	c := config.Default()
	c.LoggingConfig.V = `{"outputPaths":["OUT"]}`
	lines := logged(t, c, func(log *zap.Logger) {
		s := &sidecar{log: log}
		s.logBound(bound.Event{Name: bound.ConcurrentStreams, Peer: "10.0.0.1:1234", Count: 3})
		s.logBound(bound.Event{Name: bound.MalformedRequest, Peer: "10.0.0.1:1234", Error: "no host", Count: 1})
		s.logBound(bound.Event{Name: bound.TLSFailed, Peer: "10.0.0.1:1234", Error: "no TLS", Count: 1})
	})
	want := []map[string]any{
		{"message": "bound exceeded; closed a stream", "bound": "h2-concurrent-streams", "count": 3.0, "cause": bound.ConcurrentStreams.Text()},
		{"message": "request rejected because of a client error", "clientError": "malformed-request", "count": 1.0, "error": "no host"},
		{"message": "connection closed because of a client error", "clientError": "tls-handshake", "count": 1.0, "error": "no TLS"},
	}
	if len(lines) != len(want) {
		t.Fatalf("got %d lines, want %d: %v", len(lines), len(want), lines)
	}
	for i, line := range lines {
		harness.Equal(t, line["severity"], "WARNING", "severity")
		harness.Equal(t, line["peer"], "10.0.0.1:1234", "peer")
		for key, value := range want[i] {
			harness.Equal(t, line[key], value, key)
		}
	}
}
