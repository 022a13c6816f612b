//go:build cluster

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// ingress is the address for requests to Knative Services.
const ingress = nodeAddress + ":80"

// through sends a request to the ingress.
func through(host, path string, fields ...string) (int, string) {
	return ask(http.MethodGet, "http://"+ingress+path, append([]string{"Host: " + host}, fields...)...)
}

func TestServiceScalesToZeroAndBack(t *testing.T) {
	serving(t)
	t.Parallel()
	s := newSpace(t, "zero")
	host := s.deploy(kservice{name: "web"})
	for i := range 2 {
		s.atZero("web")
		begun := time.Now()
		if status, body := through(host, "/echo"); status != 200 {
			t.Fatalf("cold start: got %d %q, want 200", status, body)
		}
		t.Logf("cold start %d: %v", i+1, time.Since(begun).Round(time.Millisecond))
	}
	pods, err := s.pods("serving.knative.dev/service=web")
	if err != nil || len(pods) == 0 {
		t.Fatalf("got pods %v, %v, want one pod", pods, err)
	}
	if image := pods[len(pods)-1].spec(sidecarName).text("image"); image != sidecarImage {
		t.Errorf("got queue-proxy image %q, want %s", image, sidecarImage)
	}
}

func TestAutoscalerUsesSidecarStatistics(t *testing.T) {
	serving(t)
	t.Parallel()
	s := newSpace(t, "autoscale")
	host := s.deploy(kservice{name: "web", annotations: append(direct, `autoscaling.knative.dev/max-scale: "3"`, `autoscaling.knative.dev/target: "2"`)})
	through(host, "/echo")
	s.mode("web", "Serve")
	c := newClients(s, ingress)
	for i := range 8 {
		c.addClient(fmt.Sprint("slow", i), true, func(v *ledger.Client) {
			v.Host, v.Requests = host, []ledger.Request{ledger.Get("/slow?ms=400", 5)}
		})
	}
	s.scaled("web", func(n int) bool { return n == 3 }, "3")
	s.mode("web", "Serve")
	c.allServed("Knative: autoscaling with the statistics of :9090")
	s.atZero("web")
}

func TestContainerConcurrencyAppliesToEachPod(t *testing.T) {
	serving(t)
	t.Parallel()
	s := newSpace(t, "concurrency")
	host := s.deploy(kservice{name: "web", annotations: always(`autoscaling.knative.dev/max-scale: "3"`), spec: []string{"containerConcurrency: 2"}})
	c := newClients(s, ingress)
	for i := range 8 {
		c.addClient(fmt.Sprint("slow", i), true, func(v *ledger.Client) {
			v.Host, v.Requests = host, []ledger.Request{ledger.Get("/slow?ms=300", 5)}
		})
	}
	s.scaled("web", func(n int) bool { return n == 3 }, "3")
	pods := s.ready("serving.knative.dev/service=web", 3)
	time.Sleep(3 * time.Second)
	for _, pod := range pods {
		_, text := ask("GET", "http://"+pod.text("status", "podIP")+":8080/max")
		var ledger struct{ Max, Ended int }
		if err := json.Unmarshal([]byte(text), &ledger); err != nil || ledger.Max > 2 || ledger.Ended == 0 {
			t.Errorf("%s: got request counts %s in the app, want at least 1 request and at most 2 concurrent requests", pod.name(), text)
		}
	}
	c.allServed("Knative: containerConcurrency 2 with the activator")
}

