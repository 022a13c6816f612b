package kubectl

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/top"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) {
	harness.AsKubectl()
	os.Exit(m.Run())
}

// proxyTo starts a proxy to an API server.
func proxyTo(t *testing.T, api http.HandlerFunc) *Proxy {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	harness.Kubectl{API: server.URL}.Install(t)
	t.Setenv("TMPDIR", t.TempDir())
	p, err := Command{}.Proxy(t.Context())
	harness.NoError(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(os.TempDir() + "/*"); len(left) > 0 {
			t.Errorf("got %q left behind, want nothing", left)
		}
	})
	return p
}

func TestTheProxyIsForThisUserAlone(t *testing.T) {
	p := proxyTo(t, http.NotFound)
	info, err := os.Stat(p.folder)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got the folder %v, %v, want mode 0700", info.Mode(), err)
	}
}

func TestAKubectlThatDoesNotStartSaysWhy(t *testing.T) {
	harness.Kubectl{Refuses: "error: context \"x\" does not exist"}.Install(t)
	t.Setenv("TMPDIR", t.TempDir())
	var stderr bytes.Buffer
	c := Command{Stderr: &stderr}
	if _, err := c.Proxy(t.Context()); err == nil || !strings.Contains(stderr.String(), "does not exist") {
		t.Errorf("proxy: got %v and %q, want an error and kubectl's own words", err, stderr.String())
	}
	if _, err := c.Namespace(t.Context()); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("namespace: got %v, want kubectl's own words", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := c.Proxy(t.Context()); err == nil || !strings.Contains(err.Error(), "kubectl") {
		t.Errorf("got %v without kubectl, want an error that names it", err)
	}
	if left, _ := filepath.Glob(os.TempDir() + "/*"); len(left) > 0 {
		t.Errorf("got %q left behind, want nothing", left)
	}
}

func TestAProxyThatEndsOfItselfIsNoticed(t *testing.T) {
	p := proxyTo(t, http.NotFound)
	harness.Equal(t, p.Failed(), nil, "of a proxy that runs")
	harness.NoError(t, p.cmd.Process.Kill())
	harness.Until(t, "its end is noticed", func() bool { return p.Failed() != nil })
	harness.Equal(t, p.Failed().Error(), "kubectl proxy: it has ended", "(that it has ended)")
	if _, _, err := p.Sidecars(t.Context(), Selection{}); err == nil {
		t.Error("got a list from a proxy that has ended, want an error")
	}
}

func TestAllPagesOfAListAreRead(t *testing.T) {
	var asked []string
	p := proxyTo(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+" "+r.URL.Query().Get("labelSelector")+" "+r.URL.Query().Get("continue"))
		next := ""
		if r.URL.Query().Get("continue") == "" {
			next = "two"
		}
		fmt.Fprintf(w, `{"metadata":{"continue":%q},"items":[{"metadata":{"name":"web","namespace":"shop"},"spec":{"containers":[{"name":"sidecar"}]}}]}`, next)
	})
	all, more, err := p.Sidecars(t.Context(), Selection{Namespace: "shop", Labels: "app=web", Container: "sidecar"})
	if err != nil || more || len(all) != 2 {
		t.Errorf("got %+v, %v, %v, want one of each page", all, more, err)
	}
	if _, _, err := p.Sidecars(t.Context(), Selection{Container: "sidecar"}); err != nil {
		t.Error(err)
	}
	const want = "[/api/v1/namespaces/shop/pods app=web  /api/v1/namespaces/shop/pods app=web two /api/v1/pods   /api/v1/pods  two]"
	harness.Equal(t, fmt.Sprint(asked), want)
}

func TestAListHasAnEnd(t *testing.T) {
	item := `{"metadata":{"name":"web","namespace":"shop"},"spec":{"containers":[{"name":"queue-proxy"}]}}`
	page := `{"metadata":{"continue":"more"},"items":[` + strings.Repeat(item+",", 249) + item + `]}`
	p := proxyTo(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) })
	if all, more, err := p.Sidecars(t.Context(), Selection{Container: "queue-proxy"}); err != nil || !more || len(all) != Most {
		t.Errorf("got %d, %v, %v, want %d and that there are more", len(all), more, err, Most)
	}
}

