//go:build cluster && clusterfull

package cluster

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/ledger"
)

var rounds = flag.Int("rounds", 20, "cold starts with each image")

// Settings of the comparison, which are the same for both images.
const (
	loadConnections = 50
	loadRequests    = 10000
	coldServices    = 4 // number of Services that start sequentially; the last one receives the load
)

// A contender is an image of the queue-proxy with its results.
type contender struct {
	name, image   string
	cold, ready   []time.Duration
	started, used []memory
	failed, sent  map[string]int
	how           map[string]string // description of the end of each stream
	own           map[string]bool   // the app ended the stream
}

func newContender(name, image string) *contender {
	return &contender{name: name, image: image, failed: map[string]int{}, sent: map[string]int{}, how: map[string]string{}, own: map[string]bool{}}
}

// alternate calls do n times for each contender. The order of the contenders alternates.
func alternate(n int, both [2]*contender, do func(round int, c *contender)) {
	for round := range n {
		for i := range both {
			do(round, both[(i+round)%2])
		}
	}
}

// use sets the image of the queue-proxy for all Revisions, and waits until all Deployments and
// pods of the namespace use it.
func (s *space) use(image string) {
	s.t.Helper()
	if err := setQueueImage(image); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "all pods of  "+s.name+" has "+image, func() error {
		deployments, err := it.api.list("/apis/apps/v1/namespaces/" + s.name + "/deployments")
		if err != nil {
			return err
		}
		for _, d := range deployments {
			for _, c := range d.each("spec", "template", "spec", "containers") {
				if c.text("name") == sidecarName && c.text("image") != image {
					return fmt.Errorf("%s: got image %s", d.name(), c.text("image"))
				}
			}
		}
		pods, err := it.api.list("/api/v1/namespaces/" + s.name + "/pods")
		for _, p := range pods {
			if got := p.spec(sidecarName).text("image"); got != image || !p.condition("Ready") {
				return fmt.Errorf("%s: got image %s, ready: %v, deleted: %v", p.name(), got, p.condition("Ready"), p.ending())
			}
		}
		return err
	})
}

func TestFullComparisonWithKnativeImage(t *testing.T) {
	serving(t)
	t.Cleanup(func() { _ = setQueueImage(sidecarImage) })
	both := [2]*contender{newContender("ours", sidecarImage), newContender("Knative's", knativeQueue)}
	before := loadAverage()
	t.Run("cold starts", func(t *testing.T) { coldStarts(t, both) })
	t.Run("roll-outs", func(t *testing.T) { rollOuts(t, both) })
	t.Run("streams", func(t *testing.T) { measureStreamEnds(t, both) })
	text := fmt.Sprintf("Kubernetes %s, Knative Serving %s, %d cold starts each, alternating. %s;\nload average %s before and %s after.\n\n%s",
		it.version(), moduleVersion(t, *release, "knative.dev/serving"), *rounds, machineLine(), before, loadAverage(), besideTable(both))
	fmt.Printf("\n%s\n", text)
	if *update && !t.Failed() {
		if err := harness.WriteSection("results.txt", "beside", "\n"+text+"\n"); err != nil {
			t.Error(err)
		}
	}
}

