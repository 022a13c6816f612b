package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The sidecar starts with an empty environment. It uses Knative's default ports, so this test
// does not run in parallel with other sidecars on these ports.
func TestStartWithEmptyEnvironment(t *testing.T) {
	ports := []int{8012, 8022, 9090}
	for _, port := range ports {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			t.Fatalf("listen on port %d: %v", port, err)
		}
		l.Close()
	}
	p := run(t, []string{"SERVING_POD=only-this"})
	poll(t, "the sidecar serves on 8012", func() error {
		if p.ended() {
			t.Fatalf("the sidecar exited with code %d", p.code())
		}
		c, err := net.Dial("tcp", local(8012))
		if err == nil {
			c.Close()
		}
		return err
	})
	if m := dial(t, local(8012)).ask("/", "K-Network-Probe: queue"); m.status() != 200 {
		t.Errorf("got %q, want 200", m.Start)
	}
	if m := dial(t, local(9090)).ask("/metrics"); m.status() != 200 {
		t.Errorf("9090: got %q, want 200", m.Start)
	}
	if m := dial(t, local(8022)).ask("/"); m.status() != 404 {
		t.Errorf("8022: got %q, want 404", m.Start)
	}
}

func TestPortInUseFailsStart(t *testing.T) {
	inParallel(t)
	for name, port := range map[string]func(*proxy) int{
		"QUEUE_SERVING_PORT": func(p *proxy) int { return p.port.serving },
		"ADMIN_PORT":         func(p *proxy) int { return p.port.admin },
		"AUTOSCALER_PORT":    func(p *proxy) int { return p.port.autoscaler },
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			number := strconv.Itoa(port(p))
			l, err := net.Listen("tcp", ":"+number)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			p.launch()
			if got := p.code(); got != 1 {
				t.Errorf("got exit code %d, want 1", got)
			}
			if !p.out.HasLine(number, "address already in use") {
				t.Errorf("no log line with port %s and the error", number)
			}
		})
	}
}

func TestAllInvalidSettingsAreReported(t *testing.T) {
	p := newProxy(t)
	p.launch("CONTAINER_CONCURRENCY=-1", "REVISION_TIMEOUT_SECONDS=soon", "CONNECT_RETRY=5 parsecs",
		"REVISION_TIMEOUT_SCOPE=half", "STATS_FORMAT=xml", "QUEUE_DEPTH=many")
	if got := p.code(); got != 1 {
		t.Errorf("got exit code %d, want 1", got)
	}
	for name, value := range map[string]string{
		"CONTAINER_CONCURRENCY": "-1", "REVISION_TIMEOUT_SECONDS": "soon", "CONNECT_RETRY": "5 parsecs",
		"REVISION_TIMEOUT_SCOPE": "half", "STATS_FORMAT": "xml", "QUEUE_DEPTH": "many",
	} {
		if !p.out.HasLine(name, value) {
			t.Errorf("no log line with %s and %q", name, value)
		}
	}
}

// An invalid key pair is reported at startup. Without a key pair, TLS is disabled.
func TestInvalidCertificateFailsStart(t *testing.T) {
	inParallel(t)
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"rubbish": func(t *testing.T, dir string) { write(t, dir, "tls.crt", "rubbish") },
		"another key": func(t *testing.T, dir string) {
			_, key := newCertificate(t)
			write(t, dir, "tls.key", string(key))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			spoil(t, p.dir)
			p.launch()
			if got := p.code(); got != 1 {
				t.Errorf("got exit code %d, want 1", got)
			}
			if !p.out.HasLine(p.dir) {
				t.Errorf("no log line with the name of the file in %s", p.dir)
			}
		})
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// docs/promises.md 3.9: invalid telemetry settings do not affect traffic.
func TestInvalidTelemetrySettingsDoNotFailStart(t *testing.T) {
	inParallel(t)
	for _, setting := range []string{
		"OBSERVABILITY_CONFIG={", "SERVING_LOGGING_CONFIG={\"level\":", "SERVING_LOGGING_LEVEL=shouting",
		"SERVING_REQUEST_LOG_TEMPLATE={{", "TRACING_CONFIG_BACKEND=pigeons", "SERVING_REQUEST_METRICS_BACKEND=bogus",
	} {
		name, _, _ := strings.Cut(setting, "=")
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.start(setting, "SERVING_ENABLE_REQUEST_LOG=true")
			p.sample()
			if m := dial(t, p.addr()).ask("/status/204"); m.status() != 204 {
				t.Errorf("got %q, want 204 from the app", m.Start)
			}
			p.awaitLog(name)
		})
	}
}

