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
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/queue-proxy/queue-proxy/pkg/plugin"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) {
	testscript.Main(cleaning{m}, map[string]func(){"kubectl-queue_proxy": main})
}

// cleaning removes the program of the sidecar after the tests.
type cleaning struct{ *testing.M }

func (c cleaning) Run() int {
	defer os.RemoveAll(built)
	return c.M.Run()
}

func TestCommandLine(t *testing.T) { harness.RunScripts(t, "testdata") }

// built is the directory of the sidecar's program. It is empty until a test uses the
// program.
var built string

// queueProxy builds the sidecar and returns the path of the program.
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

// ran runs a command line, and returns its output and exit code.
func ran(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errors bytes.Buffer
	p := &program{stdin: nil, stdout: &out, stderr: &errors}
	code = p.run(t.Context(), args)
	return out.String(), errors.String(), code
}

// apiServer is an API server with pods.
type apiServer struct {
	pods    string            // items of the pod list
	ports   map[string]string // address of a port, by "pod:port"
	program string            // program that exec runs instead of the program in the container
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/") // the path is /api/v1/namespaces/NAMESPACE/pods/POD:PORT/proxy/metrics
	w.Header().Set("Content-Type", "application/json")
	switch {
	case len(parts) < 7:
		fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[%s]}`, s.pods)
		return
	case len(parts) == 7:
		s.pod(w, parts[6])
		return
	case parts[7] == "exec":
		s.exec(w, r)
		return
	}
	address, ok := s.ports[parts[6]]
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"kind":"Status","message":"error trying to reach service: dial tcp 10.0.0.1:9091: connect: connection refused"}`)
		return
	}
	r.URL.Path = "/metrics"
	w.Header().Del("Content-Type")
	httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address}).ServeHTTP(w, r)
}

// pod returns the pod with the given name.
func (s *apiServer) pod(w http.ResponseWriter, name string) {
	var pods []map[string]any
	_ = json.Unmarshal([]byte("["+s.pods+"]"), &pods)
	for _, pod := range pods {
		if pod["metadata"].(map[string]any)["name"] == name {
			pod["kind"] = "Pod"
			_ = json.NewEncoder(w).Encode(pod)
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprintf(w, `{"kind":"Status","message":"pods %q not found"}`, name)
}

// exec runs the program, with the protocol v5.channel.k8s.io. The first byte of a message is the channel: 1 is the
// standard output, 2 the standard error, 3 the status.
func (s *apiServer) exec(w http.ResponseWriter, r *http.Request) {
	if s.program == "" { // as for a container that does not exist
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"kind":"Status","message":"container not found"}`)
		return
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"v5.channel.k8s.io"}})
	if err != nil {
		return
	}
	ctx := conn.CloseRead(r.Context())
	cmd := exec.Command(s.program, r.URL.Query()["command"][1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	status := `{"status":"Success"}`
	if err := cmd.Run(); err != nil {
		status = fmt.Sprintf(`{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"%d"}]}}`, cmd.ProcessState.ExitCode())
	}
	for _, message := range []string{"\x01" + stdout.String(), "\x02" + stderr.String(), "\x03" + status} {
		_ = conn.Write(ctx, websocket.MessageBinary, []byte(message))
	}
	_ = conn.Close(websocket.StatusNormalClosure, "")
}

func podItem(namespace, name, env string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q},"spec":{"containers":[{"name":"queue-proxy","env":[%s]}]},"status":{"phase":"Running","podIP":"10.0.0.1"}}`, name, namespace, env)
}

// install starts the server and makes it the current context of the kubeconfig.
func (s *apiServer) install(t *testing.T) {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	writeKubeconfig(t, server.URL)
}

