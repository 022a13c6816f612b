package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// fakeKubectl is the kubectl program that the scripts use. It prints the file for the path of a request,
// such as cluster/api/v1/pods.json, and grants all permissions.
func fakeKubectl() {
	args := os.Args[1:]
	if len(args) < 3 || args[1] != "--raw" || !slices.Contains(args, "--context=test") {
		fmt.Fprintf(os.Stderr, "error: unexpected arguments %q\n", args)
		os.Exit(1)
	}
	if args[0] == "create" {
		fmt.Println(`{"status":{"allowed":true}}`)
		return
	}
	path, err := url.Parse(args[2])
	if err == nil {
		var text []byte
		if text, err = os.ReadFile(filepath.Join("cluster", filepath.FromSlash(path.Path)+".json")); err == nil {
			fmt.Print(string(text))
			return
		}
	}
	fmt.Fprintln(os.Stderr, "Error from server (NotFound):", strings.TrimPrefix(err.Error(), "open cluster"))
	os.Exit(1)
}

func TestExplainReturnsErrorIfQuotaRejectsPods(t *testing.T) {
	quota := `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q"},"spec":{"hard":{"limits.memory":"1Gi"}}}`
	out, _, code := injector(t, "explain", goodPod+"\n---\n"+quota)
	harness.Contains(t, out, "the API server will reject the pods: ResourceQuota q")
	harness.Equal(t, code, failed, "exit code")
	out, _, code = injector(t, "explain", goodPod+"\n---\n"+quota, "-o", "json")
	harness.Contains(t, out, `"rejected": true`)
	harness.Equal(t, code, failed, "exit code")
	out, _, code = injector(t, "explain", goodPod+"\n---\n"+quota, "--memory-limit=64Mi")
	harness.Equal(t, code, done, out, "exit code")
	out, _, code = injector(t, "explain", goodPod+"\n---\n"+strings.Replace(quota, `"limits.memory":"1Gi"`, `"requests.cpu":"20m"`, 1))
	harness.Contains(t, out, "ResourceQuota q permits at most 20m of requests.cpu, but the pod with the sidecar requests 25m")
	harness.Equal(t, code, failed, "exit code")
}

func TestServeWithoutCertificateLogsWarning(t *testing.T) {
	dir := t.TempDir()
	p := startInjector(t, os.Args[0], "--cert-dir="+dir)
	harness.Contains(t, p.started, `"severity":"WARN"`)
	harness.Contains(t, p.started, dir)
}

func TestCheckRequiresKubectl(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, report, code := injector(t, "check", "")
	harness.Equal(t, report, "injector: cannot read the version of the API server: kubectl is not in the PATH\n")
	harness.Equal(t, code, failed, "exit code")
}
