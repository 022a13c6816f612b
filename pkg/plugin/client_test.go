package plugin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// clientFor returns a client for an API server.
func clientFor(t *testing.T, api http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	c, err := New(&rest.Config{Host: server.URL, BearerToken: "secret"})
	harness.NoError(t, err)
	return c
}

func TestRedirectOfPodDoesNotReceiveCredentials(t *testing.T) {
	requests := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests++ }))
	defer other.Close()
	c := clientFor(t, func(w http.ResponseWriter, r *http.Request) {
		harness.Equal(t, r.Header.Get("Authorization"), "Bearer secret", "credentials for the API server")
		http.Redirect(w, r, other.URL, http.StatusFound)
	})
	_, err := c.scrape(t.Context(), Sidecar{Namespace: "shop", Pod: "web", Metrics: 9091, Stats: 9090})
	harness.Equal(t, fmt.Sprint(err), "port 9091 returned 302 Found")
	harness.Equal(t, requests, 0, "requests to the other server")
}

func TestSidecarsReadsAllPages(t *testing.T) {
	var asked []string
	c := clientFor(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+" "+r.URL.Query().Get("labelSelector")+" "+r.URL.Query().Get("continue"))
		next := ""
		if r.URL.Query().Get("continue") == "" {
			next = "two"
		}
		fmt.Fprintf(w, `{"metadata":{"continue":%q},"items":[{"metadata":{"name":"web","namespace":"shop"},"spec":{"containers":[{"name":"sidecar"}]}}]}`, next)
	})
	all, more, err := c.Sidecars(t.Context(), Selection{Namespace: "shop", Labels: "app=web", Container: "sidecar"})
	if err != nil || more || len(all) != 2 {
		t.Errorf("got %+v, %v, %v, want one pod of each page", all, more, err)
	}
	if _, _, err := c.Sidecars(t.Context(), Selection{Container: "sidecar"}); err != nil {
		t.Error(err)
	}
	const want = "[/api/v1/namespaces/shop/pods app=web  /api/v1/namespaces/shop/pods app=web two /api/v1/pods   /api/v1/pods  two]"
	harness.Equal(t, fmt.Sprint(asked), want)
}

func TestSidecarsReturnsAtMostLimit(t *testing.T) {
	item := `{"metadata":{"name":"web","namespace":"shop"},"spec":{"containers":[{"name":"queue-proxy"}]}}`
	page := `{"metadata":{"continue":"more"},"items":[` + strings.Repeat(item+",", 249) + item + `]}`
	c := clientFor(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) })
	if all, more, err := c.Sidecars(t.Context(), Selection{Container: "queue-proxy"}); err != nil || !more || len(all) != MaxSidecars {
		t.Errorf("got %d, %v, %v, want %d and true", len(all), more, err, MaxSidecars)
	}
}