func writeKubeconfig(t *testing.T, server string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"test","clusters":[{"name":"test","cluster":{"server":%q}}],
		"contexts":[{"name":"test","context":{"cluster":"test","namespace":"of-the-context"}}]}`, server)
	harness.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	t.Setenv("KUBECONFIG", file)
}

// A sidecar is a running queue-proxy in front of an application.
type sidecar struct {
	serving, metrics, stats, status string // ports of the sidecar
}

// startSidecar starts a queue-proxy in front of the application at the address app.
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
	c := &apiServer{
		pods: podItem("shop", "web-1", "") + "," + podItem("shop", "web-2", `{"name":"METRICS_PORT","value":"19091"}`) + "," + podItem("shop", "off", `{"name":"METRICS_PORT","value":"19092"}`),
		ports: map[string]string{
			"web-1:9091": "127.0.0.1:" + s.metrics,
			"off:9090":   "127.0.0.1:" + s.stats,
		},
	}
	c.install(t)
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
	var got struct{ Sidecars []plugin.Row }
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || stderr != "" || len(got.Sidecars) != 3 {
		t.Fatalf("got code %d, %v, %q and %s, want three rows", code, err, stderr, stdout)
	}
	off, web1, web2 := got.Sidecars[0], got.Sidecars[1], got.Sidecars[2]
	if web1.Pod != "web-1" || web1.State != plugin.Ready || *web1.Limit != 3 || *web1.Rate <= 0 || web1.P99 == nil || web1.Failure != "app-reset" || web1.FailedAt == nil {
		t.Errorf("got %+v, want a ready sidecar with requests that the app resets", web1)
	}
	if web2.State != plugin.Unknown || web2.Note != "port 19091: connection refused" {
		t.Errorf("got %+v, want the connection error of the separate port", web2)
	}
	if off.Rate == nil || off.Waiting != nil || off.Note != "metrics are disabled; only statistics are shown" {
		t.Errorf("got %+v, want the statistics of the sidecar", off)
	}
}

func TestWhyPrintsResultOfSidecar(t *testing.T) {
	app := httptest.NewServer(http.NotFoundHandler())
	s := startSidecar(t, app.URL)
	(&apiServer{program: queueProxy(t)}).install(t)
	t.Setenv("STATUS_PORT", s.status) // the environment of the container sets the port of why
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"why web-1", "ready for ", 0},
		{"why pod/web-1 -n shop --context=test -c queue", "ready for ", 0},
		{"why -o json web-1", `"ready": false`, 1},
	} {
		if c.code != 0 {
			app.Close()
		}
		stdout, stderr, code := "", "", 0
		harness.Until(t, c.args, func() bool { // the sidecar detects with a delay that the application has stopped
			stdout, stderr, code = ran(t, strings.Fields(c.args)...)
			return code == c.code
		})
		if stderr != "" || !strings.Contains(stdout, c.want) {
			t.Errorf("%s: got %q and %q, want %q", c.args, stderr, stdout, c.want)
		}
	}
}

func TestWhyReportsPodWithoutSidecar(t *testing.T) {
	waiting := strings.Replace(podItem("shop", "web-2", ""), `"phase":"Running"`, `"phase":"Pending","containerStatuses":[{"name":"queue-proxy","state":{"waiting":{"reason":"ImagePullBackOff"}}}]`, 1)
	(&apiServer{pods: podItem("shop", "web-1", "") + "," + waiting}).install(t)
	for args, want := range map[string]string{
		"why none -n shop":        "namespace shop has no pod none",
		"why web-1 -n shop -c no": "pod web-1 has no container no; use --container to select another container",
		"why web-2 -n shop":       "container queue-proxy of pod web-2 is not running: ImagePullBackOff",
	} {
		stdout, stderr, code := ran(t, strings.Fields(args)...)
		if stdout != "" || stderr != "kubectl queue-proxy: "+want+"\n" || code != failed {
			t.Errorf("%s: got %q, %q and %d, want %q and %d", args, stdout, stderr, code, want, failed)
		}
	}
}

func TestTopWithoutSidecarsReportsNamespace(t *testing.T) {
	(&apiServer{}).install(t)
	stdout, stderr, code := ran(t, "top")
	if stdout != "" || stderr != "No sidecars found in namespace of-the-context.\n" || code != 0 {
		t.Errorf("got %q, %q and %d, want a message with the namespace of the context", stdout, stderr, code)
	}
	if stdout, _, code = ran(t, "top", "-A", "-o", "json"); code != 0 || !strings.Contains(stdout, `"sidecars": []`) {
		t.Errorf("got %q and %d, want an empty list", stdout, code)
	}
}

func TestTopReportsFilterWithoutMatch(t *testing.T) {
	(&apiServer{pods: podItem("shop", "web-1", "")}).install(t)
	stdout, stderr, code := ran(t, "top", "--filter", "zzz", "--interval", "1s")
	if stdout != "" || stderr != "No row matches the filter \"zzz\".\n" || code != 0 {
		t.Errorf("got %q, %q and %d, want a message about the filter", stdout, stderr, code)
	}
}

func TestErrorsOfAPIServerArePrinted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized\u001b[2J","reason":"Unauthorized","code":401}`)
	}))
	defer server.Close()
	writeKubeconfig(t, server.URL)
	const rejected = "the API server rejected the credentials (401 Unauthorized); check the credentials in the kubeconfig"
	for args, want := range map[string]string{
		"top": "list of pods: " + rejected, "top -A": "list of pods: " + rejected, "why web-1": rejected, "why deployment/web": rejected,
		"top --context=other": `context "other" does not exist`,
	} {
		_, stderr, code := ran(t, strings.Fields(args)...)
		if code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%s: got %d and %q, want 1 and %q", args, code, stderr, want)
		}
		wantPrintable(t, args, stderr)
	}
}