// The sidecar starts with the environment of each Knative release.
func TestStartWithKnativeEnvironments(t *testing.T) {
	inParallel(t)
	for release, settings := range map[string][]string{
		"0.9": {"USER_CONTAINER_NAME=user-container", "ENABLE_VAR_LOG_COLLECTION=false", "VAR_LOG_VOLUME_NAME=knative-var-log",
			"INTERNAL_VOLUME_PATH=/var/knative-internal", "SYSTEM_NAMESPACE=knative-serving", "TRACING_CONFIG_STACKDRIVER_PROJECT_ID="},
		"1.18": {"SERVING_SERVICE=svc", "REVISION_RESPONSE_START_TIMEOUT_SECONDS=0", "REVISION_IDLE_TIMEOUT_SECONDS=0",
			"SERVING_REQUEST_LOG_TEMPLATE=", "SERVING_ENABLE_REQUEST_LOG=false", "SERVING_REQUEST_METRICS_BACKEND=prometheus",
			"SERVING_REQUEST_METRICS_REPORTING_PERIOD_SECONDS=5", "TRACING_CONFIG_BACKEND=none", "TRACING_CONFIG_ZIPKIN_ENDPOINT=",
			"TRACING_CONFIG_DEBUG=false", "TRACING_CONFIG_SAMPLE_RATE=0.1", "SYSTEM_NAMESPACE=knative-serving", "METRICS_DOMAIN=knative.dev/internal/serving",
			"ENABLE_PROFILING=false", "SERVING_ENABLE_PROBE_REQUEST_LOG=false", "METRICS_COLLECTOR_ADDRESS=", "HOST_IP=10.0.0.1",
			"ENABLE_HTTP2_AUTO_DETECTION=false", "ENABLE_HTTP_FULL_DUPLEX=false", "ROOT_CA=", "ENABLE_MULTI_CONTAINER_PROBES=false"},
		"head": {"SERVING_SERVICE=svc", "REVISION_RESPONSE_START_TIMEOUT_SECONDS=", "REVISION_IDLE_TIMEOUT_SECONDS=", "SYSTEM_NAMESPACE=knative-serving",
			"HOST_IP=10.0.0.1", "ENABLE_HTTP2_AUTO_DETECTION=false", "ENABLE_HTTP_FULL_DUPLEX=false", "ROOT_CA=", "QUEUE_PROXY_TLS_MIN_VERSION=",
			"QUEUE_PROXY_TLS_MAX_VERSION=", "QUEUE_PROXY_TLS_CIPHER_SUITES=", "QUEUE_PROXY_TLS_CURVE_PREFERENCES=", "ENABLE_MULTI_CONTAINER_PROBES=true",
			`OBSERVABILITY_CONFIG={"tracing":{},"metrics":{},"runtime":{},"requestMetrics":{}}`},
	} {
		t.Run(release, func(t *testing.T) {
			p := newProxy(t)
			probe := fmt.Sprintf(`{"tcpSocket":{"port":%d,"host":"127.0.0.1"},"successThreshold":1}`, p.port.user)
			if release == "head" {
				probe = "[" + probe + "]"
			}
			p.sample()
			p.start(append(settings, "SERVING_READINESS_PROBE="+probe)...)
			if m := dial(t, p.addr()).ask("/", "User-Agent: kube-probe/1.31", "K-Network-Probe: queue"); m.Body != "queue" {
				t.Errorf("got %q with %q, want queue", m.Start, m.Body)
			}
		})
	}
}

func TestSIGTERMWaitsForRequests(t *testing.T) {
	inParallel(t)
	for _, protocol := range both {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			p.start("DRAIN_QUIET_PERIOD=100ms")
			h := p.holder()
			type result struct {
				status int
				body   string
				err    error
			}
			done := make(chan result, 1)
			go func() {
				answer, err := httpClient(t, protocol).Get(p.url("/held"))
				if err != nil {
					done <- result{err: err}
					return
				}
				defer answer.Body.Close()
				b, err := io.ReadAll(answer.Body)
				done <- result{answer.StatusCode, string(b), err}
			}()
			h.wait(t, "/held")
			p.signal(syscall.SIGTERM)
			p.poll("probes get 503", func() error {
				m := dial(t, p.addr()).ask("/", "User-Agent: kube-probe/1.31", "K-Network-Probe: queue")
				if m.status() != 503 || m.Body != shuttingDown {
					return fmt.Errorf("got %q with %q", m.Start, m.Body)
				}
				return nil
			})
			if p.ended() {
				t.Fatal("the sidecar exited while a request was in progress")
			}
			h.free("/held")
			if r := receive(t, "the response", done); r != (result{200, "/held", nil}) {
				t.Errorf("got %+v, want 200 from the app", r)
			}
			if got := p.code(); got != 0 {
				t.Errorf("got exit code %d, want 0", got)
			}
		})
	}
}