func TestARefusedListIsTheAPIServersWord(t *testing.T) {
	p := proxyTo(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","message":"pods is forbidden: User \"u\" cannot list resource"}`)
	})
	if _, _, err := p.Sidecars(t.Context(), Selection{}); err == nil || !strings.Contains(err.Error(), `list of pods: pods is forbidden: User "u"`) {
		t.Errorf("got %v, want what the API server said", err)
	}
}

// answers are what is made of what a pod, or the API server in its place, answers. The first
// is of port 9091, the second of 9090.
func TestASidecarThatDoesNotAnswerSaysWhy(t *testing.T) {
	const refused = `{"kind":"Status","message":"error trying to reach service: dial tcp 10.0.0.1:9091: connect: connection refused"}`
	type answer struct {
		code       int
		kind, body string
	}
	stats := answer{200, "application/json", `{"queue_average_concurrent_requests":1,"queue_requests_per_second_6s":2}`}
	cases := map[string]struct {
		metrics, stats answer
		want           string
	}{
		"refused":             {answer{503, "application/json", refused}, answer{503, "application/json", refused}, "port 9091: connection refused"},
		"refused, statistics": {answer{503, "application/json", refused}, stats, "<nil>"},
		"metrics are off":     {answer{404, "text/plain", "404 page not found\n"}, stats, "<nil>"},
		"another's metrics":   {answer{200, "text/plain", "up 1\n"}, stats, "<nil>"},
		"Knative's own":       {answer{404, "text/plain", "404\n"}, answer{200, "application/protobuf", "\x0a\x03web"}, "another queue-proxy, without metrics"},
		"forbidden":           {answer{403, "application/json", `{"kind":"Status","message":"pods \"web\" is forbidden"}`}, stats, "forbidden: get of pods/proxy is needed"},
		"unreachable":         {answer{503, "application/json", strings.Replace(refused, "connection refused", "no route to host", 1)}, stats, "port 9091: no route to host"},
		"gone":                {answer{404, "application/json", `{"kind":"Status","message":"pods \"web\" not found"}`}, stats, `port 9091: pods "web" not found`},
		"busy":                {answer{503, "text/plain", "too many scrapes\n"}, stats, "port 9091 answered 503 Service Unavailable"},
		"not text":            {answer{200, "text/plain", "queue_proxy_ready yes\n"}, stats, `metrics cannot be read: text format parsing error in line 1: expected float as value, got "yes"`},
		"a redirect":          {answer{302, "text/plain", ""}, stats, "port 9091 answered 302 Found"},
	}
	p := proxyTo(t, func(w http.ResponseWriter, r *http.Request) {
		name, port, _ := strings.Cut(strings.Split(r.URL.Path, "/")[6], ":")
		a := cases[name].metrics
		if port == "9090" {
			a = cases[name].stats
		}
		w.Header().Set("Content-Type", a.kind)
		w.Header().Set("Location", "http://other.example/")
		w.WriteHeader(a.code)
		fmt.Fprint(w, a.body)
	})
	for name, c := range cases {
		_, err := p.scrape(t.Context(), top.Sidecar{Namespace: "shop", Pod: name, Metrics: 9091, Stats: 9090})
		harness.Equal(t, fmt.Sprint(err), c.want, name)
	}
}

func TestAnAnswerOfAnySizeIsReadToABound(t *testing.T) {
	p := proxyTo(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# TYPE queue_proxy_ready gauge\nqueue_proxy_ready 1\n")
		for line := []byte(strings.Repeat("x", 1<<10) + " 1\n"); ; {
			if _, err := w.Write(line); err != nil {
				return // until nobody reads it any more
			}
		}
	})
	if s, err := p.scrape(t.Context(), top.Sidecar{Metrics: 9091}); err != nil || s.Ready == nil {
		t.Errorf("got %+v, %v, want what stands at the beginning", s, err)
	}
}

func TestSidecarsAreAskedAtMostSoManyAtOnce(t *testing.T) {
	var mu sync.Mutex
	now, highest, asked := 0, 0, 0
	full := make(chan struct{})
	p := proxyTo(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		asked++
		if now++; now > highest {
			if highest = now; highest == Parallel {
				close(full)
			}
		}
		mu.Unlock()
		<-full
		mu.Lock()
		now--
		mu.Unlock()
		fmt.Fprint(w, "# TYPE queue_proxy_ready gauge\nqueue_proxy_ready 1\n")
	})
	all := make([]top.Sidecar, 5*Parallel)
	all[0].Absent = "Pending"
	n := 0
	p.Scrape(t.Context(), all, func(_ top.Sidecar, _ top.Sample, err error) {
		if n++; err != nil {
			t.Error(err)
		}
	})
	if want := len(all) - 1; n != want || asked != want || highest > Parallel {
		t.Errorf("got %d answers, %d questions and %d at once, want %d, and at most %d", n, asked, highest, want, Parallel)
	}
}