func TestRevisionTimeoutsApply(t *testing.T) {
	serving(t)
	t.Parallel()
	s := newSpace(t, "timeouts")
	host := s.deploy(kservice{name: "web", annotations: always(), spec: []string{"timeoutSeconds: 8", "responseStartTimeoutSeconds: 3"}})
	for path, want := range map[string]int{"/slow?ms=1000": 200, "/slow?ms=6000": 504, "/sse?n=3&ms=2000": 200} {
		if status, body := through(host, path); status != want {
			t.Errorf("%s: got %d %q, want %d", path, status, body, want)
		}
	}
	// The complete response takes longer than the timeout of the Revision. The client must be
	// able to detect that the response is truncated.
	pod := s.ready("serving.knative.dev/service=web", 1)[0]
	if status, body := ask("GET", "http://"+pod.text("status", "podIP")+":8012/sse?n=30&ms=500"); status != 0 {
		t.Errorf("response of 15 s: got %d and %d bytes, want a detectable truncation after 8 s", status, len(body))
	}
	// A proxy between the client and the sidecar can change the response. For example, the
	// activator of v0.51.0 completes a truncated response as if it were whole. Therefore, the
	// test logs the responses through both paths and does not compare them.
	straight := s.deploy(kservice{name: "direct", annotations: always(direct...), spec: []string{"timeoutSeconds: 8"}})
	s.mode("direct", "Serve")
	for how, h := range map[string]string{"activator and ingress": host, "the ingress": straight} {
		status, body := through(h, "/sse?n=30&ms=500")
		t.Logf("through %s: %d, %d bytes: %.30q", how, status, len(body), body)
	}
}

func TestRevisionReadinessIncludesAllContainers(t *testing.T) {
	serving(t)
	t.Parallel()
	s := newSpace(t, "containers")
	k := kservice{name: "web", annotations: always(), others: `{name: helper, image: ` + appImage + `, args: ["-port", "8091", "-delay-listen", "4s"], ` +
		`readinessProbe: {httpGet: {path: /ready, port: 8091}}, resources: {requests: {cpu: 10m, memory: 16Mi}}}`}
	host := s.deploy(k)
	pod := s.ready("serving.knative.dev/service=web", 1)[0]
	if status, body := through(host, "/echo"); status != 200 {
		t.Errorf("got %d %q, want 200", status, body)
	}
	ask("POST", "http://"+pod.text("status", "podIP")+":8091/ready?status=503")
	eventually(t, "the pod is not ready because of its second container", func() error {
		o, err := s.one("pods", pod.name())
		if err == nil && o.condition("Ready") {
			err = fmt.Errorf("the pod is ready")
		}
		return err
	})
}

func TestRevisionSupportsEachProtocol(t *testing.T) {
	serving(t)
	t.Parallel()
	s := newSpace(t, "protocols")
	one := s.deploy(kservice{name: "one", annotations: always()})
	two := s.deploy(kservice{name: "two", annotations: always(), port: "h2c"})
	c := newClients(s, ingress)
	c.host = one
	c.addClient("one", false, func(v *ledger.Client) {
		v.Host, v.Requests = one, []ledger.Request{ledger.Get("/bytes/3000", 3000), ledger.Post("/sink", 10000).InChunks()}
	})
	c.addClient("two", false, func(v *ledger.Client) {
		v.Host, v.Requests = two, []ledger.Request{ledger.Get("/bytes/3000", 3000).OverH2(), ledger.Post("/sink", 10000).OverH2()}
	})
	c.addClient("grpc", false, func(v *ledger.Client) { speakGRPC(v); v.Host = two })
	c.streams()
	time.Sleep(8 * time.Second)
	c.allServed("Knative: HTTP/1.1, h2c, gRPC, WebSocket, server-sent events")
}

func TestKnativeGRPCImageResponds(t *testing.T) {
	serving(t)
	t.Parallel()
	s := newSpace(t, "grpc")
	host := s.deploy(kservice{name: "ping", image: grpcPing, port: "h2c", annotations: always()})
	var speaks http.Protocols
	speaks.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &speaks}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The body is a gRPC message of six bytes with the text "ping" in field 1.
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+ingress+"/ping.PingService/Ping", strings.NewReader("\x00\x00\x00\x00\x06\x0a\x04ping"))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	a, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil || !bytes.Contains(body, []byte("ping")) || a.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("got %q, %v and trailers %v, want ping and Grpc-Status 0", body, err, a.Trailer)
	}
}

