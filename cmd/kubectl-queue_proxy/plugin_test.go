package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/kubectl"
	"github.com/queue-proxy/queue-proxy/pkg/top"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) {
	harness.AsKubectl()
	code := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(code)
}

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
		{"why web-1", "exec web-1 --container=queue-proxy -- /ko-app/queue why\n", "", 0},
		{"why web-1 -n shop --context=test -c queue", "exec web-1 --container=queue --context=test --namespace=shop -- /ko-app/queue why\n", "", 0},
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

func TestABadCommandLineIsOneErrorAndAHint(t *testing.T) {
	for args, want := range map[string]string{
		"frobnicate":            "unknown command \"frobnicate\"\nRun 'kubectl queue-proxy help' for usage.\n",
		"tpo":                   "unknown command \"tpo\": did you mean \"top\"?\nRun 'kubectl queue-proxy help' for usage.\n",
		"help wyh":              "help: unknown command \"wyh\": did you mean \"why\"?\nRun 'kubectl queue-proxy help' for usage.\n",
		"why":                   "why: which pod?\nRun 'kubectl queue-proxy help why' for usage.\n",
		"why a b":               "why: unexpected argument \"b\"\nRun 'kubectl queue-proxy help why' for usage.\n",
		"why a -o xml":          "why: invalid value \"xml\" for flag -o: want one of text, json\nRun 'kubectl queue-proxy help why' for usage.\n",
		"top web":               "top: unexpected argument \"web\"\nRun 'kubectl queue-proxy help top' for usage.\n",
		"top -A -n shop":        "top: -A and -n: one of them\nRun 'kubectl queue-proxy help top' for usage.\n",
		"top --interval 10ms":   "top: --interval 10ms: at least 1s\nRun 'kubectl queue-proxy help top' for usage.\n",
		"top --window 1s":       "top: --window 1s: from the interval, 2s, to 5m0s\nRun 'kubectl queue-proxy help top' for usage.\n",
		"top --sort age":        "top: invalid value \"age\" for flag -sort: want one of waiting, running, requests, p99, limit, failure, ready, name\nRun 'kubectl queue-proxy help top' for usage.\n",
		"top --frobnicate":      "top: flag provided but not defined: -frobnicate\nRun 'kubectl queue-proxy help top' for usage.\n",
		"completion":            "completion: which shell? bash, zsh, fish, kubectl\nRun 'kubectl queue-proxy help completion' for usage.\n",
		"completion csh":        "completion: want one of bash, zsh, fish, kubectl\nRun 'kubectl queue-proxy help completion' for usage.\n",
		"help frobnicate":       "help: unknown command \"frobnicate\"\nRun 'kubectl queue-proxy help' for usage.\n",
		"completion bash extra": "completion: unexpected argument \"extra\"\nRun 'kubectl queue-proxy help completion' for usage.\n",
	} {
		stdout, stderr, code := ran(t, strings.Fields(args)...)
		if code != 2 || stdout != "" || stderr != "kubectl queue-proxy: "+want {
			t.Errorf("%s: got code %d, %q and %q, want 2 and %q", args, code, stdout, stderr, want)
		}
	}
}

func TestFlagsStandWherePeopleOfKubectlPutThem(t *testing.T) {
	for args, want := range map[string]string{
		"why web -n shop":                 "[web] shop queue-proxy  []",
		"why -nshop web":                  "[web] shop queue-proxy  []",
		"why web -ojson --namespace=shop": "[web] shop queue-proxy json []",
		"why --context test web -c=other": "[web]  other  [--context=test]",
		"why -n shop -- -web":             "[-web] shop queue-proxy  []",
		"why namespace -c=a -- -n shop":   "",
		"why -- -n":                       "[-n]  queue-proxy  []",
		"top -Alapp=web":                  "",
		"top -A -lapp=web -o json":        "[]  queue-proxy json []",
	} {
		line, err := parse(strings.Fields(args))
		got := fmt.Sprint(line.args, " ", line.namespace, " ", line.container, " ", line.output, " ", line.passed)
		if want == "" {
			if err == nil {
				t.Errorf("%s: got %s, want an error", args, got)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", args, got, err, want)
		}
	}
}

func TestHelpNamesEveryCommandAndFlag(t *testing.T) {
	for _, name := range append(commandNames(), "") {
		stdout, stderr, code := ran(t, "help", name)
		if name == "" {
			stdout, stderr, code = ran(t)
		}
		if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "kubectl queue-proxy ") || !strings.Contains(stdout, "\nUsage:\n") {
			t.Errorf("help %s: got %d, %q and %q, want help", name, code, stderr, stdout)
		}
		for _, f := range flagNames(name) {
			if f != "--help" && !strings.Contains(stdout, f) {
				t.Errorf("help %s: got no %s:\n%s", name, f, stdout)
			}
		}
		for line := range strings.Lines(stdout) {
			if len(strings.TrimSuffix(line, "\n")) > 80 || strings.Contains(line, "\t") {
				t.Errorf("help %s: got the line %q, want one that fits a terminal", name, line)
			}
		}
	}
	overview, _, _ := ran(t, "--help")
	for _, name := range commandNames() {
		if !strings.Contains(overview, "kubectl queue-proxy "+name) {
			t.Errorf("got help without %s", name)
		}
		if got, _, _ := ran(t, name, "--help"); got != help(name) {
			t.Errorf("%s --help: got %q, want its help", name, got)
		}
	}
}