// During the drain, the sidecar serves new requests and closes each connection after the
// response.
func TestDrainServesNewRequests(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=100ms")
	h := p.holder()
	held := p.sendGet("/held")
	h.wait(t, "/held")
	h.free("/more")
	p.signal(syscall.SIGTERM)
	p.poll("probes get 503", func() error {
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 503 {
			return fmt.Errorf("got %q", m.Start)
		}
		return nil
	})
	c := dial(t, p.addr())
	m := c.ask("/more")
	if m.status() != 200 || m.Body != "/more" {
		t.Errorf("new request: got %q with %q, want 200 from the app", m.Start, m.Body)
	}
	if got := m.get("Connection"); !strings.EqualFold(got, "close") {
		t.Errorf("got Connection %q, want close", got)
	}
	c.closed()
	h.free("/held")
	held.receive("GET")
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// enableHangup enables SIGHUP in child processes, even if nohup has disabled it.
func enableHangup(t *testing.T) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(c) })
}

func TestIdleSidecarExitsWithZeroAfterSignal(t *testing.T) {
	inParallel(t)
	enableHangup(t)
	for name, s := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "SIGHUP": syscall.SIGHUP} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.start("DRAIN_QUIET_PERIOD=100ms")
			idle := dial(t, p.addr()) // this idle connection must not delay the exit
			idle.ask("/", "K-Network-Probe: queue")
			p.signal(s)
			if got := p.code(); got != 0 {
				t.Errorf("got exit code %d, want 0", got)
			}
			if log := p.out.String(); !strings.Contains(log, `"message":"received a signal"`) || !strings.Contains(log, `"signal":"`+name+`"`) {
				t.Errorf("got log %s, want a line with the name of the signal", log)
			}
		})
	}
}

func TestSecondSignalExitsWithOne(t *testing.T) {
	enableHangup(t)
	p := newProxy(t)
	p.start()
	h := p.holder()
	p.sendGet("/held")
	h.wait(t, "/held")
	p.signal(syscall.SIGTERM)
	p.poll("probes get 503", func() error {
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 503 {
			return fmt.Errorf("got %q", m.Start)
		}
		return nil
	})
	p.signal(syscall.SIGHUP)
	if got := p.code(); got != 1 {
		t.Errorf("got exit code %d, want 1", got)
	}
	if log := p.out.String(); !strings.Contains(log, `"signal":"SIGHUP"`) {
		t.Errorf("got log %s, want the name of the second signal", log)
	}
}

func TestAdminPortServesOnlyHooks(t *testing.T) {
	p := newProxy(t)
	p.start()
	for _, path := range []string{"/", "/health", "/metrics", "/debug/pprof/"} {
		if m := dial(t, local(p.port.admin)).ask(path, "User-Agent: kube-probe/1.31"); m.status() != 404 {
			t.Errorf("%s: got %q, want 404", path, m.Start)
		}
	}
}

// A /wait-for-drain request without SIGTERM means that only the user container is restarted.
// Probes fail for a moment and then succeed again.
func TestPreStopHookWithoutSignalIsReverted(t *testing.T) {
	p := newProxy(t)
	p.start()
	waiting := dial(t, local(p.port.admin))
	waiting.send(request("GET", "/wait-for-drain"))
	p.poll("probes get 503", func() error {
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 503 {
			return fmt.Errorf("got %q", m.Start)
		}
		return nil
	})
	if m := waiting.receive("GET"); m.status() != 200 {
		t.Errorf("wait-for-drain: got %q, want 200", m.Start)
	}
	p.poll("probes get 200", func() error {
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 200 {
			return fmt.Errorf("got %q", m.Start)
		}
		return nil
	})
	if p.ended() {
		t.Error("the sidecar exited")
	}
}