// A proxy or another web server can respond instead of the API server.
func TestHTMLResponseIsReported(t *testing.T) {
	const want = "the server returned an HTML page, so it is not a Kubernetes API server"
	for _, status := range []int{http.StatusOK, http.StatusNotFound} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.WriteHeader(status)
			fmt.Fprint(w, "<html><body>Log in</body></html>")
		}))
		defer server.Close()
		writeKubeconfig(t, server.URL)
		for _, args := range []string{"top", "top -A", "why web-1", "why deployment/web"} {
			_, stderr, code := ran(t, strings.Fields(args)...)
			if code != 1 || !strings.Contains(stderr, want) {
				t.Errorf("%s with status %d: got %d and %q, want 1 and %q", args, status, code, stderr, want)
			}
		}
	}
}

func TestUnknownResourceTypeIsReported(t *testing.T) {
	(&apiServer{}).install(t)
	_, stderr, code := ran(t, "why", "deploymnet/web")
	want := `deploymnet/web: the API server has no resource type "deploymnet"; use the name of a pod, or TYPE/NAME such as deployment/web`
	if code != 1 || !strings.Contains(stderr, want) {
		t.Errorf("got %d and %q, want 1 and %q", code, stderr, want)
	}
}

// The document describes all columns, JSON names and limits. The help of the commands
// contains the flags and sort keys that the document describes.
func TestDocumentIsComplete(t *testing.T) {
	text, err := os.ReadFile("../../docs/kubectl.md")
	harness.NoError(t, err)
	row, err := json.Marshal(plugin.Row{})
	harness.NoError(t, err)
	var fields map[string]any
	harness.NoError(t, json.Unmarshal(row, &fields))
	delete(fields, "namespace")
	delete(fields, "pod")
	wanted := []string{fmt.Sprintf("| sidecars | %d;", plugin.MaxSidecars), fmt.Sprintf("| concurrent requests | %d |", plugin.MaxParallel), "every " + strings.TrimSuffix(listInterval.String(), "s") + " s"}
	for _, word := range slices.Sorted(maps.Keys(fields)) {
		wanted = append(wanted, "`"+word+"`")
	}
	for title := range strings.FieldsSeq("READY RUNNING WAITING LIMIT REQ/S P99 NOTE") {
		wanted = append(wanted, "`"+title+"`")
	}
	for _, want := range wanted {
		harness.Contains(t, string(text), want, "docs/kubectl.md")
	}
}

func TestPodNamesAreCompleted(t *testing.T) {
	(&apiServer{pods: podItem("shop", "web-1", "") + "," + podItem("shop", "web-2", "")}).install(t)
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