func TestEachCommandHasAPageOfManual(t *testing.T) {
	dir := t.TempDir()
	if stdout, stderr, code := ran(t, "man", dir); code != 0 || stdout+stderr != "" {
		t.Fatalf("got code %d, %q and %q, want pages alone", code, stdout, stderr)
	}
	for _, name := range commandNames() {
		page, err := os.ReadFile(filepath.Join(dir, strings.TrimSuffix("kubectl-queue_proxy-"+strings.TrimSuffix(name, "help"), "-")+".1"))
		harness.NoError(t, err)
		wanted := []string{".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n"}
		new(commandLine).flagsOf(name).VisitAll(func(f *flag.Flag) { wanted = append(wanted, strings.ReplaceAll("-"+f.Name, "-", `\-`)) })
		for _, want := range wanted {
			if !strings.Contains(string(page), want) {
				t.Errorf("%s: got no %q in\n%s", name, want, page)
			}
		}
	}
	if _, stderr, code := ran(t, "man"); code != 2 || !strings.Contains(stderr, "man: which folder?") {
		t.Errorf("got code %d and %q without a folder, want 2", code, stderr)
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
	wanted := []string{fmt.Sprintf("| sidecars | %d;", kubectl.Most), fmt.Sprintf("| at once | %d |", kubectl.Parallel), "every " + strings.TrimSuffix(listEvery.String(), "s") + " s"}
	for _, word := range slices.Concat(slices.Collect(maps.Keys(fields)), top.Keys(), flagNames("top"), flagNames("why")) {
		if word != "--help" {
			wanted = append(wanted, "`"+word+"`")
		}
	}
	for title := range strings.FieldsSeq("READY RUNNING WAITING LIMIT REQ/S P99 NOTE") {
		wanted = append(wanted, "`"+title+"`")
	}
	for _, want := range wanted {
		harness.Contains(t, string(text), want, "docs/kubectl.md: no")
	}
}

// flagNames are the flags of a command as people write them.
func flagNames(command string) []string {
	all, _ := new(program).offers(context.Background(), command, nil, "-")
	return all
}

func TestKubectlCompletesWhatIsTyped(t *testing.T) {
	(&cluster{}).install(t, "")
	for args, want := range map[string]string{
		"":                      "top why version completion help :4",
		"t":                     "top :4",
		"why ":                  "web-1 web-2 :4",
		"why web-2":             "web-2 :4",
		"why web-1 ":            ":4",
		"why -n shop web-":      "web-1 web-2 :4",
		"top --so":              "--sort :4",
		"top --sort re":         "requests ready :4",
		"top -o ":               "text json :4",
		"top --kubeconfig ":     ":0",
		"top -n ":               ":4",
		"top ":                  ":4",
		"help ":                 "top why version completion help :4",
		"completion ku":         "kubectl :4",
		"why --cont":            "--container --context :4",
		"frobnicate ":           ":4",
		"why --context test we": "web-1 web-2 :4",
	} {
		stdout, _, code := ran(t, append([]string{completing}, strings.Split(args, " ")...)...)
		if got := strings.Join(strings.Fields(stdout), " "); code != 0 || got != want {
			t.Errorf("%q: got %q, want %q", args, got, want)
		}
	}
	script, _, _ := ran(t, "completion", "kubectl")
	if !strings.HasPrefix(script, "#!/bin/sh\n") || !strings.Contains(script, fileName+" "+completing) {
		t.Errorf("got the script %q, want one that calls us", script)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if script, _, code := ran(t, "completion", shell); code != 0 || !strings.Contains(script, fileName) || !strings.Contains(script, "all-namespaces") {
			t.Errorf("%s: got %d and %q, want our name and flags", shell, code, script)
		}
	}
}
