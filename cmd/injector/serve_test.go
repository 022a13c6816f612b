package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// TestMain runs the injector instead of the tests if the variable BE_THE_INJECTOR is set, or for a
// script.
func TestMain(m *testing.M) {
	if os.Getenv("BE_THE_INJECTOR") != "" {
		main()
	}
	testscript.Main(m, map[string]func(){"injector": main, "kubectl": fakeKubectl})
}

func TestCommandLine(t *testing.T) { harness.RunScripts(t, "testdata") }

func TestServeStopsAfterSignal(t *testing.T) {
	p := startInjector(t, os.Args[0], "--concurrency=3")
	status, text, err := p.poster()("application/json", strings.NewReader(goodReview))
	harness.NoError(t, err)
	var got struct {
		Response struct {
			Allowed bool
			Patch   []byte
		}
	}
	harness.NoError(t, json.Unmarshal([]byte(text), &got), status, text)
	if !got.Response.Allowed || !bytes.Contains(got.Response.Patch, []byte(`{"name":"CONTAINER_CONCURRENCY","value":"3"}`)) {
		t.Errorf("got %v %s, want a patch with the value of the flag", got.Response.Allowed, got.Response.Patch)
	}
	if r, err := http.Get("http://" + p.metrics + "/readyz"); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("got %v %v, want ready", r, err)
	}
	harness.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	<-p.logged
	harness.NoError(t, p.cmd.Wait(), "(exit code 0)")
}

func TestServeStopsAfterSIGHUP(t *testing.T) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP) // enable SIGHUP for new processes, because the test can run under nohup
	defer signal.Stop(c)
	p := startInjector(t, os.Args[0])
	harness.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	<-p.logged
	harness.NoError(t, p.cmd.Wait(), "(exit code 0)")
}

func TestServeRejectsInvalidFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--on-refusal=shrug"}, "deny, allow"},
		{[]string{"--self-managed"}, "POD_NAMESPACE"},
		{[]string{"--self-managed", "--namespace=x"}, "not running in a cluster"},
		{[]string{"--cert-dir=/nowhere", "--addr=nonsense"}, "nonsense"},
		{[]string{"--client-ca=/nowhere"}, "--client-ca: open /nowhere"},
		{[]string{"--client-ca=serve.go"}, "--client-ca serve.go: no PEM certificate found"},
		{[]string{"--concurrency=-1"}, `--concurrency: "-1": must be`},
	} {
		_, report, code := injector(t, "serve", "", c.args...)
		if code != failed || !strings.Contains(report, c.want) {
			t.Errorf("%q: got exit code %d and %s, want 2 and %q", c.args, code, report, c.want)
		}
	}
}