func TestSidecarsReturnsErrorOfAPIServer(t *testing.T) {
	c := clientFor(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","message":"pods is forbidden: User \"u\" cannot list resource"}`)
	})
	if _, _, err := c.Sidecars(t.Context(), Selection{}); err == nil || !strings.Contains(err.Error(), `list of pods: pods is forbidden: User "u"`) {
		t.Errorf("got %v, want the error message of the API server", err)
	}
}

// Each case contains the response of port 9091 and the response of port 9090.
func TestScrapeReturnsReasonOfFailure(t *testing.T) {
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
		"refused":         {answer{503, "application/json", refused}, answer{503, "application/json", refused}, "port 9091: connection refused"},
		"only statistics": {answer{503, "application/json", refused}, stats, "<nil>"},
		"metrics are off": {answer{404, "text/plain", "404 page not found\n"}, stats, "<nil>"},
		"unknown metrics": {answer{200, "text/plain", "up 1\n"}, stats, "<nil>"},
		"Knative sidecar": {answer{404, "text/plain", "404\n"}, answer{200, "application/protobuf", "\x0a\x03web"}, "the queue-proxy does not serve metrics"},
		"forbidden":       {answer{403, "application/json", `{"kind":"Status","message":"pods \"web\" is forbidden"}`}, stats, "forbidden: the permission to get pods/proxy is missing"},
		"unreachable":     {answer{503, "application/json", strings.Replace(refused, "connection refused", "no route to host", 1)}, stats, "port 9091: no route to host"},
		"gone":            {answer{404, "application/json", `{"kind":"Status","message":"pods \"web\" not found"}`}, stats, `port 9091: pods "web" not found`},
		"busy":            {answer{503, "text/plain", "too many scrapes\n"}, stats, "port 9091 returned 503 Service Unavailable"},
		"not text":        {answer{200, "text/plain", "queue_proxy_ready yes\n"}, stats, `parse metrics: text format parsing error in line 1: expected float as value, got "yes"`},
		"a redirect":      {answer{302, "text/plain", ""}, stats, "port 9091 returned 302 Found"},
	}
	c := clientFor(t, func(w http.ResponseWriter, r *http.Request) {
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
	for name, test := range cases {
		_, err := c.scrape(t.Context(), Sidecar{Namespace: "shop", Pod: name, Metrics: 9091, Stats: 9090})
		harness.Equal(t, fmt.Sprint(err), test.want, name)
	}
}

func TestScrapeBoundsSizeOfResponse(t *testing.T) {
	c := clientFor(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# TYPE queue_proxy_ready gauge\nqueue_proxy_ready 1\n")
		for line := []byte(strings.Repeat("x", 1<<10) + " 1\n"); ; {
			if _, err := w.Write(line); err != nil {
				return // the client closed the connection
			}
		}
	})
	if s, err := c.scrape(t.Context(), Sidecar{Metrics: 9091}); err != nil || s.Ready == nil {
		t.Errorf("got %+v, %v, want the values at the beginning of the page", s, err)
	}
}

func TestScrapeBoundsConcurrency(t *testing.T) {
	var mu sync.Mutex
	now, highest, asked := 0, 0, 0
	full := make(chan struct{})
	c := clientFor(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		asked++
		if now++; now > highest {
			if highest = now; highest == MaxParallel {
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
	all := make([]Sidecar, 5*MaxParallel)
	all[0].Absent = "Pending"
	n := 0
	c.Scrape(t.Context(), all, func(_ Sidecar, _ Sample, err error) {
		if n++; err != nil {
			t.Error(err)
		}
	})
	if want := len(all) - 1; n != want || asked != want || highest > MaxParallel {
		t.Errorf("got %d responses to %d requests with %d concurrent requests, want %d responses and at most %d concurrent requests", n, asked, highest, want, MaxParallel)
	}
}

// execServer serves exec with the protocol v5.channel.k8s.io. The first byte of a message is the channel: 1 is the
// standard output, 2 the standard error, 3 the status.
func execServer(t *testing.T, status string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/exec") { // the user cannot read the pod
			w.WriteHeader(http.StatusForbidden)
			return
		}
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"v5.channel.k8s.io"}})
		if err != nil {
			t.Error(err)
			return
		}
		ctx := conn.CloseRead(r.Context())
		for _, message := range []string{"\x01" + r.URL.Path + " " + r.URL.RawQuery, "\x02error", "\x03" + status} {
			if err := conn.Write(ctx, websocket.MessageBinary, []byte(message)); err != nil {
				t.Error(err)
			}
		}
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
}

func TestExecReturnsOutputAndExitCode(t *testing.T) {
	for _, test := range []struct {
		status string
		code   int
		err    string
	}{
		{`{"status":"Success"}`, 0, "<nil>"},
		{`{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"1"}]}}`, 1, "<nil>"},
		{`{"status":"Failure","message":"container not found"}`, 0, "container not found"},
	} {
		var stdout, stderr bytes.Buffer
		code, err := clientFor(t, execServer(t, test.status)).Exec(t.Context(), "shop", "web", "queue-proxy", &stdout, &stderr, "/ko-app/queue", "why")
		harness.Equal(t, code, test.code, test.status, "exit code")
		harness.Equal(t, fmt.Sprint(err), test.err, test.status)
		harness.Equal(t, stdout.String(), "/api/v1/namespaces/shop/pods/web/exec command=%2Fko-app%2Fqueue&command=why&container=queue-proxy&stderr=true&stdout=true")
		harness.Equal(t, stderr.String(), "error")
	}
}

func TestExecUsesSPDYIfServerRejectsWebSocket(t *testing.T) {
	var methods []string
	c := clientFor(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/exec") {
			methods = append(methods, r.Method)
		}
		w.WriteHeader(http.StatusForbidden)
	})
	_, err := c.Exec(t.Context(), "shop", "web", "queue-proxy", io.Discard, io.Discard, "why")
	if err == nil {
		t.Error("got no error, want the error of the server")
	}
	harness.Equal(t, methods, []string{http.MethodGet, http.MethodPost})
}

// workloads serves an API with a Deployment, a Service without a selector, and two pods.
func workloads(w http.ResponseWriter, r *http.Request) {
	text := map[string]string{
		"/api":          `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":         `{"kind":"APIGroupList","groups":[{"name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}],"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}]}`,
		"/api/v1":       `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"services","singularName":"service","namespaced":true,"kind":"Service","verbs":["get"]}]}`,
		"/apis/apps/v1": `{"kind":"APIResourceList","groupVersion":"apps/v1","resources":[{"name":"deployments","singularName":"deployment","namespaced":true,"kind":"Deployment","verbs":["get"]}]}`,
		"/api/v1/namespaces/shop/services/external":      `{"kind":"Service","apiVersion":"v1","metadata":{"name":"external","namespace":"shop"},"spec":{}}`,
		"/api/v1/namespaces/shop/services/web":           `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","namespace":"shop"},"spec":{"selector":{"app":"web"}}}`,
		"/apis/apps/v1/namespaces/shop/deployments/web":  `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"shop"},"spec":{"selector":{"matchLabels":{"app":"web"}}}}`,
		"/apis/apps/v1/namespaces/shop/deployments/none": `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"none","namespace":"shop"},"spec":{"selector":{"matchLabels":{"app":"none"}}}}`,
	}[r.URL.Path]
	switch {
	case r.URL.Path == "/api/v1/namespaces/shop/pods" && r.URL.Query().Get("labelSelector") == "app=web":
		text = `{"kind":"PodList","items":[{"metadata":{"name":"web-1"},"status":{"phase":"Pending"}},{"metadata":{"name":"web-2"},"status":{"phase":"Running"}}]}`
	case r.URL.Path == "/api/v1/namespaces/shop/pods":
		text = `{"kind":"PodList","items":[]}`
	case text == "":
		w.WriteHeader(http.StatusNotFound)
		text = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"not found"}`
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, text)
}

func TestPodOfReturnsPodOfWorkload(t *testing.T) {
	c := clientFor(t, workloads)
	flags := genericclioptions.NewConfigFlags(true)
	server, cache := c.base.String(), t.TempDir()
	flags.APIServer, flags.CacheDir = &server, &cache
	for arg, want := range map[string]string{
		"web-7": "web-7", "pod/web-7": "web-7", "pods/web-7": "web-7", "deployment/web": "web-2", "deployments.apps/web": "web-2", "service/web": "web-2",
	} {
		pod, err := c.PodOf(context.Background(), flags, "shop", arg)
		harness.Equal(t, pod, want, arg, err)
	}
	for arg, want := range map[string]string{
		"deployment/none": "deployment/none has no pods", "deployment/gone": "could not find the requested resource", "service/external": "service/external: the selector for pods is missing", "frob/x": `has no resource type "frob"`,
	} {
		_, err := c.PodOf(context.Background(), flags, "shop", arg)
		harness.Contains(t, fmt.Sprint(err), want, arg)
	}
}
