package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/pflag"

	"github.com/queue-proxy/queue-proxy/pkg/kubectl"
	"github.com/queue-proxy/queue-proxy/pkg/top"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) {
	harness.AsKubectl()
	testscript.Main(cleaning{m}, map[string]func(){"kubectl-queue_proxy": main})
}

// cleaning removes the program of the sidecar after the tests.
type cleaning struct{ *testing.M }

func (c cleaning) Run() int {
	defer os.RemoveAll(built)
	return c.M.Run()
}

func TestCommandLine(t *testing.T) { harness.RunScripts(t, "testdata") }

// built is the folder of the sidecar's program, "" as long as no test has needed it.
var built string

// queueProxy is the sidecar's program.
func queueProxy(t *testing.T) string {
	t.Helper()
	if built == "" {
		dir, err := os.MkdirTemp("", "plugin-test-")
		harness.NoError(t, err)
		built = dir
		if out, err := exec.Command("go", "build", "-o", built+"/queue", "../queue-proxy").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return built + "/queue"
}

// ran returns what a command line prints, and its exit code.
func ran(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errors bytes.Buffer
	p := &program{stdin: nil, stdout: &out, stderr: &errors}
	code = p.run(t.Context(), args)
	return out.String(), errors.String(), code
}

// A cluster is what an API server answers about pods, and where they really are.
type cluster struct {
	pods  string            // items of the list
	ports map[string]string // "pod:port" to an address
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/") // /api/v1/namespaces/NS/pods/POD:PORT/proxy/metrics
	if len(parts) < 7 {
		fmt.Fprintf(w, `{"kind":"PodList","metadata":{},"items":[%s]}`, c.pods)
		return
	}
	address, ok := c.ports[parts[6]]
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"kind":"Status","message":"error trying to reach service: dial tcp 10.0.0.1:9091: connect: connection refused"}`)
		return
	}
	r.URL.Path = "/metrics"
	httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address}).ServeHTTP(w, r)
}

func podItem(namespace, name, env string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q},"spec":{"containers":[{"name":"queue-proxy","env":[%s]}]},"status":{"phase":"Running","podIP":"10.0.0.1"}}`, name, namespace, env)
}

// install makes c the cluster of kubectl.
func (c *cluster) install(t *testing.T, program string) {
	t.Helper()
	api := httptest.NewServer(c)
	t.Cleanup(api.Close)
	harness.Kubectl{API: api.URL, Program: program}.Install(t)
}

// A sidecar is a real one, in front of an app.
type sidecar struct {
	serving, metrics, stats, status string // ports
}