// coldStarts measures requests through the ingress and the activator to Services without pods,
// and the memory of the new sidecars. Knative needs 30 seconds to scale to zero, so several
// Services are started one after the other.
func coldStarts(t *testing.T, both [2]*contender) {
	s := newSpace(t, "beside-cold")
	hosts := map[string]string{}
	var names []string
	for i := range coldServices {
		name := fmt.Sprint("web", i)
		hosts[name] = s.deploy(kservice{name: name, annotations: []string{`autoscaling.knative.dev/window: "6s"`}})
		names = append(names, name)
	}
	times := s.watchPods()
	alternate((*rounds+coldServices-1)/coldServices, both, func(_ int, c *contender) {
		s.nothingRuns(names...)
		s.use(c.image)
		for i, name := range names {
			s.mode(name, "Proxy")
			begun := time.Now()
			status, body := through(hosts[name], "/echo")
			took := time.Since(begun)
			if status != 200 {
				t.Fatalf("%s: cold start: got %d %q, want 200", c.name, status, body)
			}
			pod := s.ready("serving.knative.dev/service="+name, 1)[0]
			if got := pod.spec(sidecarName).text("image"); got != c.image {
				t.Fatalf("got image %s, want %s", got, c.image)
			}
			c.cold, c.ready = append(c.cold, took), append(c.ready, times.took(t, pod.name()))
			c.started = append(c.started, s.memory(pod))
			if i == coldServices-1 {
				load(t, "http://"+pod.text("status", "podIP")+":8012/bytes/3000", loadConnections, loadRequests)
				c.used = append(c.used, s.memory(pod))
			}
			t.Logf("%s: %v, pod ready after %v, %.1f MiB", c.name, took.Round(time.Millisecond), c.ready[len(c.ready)-1].Round(time.Millisecond), c.started[len(c.started)-1].anonymous)
		}
	})
}