func TestWebSocketReceivesCloseOfApp(t *testing.T) {
	serving(t)
	t.Parallel()
	s := newSpace(t, "websocket")
	host := s.deploy(kservice{name: "ws", image: wsserver, annotations: always(direct...), spec: []string{"timeoutSeconds: 60"}})
	s.mode("ws", "Serve")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+ingress+"/", &websocket.DialOptions{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	say := func() error {
		if err := ws.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
			return err
		}
		_, heard, err := ws.Read(ctx)
		if err == nil && !bytes.Contains(heard, []byte("hello")) {
			err = fmt.Errorf("got %q, want hello", heard)
		}
		return err
	}
	if err := say(); err != nil {
		t.Fatal(err)
	}
	s.kubectl("delete", "pod", s.ready("serving.knative.dev/service=ws", 1)[0].name(), "--wait=false")
	messages := 0
	for err = say(); err == nil; err = say() {
		messages++
		time.Sleep(200 * time.Millisecond)
	}
	t.Logf("got %d messages after the deletion, then %v", messages, err)
	if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure {
		t.Errorf("got close code %d (%v) after %d messages, want 1000 from the app", code, err, messages)
	}
	if messages < 10 {
		t.Errorf("got %d messages after the deletion, want at least 10", messages)
	}
}

func TestTrafficTagHasAddress(t *testing.T) {
	serving(t)
	t.Parallel()
	s := newSpace(t, "tags")
	k := kservice{name: "web", annotations: always(), traffic: "[{latestRevision: true, percent: 100}, {latestRevision: true, tag: next, percent: 0}]"}
	host := s.deploy(k)
	for _, h := range []string{host, "next-" + host} {
		if status, body := through(h, "/echo"); status != 200 {
			t.Errorf("%s: got %d %q, want 200", h, status, body)
		}
	}
}

func TestRollOutsLoseNoRequest(t *testing.T) {
	serving(t)
	s := newSpace(t, "switch")
	start := func() *clients {
		c := newClients(s, ingress)
		for i, k := range []kservice{{name: "direct", annotations: always(direct...)}, {name: "activated", annotations: always(`autoscaling.knative.dev/target-burst-capacity: "-1"`)}} {
			host := s.deployed(k.name)
			c.addClient(fmt.Sprint("kept", i), false, func(v *ledger.Client) {
				v.Host, v.Requests = host, []ledger.Request{ledger.Get("/bytes/3000", 3000), ledger.Get("/slow?ms=50", 5)}
			})
			c.addClient(fmt.Sprint("fresh", i), true, func(v *ledger.Client) { v.Host, v.Requests = host, []ledger.Request{ledger.Post("/sink", 1000)} })
		}
		return c
	}
	for _, k := range []kservice{{name: "direct", annotations: always(direct...)}, {name: "activated", annotations: always(`autoscaling.knative.dev/target-burst-capacity: "-1"`)}} {
		s.deploy(k)
	}
	s.mode("direct", "Serve")
	c := start()
	time.Sleep(time.Second)
	for _, k := range []kservice{{name: "direct", annotations: always(append(direct, `test: "2"`)...)}, {name: "activated", annotations: always(`autoscaling.knative.dev/target-burst-capacity: "-1"`, `test: "2"`)}} {
		s.deploy(k)
	}
	time.Sleep(2 * time.Second)
	c.allServed("Knative: new Revisions of two Services")

	// The image of the queue-proxy changes to Knative's image and back. Each change replaces
	// the pods of all Revisions.
	c = start()
	for _, image := range []string{knativeQueue, sidecarImage} {
		if err := setQueueImage(image); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all pods have image "+image+" and old pods are deleted", func() error {
			pods, err := it.api.list("/api/v1/namespaces/" + s.name + "/pods")
			for _, p := range pods {
				if got := p.spec(sidecarName).text("image"); got != image || !p.condition("Ready") {
					return fmt.Errorf("%s: got image %s, ready: %v, deleted: %v", p.name(), got, p.condition("Ready"), p.ending())
				}
			}
			return err
		})
	}
	time.Sleep(2 * time.Second)
	// Knative's queue-proxy has no log of all requests, so the logs are not compared.
	entries := c.leave()
	row := &result{scenario: "Knative: change of the image to Knative's and back"}
	for _, e := range entries {
		row.add(e.Verdict, e.Word)
	}
	results.Lock()
	results.all = append(results.all, row)
	results.Unlock()
	t.Logf("%s: %d requests, application %d, %v", row.scenario, row.sent(), row.count[ledger.FromApp], row.words)
	if row.count[ledger.FromApp] != row.sent() {
		t.Errorf("got responses from the application for %d of %d requests, want all: %v", row.count[ledger.FromApp], row.sent(), row.words)
	}
}

