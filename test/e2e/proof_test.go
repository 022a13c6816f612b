//go:build e2e

package e2e

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestImageContainsOnlyRequiredFiles(t *testing.T) {
	for image, want := range map[string][]string{
		sidecarImage:  {"etc/ssl/certs/ca-certificates.crt", "ko-app/queue", "ko-app/queue.cdx.json"},
		injectorImage: {"ko-app/injector", "ko-app/injector.cdx.json"},
	} {
		file := t.TempDir() + "/image.tar"
		name := podman(t, nil, "create", "--network=none", image)
		podman(t, nil, "export", "-o", file, name)
		podman(t, nil, "rm", name)
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var got []string
		for r := tar.NewReader(f); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			// Ignore empty files, because the container engine creates them as mount points.
			if h.Typeflag == tar.TypeReg && h.Size > 0 {
				got = append(got, path.Clean(h.Name))
			}
			if strings.HasSuffix(h.Name, ".cdx.json") {
				checkModules(t, r, podman(t, nil, "run", "--rm", "--network=none", image, "version"))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got files %q, want %q", image, got, want)
		}
	}
}

// checkModules fails the test unless the SBOM of a binary contains modules and the version
// that the binary prints.
func checkModules(t *testing.T, list io.Reader, versions string) {
	t.Helper()
	var got struct {
		Metadata struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version string }
	}
	if err := json.NewDecoder(list).Decode(&got); err != nil {
		t.Fatal(err)
	}
	c := got.Metadata.Component
	if c.Version == "" || !strings.Contains(versions, c.Version) || len(got.Components) < 5 {
		t.Errorf("got SBOM with %d modules for %s, version %q, want at least 5 modules and a version in %q", len(got.Components), c.Name, c.Version, versions)
	}
}

func TestImageUserAndVersion(t *testing.T) {
	for _, image := range []string{sidecarImage, injectorImage} {
		var about []struct {
			Config struct {
				User   string
				Labels map[string]string
			}
		}
		if err := json.Unmarshal([]byte(podman(t, nil, "image", "inspect", image)), &about); err != nil {
			t.Fatal(err)
		}
		if got := about[0].Config.User; got != "65532:65532" {
			t.Errorf("%s: got user %q, want 65532:65532", image, got)
		}
		labels := about[0].Config.Labels
		version, commit := labels["org.opencontainers.image.version"], labels["org.opencontainers.image.revision"]
		got := podman(t, nil, "run", "--rm", "--network=none", "--read-only", "--cap-drop=all", image, "version")
		if version == "" || version == "dev" || len(commit) != 40 || !strings.Contains(got, version) || !strings.Contains(got, commit) {
			t.Errorf("%s: binary reports %q, want version %q and commit %q as in the labels", image, got, version, commit)
		}
	}
}

// sendContinuously sends requests from eight clients until stop is called, each on a new
// connection, and counts the results.
func (p *pod) sendContinuously(sent, served, refused *atomic.Int64) (stop func()) {
	end := make(chan struct{})
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for {
				select {
				case <-end:
					return
				case <-time.After(20 * time.Millisecond):
				}
				sent.Add(1)
				status, body, err := p.get(8012, "/slow?ms=40", []corev1.HTTPHeader{{Name: "User-Agent", Value: "client"}}, patience)
				switch {
				case err == nil && status == http.StatusOK && body == "slow\n":
					served.Add(1)
				case err != nil && isRefused(err):
					refused.Add(1)
				default:
					p.t.Errorf("got %d %q %v, want the response from the app", status, body, err)
				}
			}
		})
	}
	return func() { close(end); clients.Wait() }
}

// The injected pod of deploy/example becomes ready through the sidecar, serves requests, and
// loses no request when it is stopped.
func TestInjectedExampleLosesNoRequest(t *testing.T) {
	t.Parallel() // run in parallel, because the test waits for a quiet period of 30 seconds
	before, err := os.ReadFile("../../deploy/example/before.yaml")
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile("../../deploy/example/after.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := inject(t, before); string(got) != strings.TrimSpace(string(after)) {
		t.Fatalf("output of the injector image:\n%s\nwant the content of deploy/example/after.yaml", got)
	}
	spec := podOf(t, after)
	app := &spec.Spec.Containers[0]
	app.Env = append(app.Env, corev1.EnvVar{Name: "PORT", Value: "8000"}) // the model in the example listens on this port
	p := play(t, spec, nil)
	p.awaitReady()

	var sent, served, refused atomic.Int64
	stop := p.sendContinuously(&sent, &served, &refused)
	eventually(t, "50 requests are served", func() bool { return served.Load() >= 50 })

	codes := make(chan map[string]int)
	go func() { codes <- p.terminate() }()
	sidecar := &spec.Spec.Containers[1]
	eventually(t, "the probe reports the drain", func() bool {
		status, body := p.probe(sidecar)
		return status == http.StatusServiceUnavailable && body == "shutting down\n"
	})
	since := served.Load()
	eventually(t, "50 more requests are served during the drain", func() bool { return served.Load() >= since+50 })
	stop() // stop sending, as after the removal of the pod from all endpoints
	if refused.Load() != 0 || sent.Load() != served.Load() {
		t.Errorf("got %d responses from the app and %d refused connections for %d requests, want a response to each request", served.Load(), refused.Load(), sent.Load())
	}
	got := <-codes
	if got["model"] != 0 || got[sidecarName] != 0 {
		t.Errorf("got exit codes %v, want 0 for both", got)
	}
	t.Logf("served %d requests; exit codes %v", sent.Load(), got)
}