// startSidecar starts one.
func startSidecar(t *testing.T, app string, settings ...string) sidecar {
	t.Helper()
	p := harness.FreePorts(t, 6)
	s := sidecar{serving: p[0], metrics: p[1], stats: p[2], status: p[3]}
	cmd := exec.Command(queueProxy(t))
	cmd.Env = append(append(os.Environ(), settings...), "USER_PORT="+app[strings.LastIndex(app, ":")+1:], "QUEUE_SERVING_PORT="+p[0],
		"METRICS_PORT="+p[1], "AUTOSCALER_PORT="+p[2], "STATUS_PORT="+p[3], "ADMIN_PORT="+p[4], "QUEUE_SERVING_TLS_PORT="+p[5])
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	harness.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	harness.Until(t, "the sidecar is ready", func() bool {
		r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:"+s.serving, nil)
		harness.NoError(t, err)
		r.Header.Set("K-Network-Probe", "queue")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return s
}

func TestTopShowsRealSidecars(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }))
	defer app.Close()
	s := startSidecar(t, app.URL, "CONTAINER_CONCURRENCY=3")
	c := &cluster{
		pods: podItem("shop", "web-1", "") + "," + podItem("shop", "web-2", `{"name":"METRICS_PORT","value":"19091"}`) + "," + podItem("shop", "off", `{"name":"METRICS_PORT","value":"19092"}`),
		ports: map[string]string{
			"web-1:9091": "127.0.0.1:" + s.metrics,
			"off:9090":   "127.0.0.1:" + s.stats,
		},
	}
	c.install(t, "")
	stop := make(chan struct{})
	traffic := make(chan struct{})
	go func() {
		defer close(traffic)
		for {
			if res, err := http.Get("http://127.0.0.1:" + s.serving); err == nil {
				res.Body.Close()
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	stdout, stderr, code := ran(t, "top", "-n", "shop", "-ojson", "--interval", "1s", "--sort=name")
	close(stop)
	<-traffic
	var got struct{ Sidecars []top.Row }
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || stderr != "" || len(got.Sidecars) != 3 {
		t.Fatalf("got code %d, %v, %q and %s, want three rows", code, err, stderr, stdout)
	}
	off, web1, web2 := got.Sidecars[0], got.Sidecars[1], got.Sidecars[2]
	if web1.Pod != "web-1" || web1.State != top.Ready || *web1.Limit != 3 || *web1.Rate <= 0 || web1.P99 == nil || web1.Failure != "app-reset" || web1.FailedAt == nil {
		t.Errorf("got %+v, want a ready sidecar with requests that the app resets", web1)
	}
	if web2.State != top.Unknown || web2.Note != "port 19091: connection refused" {
		t.Errorf("got %+v, want why it does not answer on the port of its own", web2)
	}
	if off.Rate == nil || off.Waiting != nil || off.Note != "metrics are off: statistics only" {
		t.Errorf("got %+v, want the statistics of the sidecar", off)
	}
}

func TestWhyIsTheWordOfTheSidecarInThePod(t *testing.T) {
	app := httptest.NewServer(http.NotFoundHandler())
	s := startSidecar(t, app.URL)
	(&cluster{}).install(t, queueProxy(t))
	t.Setenv("STATUS_PORT", s.status) // of the container in which exec runs
	for _, c := range []struct {
		args, called, said string
		code               int
	}{
		{"why web-1", "exec web-1 --container=queue-proxy -- /ko-app/queue why -o text\n", "", 0},
		{"why web-1 -n shop --context=test -c queue", "exec web-1 --container=queue --context=test --namespace=shop -- /ko-app/queue why -o text\n", "", 0},
		{"why -o json web-1", "exec web-1 --container=queue-proxy -- /ko-app/queue why -o json\n", `"ready": false`, 1},
	} {
		if c.code != 0 {
			app.Close()
		}
		stdout, stderr, code := "", "", 0
		harness.Until(t, c.args, func() bool { // a sidecar may need a moment to see that its app has gone
			var out, errors bytes.Buffer
			p := &program{stdout: &out, stderr: &errors}
			code = p.run(t.Context(), strings.Fields(c.args))
			stdout, stderr = out.String(), errors.String()
			return code == c.code
		})
		if stderr != c.called || !strings.Contains(stdout, c.said) {
			t.Errorf("%s: got the call %q and %q, want %q and %q", c.args, stderr, stdout, c.called, c.said)
		}
	}
}

func TestTopWithoutSidecarsSaysSo(t *testing.T) {
	(&cluster{}).install(t, "")
	stdout, stderr, code := ran(t, "top")
	if stdout != "" || stderr != "No sidecars found in namespace of-the-context.\n" || code != 0 {
		t.Errorf("got %q, %q and %d, want that there are none in the namespace of the context", stdout, stderr, code)
	}
	if stdout, _, code = ran(t, "top", "-A", "-o", "json"); code != 0 || !strings.Contains(stdout, `"sidecars": []`) {
		t.Errorf("got %q and %d, want an empty list", stdout, code)
	}
}

func TestAKubectlThatFailsIsAnErrorWithItsWords(t *testing.T) {
	harness.Kubectl{Refuses: "error: You must be logged in to the server"}.Install(t)
	for _, args := range []string{"top", "top -A", "why web-1"} {
		_, stderr, code := ran(t, strings.Fields(args)...)
		if code != 1 || !strings.Contains(stderr, "You must be logged in") {
			t.Errorf("%s: got %d and %q, want 1 and kubectl's words", args, code, stderr)
		}
	}
}

// The page says what there is: flags, columns, what they can be sorted by, names in JSON and bounds.
func TestTheDocumentNamesAllThatThereIs(t *testing.T) {
	text, err := os.ReadFile("../../docs/kubectl.md")
	harness.NoError(t, err)
	row, err := json.Marshal(top.Row{})
	harness.NoError(t, err)
	var fields map[string]any
	harness.NoError(t, json.Unmarshal(row, &fields))
	delete(fields, "namespace")
	delete(fields, "pod")
	var flags []string
	for _, cmd := range (&program{}).root().Commands() {
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
	}
	wanted := []string{fmt.Sprintf("| sidecars | %d;", kubectl.Most), fmt.Sprintf("| at once | %d |", kubectl.Parallel), "every " + strings.TrimSuffix(listEvery.String(), "s") + " s"}
	for _, word := range slices.Concat(slices.Collect(maps.Keys(fields)), top.Keys(), flags) {
		wanted = append(wanted, "`"+word+"`")
	}
	for title := range strings.FieldsSeq("READY RUNNING WAITING LIMIT REQ/S P99 NOTE") {
		wanted = append(wanted, "`"+title+"`")
	}
	for _, want := range wanted {
		harness.Contains(t, string(text), want, "docs/kubectl.md: no")
	}
}

func TestPodNamesAreCompleted(t *testing.T) {
	(&cluster{}).install(t, "")
	for args, want := range map[string]string{
		"why ":                  "web-1 web-2 :4",
		"why web-1 ":            ":4",
		"why -n shop web-":      "web-1 web-2 :4",
		"why --context test we": "web-1 web-2 :4",
	} {
		stdout, _, code := ran(t, append([]string{"__complete"}, strings.Split(args, " ")...)...)
		if got := strings.Join(strings.Fields(stdout), " "); code != 0 || got != want {
			t.Errorf("%q: got %q, want %q", args, got, want)
		}
	}
}