func TestInjectorSkipsKnativePods(t *testing.T) {
	serving(t)
	webhook(t)
	t.Parallel()
	s := newSpace(t, "alone", wanted)
	host := s.deploy(kservice{name: "web", annotations: always()})
	if status, body := through(host, "/echo"); status != 200 {
		t.Errorf("got %d %q, want 200", status, body)
	}
	pod := s.ready("serving.knative.dev/service=web", 1)[0]
	if got := len(pod.each("spec", "containers")); got != 2 {
		t.Errorf("got %d containers, want 2", got)
	}
	if status := pod.text("metadata", "annotations", "queue-proxy.dev/status"); status != "" {
		t.Errorf("got annotation queue-proxy.dev/status %q, want none", status)
	}
}

func TestInternalTLSReachesTheSidecar(t *testing.T) {
	manifest, err := servingManifest()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(manifest, "system-internal-tls") {
		t.Skipf("%s does not support system-internal-tls", *release)
	}
	serving(t)
	if err := patchConfig("network", `{"system-internal-tls":"Enabled"}`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = patchConfig("network", `{"system-internal-tls":"Disabled"}`)
		_, _ = run(nil, "kubectl", "-n", "knative-serving", "rollout", "restart", "deployment/activator")
		_ = it.rollouts("activator")
	})
	// Restart the activator, because it reads the setting only at startup.
	kubectl(t, "-n", "knative-serving", "rollout", "restart", "deployment/activator")
	if err := it.rollouts("activator"); err != nil {
		t.Fatal(err)
	}
	s := newSpace(t, "internal-tls")
	c := newClients(s, ingress)
	for _, k := range []kservice{{name: "direct", annotations: always(direct...)}, {name: "activated", annotations: always(`autoscaling.knative.dev/target-burst-capacity: "-1"`)}} {
		host := s.deploy(k)
		c.addClient(k.name, true, func(v *ledger.Client) {
			v.Host, v.Requests = host, []ledger.Request{ledger.Get("/bytes/3000", 3000), ledger.Post("/sink", 1000)}
		})
	}
	// With internal TLS, earlier releases keep the activator in the path of all Revisions, so
	// the direct path is checked only for the newest release.
	if *release == newestRelease {
		s.mode("direct", "Serve")
	}
	pod := s.ready("serving.knative.dev/service=direct", 1)[0]
	eventually(t, "the sidecar serves TLS", func() error {
		if status, body := askOver(overTLS(), "GET", "https://"+pod.text("status", "podIP")+":8112/echo"); status != 200 {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	s.kubectl("delete", "pod", pod.name(), "--wait=false")
	s.awaitDeleted(pod.name())
	c.allServed("Knative: internal TLS, a pod is deleted")
	if secure := strings.Count(strings.Join(s.pod.lines(sidecarName), "\n"), `"protocol"`); secure == 0 {
		t.Error("no lines in the request log")
	}
}