func (s *space) memory(pod object) memory {
	s.t.Helper()
	m, err := memoryOf(pod, sidecarName)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

// nothingRuns waits until the Knative Services are scaled to zero. It deletes the terminating
// pods and their containers.
func (s *space) nothingRuns(names ...string) {
	s.t.Helper()
	pods, err := it.api.list("/api/v1/namespaces/" + s.name + "/pods")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, name := range names {
		s.scaled(name, func(n int) bool { return n == 0 }, "zero")
	}
	s.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
	for _, name := range names {
		s.atZero(name)
	}
	eventually(s.t, "the containers are gone", func() error {
		for _, p := range pods {
			for _, c := range p.containers() {
				if group, err := groupOfContainer(c.text("containerID")); err == nil {
					return fmt.Errorf("cgroup %s still exists", group)
				}
			}
		}
		return nil
	})
}

// Descriptions of the events that rollOuts causes under traffic.
const (
	newRevision = "a new Revision"
	podsDeleted = "two pods are deleted, the second after the first has terminated or after one minute"
)

// rollOuts counts the requests without a response from the application during rollouts.
func rollOuts(t *testing.T, both [2]*contender) {
	s := newSpace(t, "beside-roll")
	revision := func(n int) (one, two kservice) {
		more := append([]string{`autoscaling.knative.dev/min-scale: "2"`, fmt.Sprintf(`test: "%d"`, n)}, direct...)
		return kservice{name: "one", annotations: more}, kservice{name: "two", annotations: more, port: "h2c"}
	}
	n := 0
	deploy := func() (hosts [2]string) {
		n++
		one, two := revision(n)
		s.apply(one.manifest())
		s.apply(two.manifest())
		return [2]string{s.deployed("one"), s.deployed("two")}
	}
	hosts := deploy()
	alternate(2, both, func(_ int, c *contender) {
		s.use(c.image)
		s.servesDirectly("one")
		s.servesDirectly("two")
		s.underTraffic(c, newRevision, hosts, func() { deploy() })
		s.underTraffic(c, podsDeleted, hosts, func() {
			one, two := s.newest("one"), s.newest("two")
			for i := range one {
				s.kubectl("delete", "pod", one[i], two[i], "--wait=false")
				// With HTTP/2 streams, pods with Knative's image may terminate only when the
				// grace period of five minutes ends. After one minute, the new pods serve all
				// requests.
				_, _ = run(nil, "kubectl", "-n", s.name, "wait", "--for=delete", "pod/"+one[i], "pod/"+two[i], "--timeout=60s")
				if c.image == sidecarImage {
					s.awaitDeleted(one[i])
					s.awaitDeleted(two[i])
				}
			}
		})
	})
	for _, c := range both {
		for what, sent := range c.sent {
			if sent < 100 {
				t.Errorf("%s, %s: got %d requests, want several hundred", c.name, what, sent)
			}
			if failed := c.failed[what]; c.image == sidecarImage && failed > 0 {
				t.Errorf("%s, %s: got %d of %d requests without a response from the application, want 0", c.name, what, failed, sent)
			}
		}
	}
}

// servesDirectly waits until requests to the ready Revision of a Knative Service go directly to
// its pods. Older Revisions without pods are ignored.
func (s *space) servesDirectly(name string) {
	s.t.Helper()
	eventually(s.t, name+" is in mode Serve", func() error {
		o, err := s.one("serving.knative.dev/v1/services", name)
		if err != nil {
			return err
		}
		revision := o.text("status", "latestReadyRevisionName")
		o, err = s.one("networking.internal.knative.dev/v1alpha1/serverlessservices", revision)
		if got := o.text("spec", "mode"); err == nil && got != "Serve" {
			err = fmt.Errorf("%s is in %s", revision, got)
		}
		return err
	})
}

// newest returns the names of the pods that belong to the ready Revision of a Knative Service.
func (s *space) newest(name string) []string {
	s.t.Helper()
	o, err := s.one("serving.knative.dev/v1/services", name)
	if err != nil {
		s.t.Fatal(err)
	}
	var names []string
	for _, p := range s.ready("serving.knative.dev/revision="+o.text("status", "latestReadyRevisionName"), 2) {
		names = append(names, p.name())
	}
	return names
}

// underTraffic counts the results of requests during an event. The clients use HTTP/1.1 with
// reused and with new connections, POST, h2c, gRPC, WebSockets and event streams.
func (s *space) underTraffic(c *contender, what string, hosts [2]string, happens func()) {
	s.t.Helper()
	v := newClients(s, ingress)
	v.host = hosts[0]
	v.addClient("kept", false, func(v *ledger.Client) {
		v.Host, v.Requests = hosts[0], []ledger.Request{ledger.Get("/bytes/3000", 3000), ledger.Get("/slow?ms=50", 5)}
	})
	v.addClient("slow", false, func(v *ledger.Client) {
		v.Host, v.Requests = hosts[0], []ledger.Request{ledger.Get("/slow?ms=3000", 5)}
	})
	v.addClient("fresh", true, func(v *ledger.Client) {
		v.Host, v.Requests = hosts[0], []ledger.Request{ledger.Post("/sink", 10000), ledger.Get("/bytes/3000", 3000)}
	})
	v.addClient("h2c", false, func(v *ledger.Client) {
		v.Host, v.Requests = hosts[1], []ledger.Request{ledger.Get("/bytes/3000", 3000).OverH2(), ledger.Post("/sink", 10000).OverH2()}
	})
	v.addClient("grpc", false, func(v *ledger.Client) { speakGRPC(v); v.Host = hosts[1] })
	v.streams()
	time.Sleep(2 * time.Second) // send traffic before the event
	happens()
	time.Sleep(3 * time.Second) // send traffic to the new pods after the event
	for _, e := range v.leave() {
		c.sent[what]++
		if e.Verdict != ledger.FromApp {
			c.failed[what]++
		}
	}
	for _, r := range v.remarks {
		s.t.Logf("%s, %s: %s", c.name, what, r)
	}
}

// measureStreamEnds deletes pods that have one stream each, and records how each stream ends at
// the client. The application ends its streams on SIGTERM.
func measureStreamEnds(t *testing.T, both [2]*contender) {
	s := newSpace(t, "beside-streams")
	services := func(timeout int) []kservice {
		spec := []string{fmt.Sprintf("timeoutSeconds: %d", timeout)}
		app := []string{`args: ["-end-streams"]`, `readinessProbe: {httpGet: {path: /ready}}`}
		return []kservice{
			{name: fmt.Sprintf("ws-%d", timeout), image: wsserver, annotations: always(), spec: spec},
			{name: fmt.Sprintf("sse-%d", timeout), image: appImage, container: app, annotations: always(), spec: spec},
			{name: fmt.Sprintf("grpc-%d", timeout), image: appImage, container: app, port: "h2c", annotations: always(), spec: spec},
		}
	}
	for _, timeout := range timeouts {
		for _, k := range services(timeout) {
			s.deploy(k)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	alternate(1, both, func(_ int, c *contender) {
		s.use(c.image)
		streams := map[string]*stream{}
		for _, timeout := range timeouts {
			for i, k := range services(timeout) {
				pod := s.ready("serving.knative.dev/service="+k.name, 1)[0]
				port := map[bool]string{true: ":8013", false: ":8012"}[k.port == "h2c"]
				v := openStream(ctx, kinds[i], pod.text("status", "podIP")+port)
				if err := <-v.opened; err != nil {
					t.Fatalf("%s: %s: %v", c.name, k.name, err)
				}
				streams[streamKey(kinds[i], timeout)] = v
				v.delete()
				s.kubectl("delete", "pod", pod.name(), "--wait=false")
			}
		}
		for key, v := range streams {
			c.own[key], c.how[key] = v.result()
			t.Logf("%s: %s: %s", c.name, key, c.how[key])
			if c.image == sidecarImage && !c.own[key] {
				t.Errorf("%s: got end %q, want an end by the app", key, c.how[key])
			}
		}
	})
}

// timeouts lists the timeoutSeconds of the Revisions with streams. Knative uses these values as
// grace periods of the pods.
var timeouts = []int{60, 20}

// kinds lists the kinds of streams.
var kinds = []string{"WebSocket", "SSE", "gRPC"}

func streamKey(kind string, timeout int) string {
	return fmt.Sprintf("%s, `timeoutSeconds: %d`", kind, timeout)
}

// besideTable returns the results as a Markdown table.
func besideTable(both [2]*contender) string {
	var b strings.Builder
	b.WriteString("| | queue-proxy | Knative |\n|---|---|---|\n")
	row := func(what string, cell func(c *contender) string) {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", what, cell(both[0]), cell(both[1]))
	}
	row("cold start until the response, ms", func(c *contender) string { return spread(c.cold) })
	row("creation of the pod until Ready, ms", func(c *contender) string { return spread(c.ready) })
	anonymous := func(m memory) float64 { return m.anonymous }
	workingSet := func(m memory) float64 { return m.workingSet }
	row("memory after start, anonymous, MiB", func(c *contender) string { return mebibytes(c.started, anonymous) })
	row("memory after start, working set, MiB", func(c *contender) string { return mebibytes(c.started, workingSet) })
	after := fmt.Sprintf("memory after %d requests on %d connections, ", loadRequests, loadConnections)
	row(after+"anonymous, MiB", func(c *contender) string { return mebibytes(c.used, anonymous) })
	row(after+"working set, MiB", func(c *contender) string { return mebibytes(c.used, workingSet) })
	for _, what := range []string{newRevision, podsDeleted} {
		row(what+": requests without a response from the application", func(c *contender) string { return fmt.Sprintf("%d of %d", c.failed[what], c.sent[what]) })
	}
	for _, timeout := range timeouts {
		for _, kind := range kinds {
			key := streamKey(kind, timeout)
			row(key+": end of the stream", func(c *contender) string { return c.how[key] })
		}
	}
	return b.String()
}

// spread returns the median, the minimum and the maximum in milliseconds.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "" // omit the section of a part that did not run
	}
	sorted := slices.Sorted(slices.Values(all))
	return fmt.Sprintf("%d (%d to %d)", sorted[len(sorted)/2].Milliseconds(), sorted[0].Milliseconds(), sorted[len(sorted)-1].Milliseconds())
}

func mebibytes(all []memory, of func(memory) float64) string {
	if len(all) == 0 {
		return ""
	}
	var sorted []float64
	for _, m := range all {
		sorted = append(sorted, of(m))
	}
	slices.Sort(sorted)
	return fmt.Sprintf("%.1f (%.1f to %.1f)", sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1])
}