func TestCommandLine(t *testing.T) {
	t.Run("--version prints a version", func(t *testing.T) {
		out, code := command(t, nil, "--version")
		if code != 0 || strings.TrimSpace(out) == "" || strings.Contains(out, "\n\n") {
			t.Errorf("got code %d and %q, want 0 and a version", code, out)
		}
	})
	t.Run("config prints the settings and their sources", func(t *testing.T) {
		out, code := command(t, []string{"CONTAINER_CONCURRENCY=7", "CONNECT_RETRY=250ms"}, "config")
		if code != 0 {
			t.Errorf("got code %d, want 0:\n%s", code, out)
		}
		for _, line := range []string{
			`(?m)^.*CONTAINER_CONCURRENCY\b.*\b7\b.*env`, `(?m)^.*CONNECT_RETRY\b.*\b250ms\b.*env`,
			`(?m)^.*QUEUE_SERVING_PORT\b.*\b8012\b.*default`, `(?m)^.*USER_PORT\b.*\b8080\b.*default`,
			`(?m)^.*QUEUE_DEPTH\b.*\b70\b`,
		} {
			if !regexp.MustCompile(line).MatchString(out) {
				t.Errorf("no line that matches %s in\n%s", line, out)
			}
		}
	})
	t.Run("config with an invalid setting fails", func(t *testing.T) {
		out, code := command(t, []string{"CONTAINER_CONCURRENCY=x"}, "config")
		if code != 1 || !strings.Contains(out, "CONTAINER_CONCURRENCY") {
			t.Errorf("got code %d and %q, want 1 and the name of the setting", code, out)
		}
	})
	t.Run("an unknown command fails", func(t *testing.T) {
		if out, code := command(t, nil, "frobnicate"); code == 0 || !strings.Contains(out, "frobnicate") {
			t.Errorf("got code %d and %q, want an error that contains the name", code, out)
		}
	})
	t.Run("an unknown flag fails", func(t *testing.T) {
		if out, code := command(t, nil, "-frobnicate"); code == 0 || !strings.Contains(out, "frobnicate") {
			t.Errorf("got code %d and %q, want an error that contains the name", code, out)
		}
	})
}

// command runs the binary and returns its output and its exit code. The constant patience is
// the timeout.
func command(t *testing.T, env []string, args ...string) (out string, code int) {
	t.Helper()
	c := exec.CommandContext(t.Context(), queueProxy, args...)
	c.Env = env
	c.SysProcAttr = dieWithParent
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	timer := time.AfterFunc(patience, func() { c.Process.Kill() })
	defer timer.Stop()
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return b.String(), c.ProcessState.ExitCode()
}

// Knative 0.8 to 0.25 use exec probes.
func TestExecProbes(t *testing.T) {
	inParallel(t)
	for _, flags := range [][]string{{"-probe-period", "0"}, {"-probe-period", "2"}, {"-probe-period=2s"}, {"-probe-timeout", "2s"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			p := newProxy(t)
			p.sample()
			p.start(fmt.Sprintf(`SERVING_READINESS_PROBE={"httpGet":{"port":%d,"path":"/ready"},"periodSeconds":1}`, p.port.user))
			if out, code := command(t, p.environment(), flags...); code != 0 {
				t.Errorf("ready pod: got code %d and %q, want 0", code, out)
			}
			if flags[len(flags)-1] == "0" {
				return // with a period of 0, the probe polls for ten seconds, which takes too long
			}
			answer, err := http.Post("http://"+local(p.port.user)+"/ready?status=503", "", nil)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if out, code := command(t, p.environment(), flags...); code != 1 || strings.TrimSpace(out) == "" {
				t.Errorf("pod that is not ready: got code %d and %q, want 1 and an error", code, out)
			}
		})
	}
	t.Run("without a sidecar", func(t *testing.T) {
		p := newProxy(t)
		if out, code := command(t, p.environment(), "-probe-period", "1"); code != 1 || strings.TrimSpace(out) == "" {
			t.Errorf("got code %d and %q, want 1 and an error", code, out)
		}
	})
}

// The memory profiler has a cost, so it runs only if profiling is enabled.
func TestMemoryProfilerRequiresSetting(t *testing.T) {
	for setting, rate := range map[string]string{"false": "@ heap/0\n", "true": "@ heap/1048576\n"} {
		t.Run(setting, func(t *testing.T) {
			p := newProxy(t)
			p.sample()
			p.start("ENABLE_PROFILING=" + setting)
			_, heap := get(t, httpClient(t, "h1"), "http://"+local(p.port.status)+"/debug/pprof/heap?debug=1")
			if first, _, _ := strings.Cut(heap, "\n"); !strings.HasSuffix(first+"\n", rate) {
				t.Errorf("got %q, want it to end with %q", first, rate)
			}
		})
	}
}
