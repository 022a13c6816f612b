//go:build cluster && clusterfull

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// scaled is a Deployment that one of the methods in deploy/autoscaling scales, with its
// results.
type scaled struct {
	way, folder string
	s           *space
	clients     *clients
	cells       []string // cells of the result table
}

// scrapeBound is the maximum time until a change in the metrics has an effect. The metrics are
// averages over one minute, and scrapers and HPAs poll every 15 s.
const scrapeBound = 5 * time.Minute

// wantedPods is lower than the number of pods for four concurrent requests with a target of 0.7 for
// each pod, because the clients pause between requests.
const wantedPods = 4

func TestFullEachAutoscalerUsesSidecarMetrics(t *testing.T) {
	webhook(t)
	startPrometheus(t)
	startAdapter(t)
	startKEDA(t)
	all := []*scaled{
		{way: "KEDA, metrics-api", folder: "keda-metrics-api"},
		{way: "KEDA, Prometheus", folder: "keda-prometheus"},
		{way: "HPA, Prometheus adapter", folder: "hpa-prometheus-adapter"},
	}
	for _, v := range all {
		v.deploy(t)
	}
	for _, v := range all {
		v.underLoad()
	}
	up := whenAll(t, all, "up", func(n int) bool { return n >= wantedPods })
	settle(t, all)
	for _, v := range all {
		v.cells = append(v.cells, fmt.Sprintf("%d after %.0f s, then %d", wantedPods, up[v].Seconds(), v.replicas()))
	}
	noFallback(t, all)
	watch(t, all, "the scrape of one pod of each Deployment is refused", 45*time.Second, 2, func() { refuse(t, all, 1) })
	watch(t, all, "all scrapes are refused", 100*time.Second, wantedPods, func() { refuse(t, all, 10) })
	accept(t, all)
	settle(t, all)
	watch(t, all, "Prometheus is stopped", 100*time.Second, wantedPods, func() { it.stop("prometheus") })
	if err := it.start("prometheus"); err != nil {
		t.Fatal(err)
	}
	prometheusAnswers(t)
	for _, v := range all {
		v.clients.leave()
	}
	down := whenAll(t, all, "down", func(n int) bool { return n == 1 })
	for _, v := range all {
		v.cells = append(v.cells, fmt.Sprintf("1 after %.0f s", down[v].Seconds()))
	}
	scalersTable(t, all)
}

// deploy creates the Deployment named model and the objects in deploy/autoscaling that scale
// it.
func (v *scaled) deploy(t *testing.T) {
	t.Helper()
	v.s = newSpace(t, v.folder, wanted)
	v.s.run(app{name: "model", replicas: 1, annotations: map[string]string{"queue-proxy.dev/concurrency": "1", "queue-proxy.dev/queue-depth": "20"}})
	files, err := filepath.Glob(autoscaling + "/" + v.folder + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: parse manifests: %v", v.folder, err)
	}
	for _, f := range files {
		switch filepath.Base(f) {
		case "podmonitor.yaml", "adapter-values.yaml":
			continue // skip files that only Prometheus or the adapter reads
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		// Use the namespace of the test and shorter periods, because the test has no model to
		// load.
		v.s.apply(strings.NewReplacer("model-concurrency.shop.svc:", "model-concurrency."+v.s.name+".svc:", `namespace="shop"`, `namespace="`+v.s.name+`"`,
			"stabilizationWindowSeconds: 300", "stabilizationWindowSeconds: 45",
			"value: 1\n              periodSeconds: 60", "value: 1\n              periodSeconds: 15",
			"value: 1\n          periodSeconds: 60", "value: 1\n          periodSeconds: 15").Replace(string(text)))
	}
}

// underLoad starts four clients that send requests of 500 ms with short pauses.
func (v *scaled) underLoad() {
	o, err := v.s.one("services", "model")
	if err != nil {
		v.s.t.Fatal(err)
	}
	v.clients = newClients(v.s, o.text("spec", "clusterIP")+":80")
	for i := range 4 {
		v.clients.addClient(fmt.Sprint("slow", i), true, func(c *ledger.Client) { c.Requests = []ledger.Request{ledger.Get("/slow?ms=500", 5)} })
	}
}

func (v *scaled) replicas() int {
	v.s.t.Helper()
	o, err := v.s.one("apps/v1/deployments", "model")
	if err != nil {
		v.s.t.Fatal(err)
	}
	return o.number("spec", "replicas")
}

// whenAll waits until the number of pods of each Deployment satisfies a condition. It returns
// the time at which each Deployment first met the condition.
func whenAll(t *testing.T, all []*scaled, where string, is func(n int) bool) map[*scaled]time.Duration {
	t.Helper()
	begun, when := time.Now(), map[*scaled]time.Duration{}
	within(t, 2*scrapeBound, "all scale "+where, func() error {
		var missing error
		for _, v := range all {
			if when[v] > 0 {
				continue
			}
			if n := v.replicas(); is(n) {
				when[v] = time.Since(begun)
			} else {
				missing = fmt.Errorf("%s has %d pods", v.way, n)
			}
		}
		return missing
	})
	return when
}

// ready waits until all replicas are ready.
func (v *scaled) ready() {
	v.s.t.Helper()
	eventually(v.s.t, v.way+": all pods are ready", func() error {
		o, err := v.s.one("apps/v1/deployments", "model")
		if err == nil && o.number("status", "readyReplicas") != o.number("spec", "replicas") {
			err = fmt.Errorf("got %d of %d ready replicas", o.number("status", "readyReplicas"), o.number("spec", "replicas"))
		}
		return err
	})
}

// watch calls breaks, which causes a failure, and observes the number of pods for the
// duration bound. While the clients send requests, the number of pods must be at least
// minimum.
func watch(t *testing.T, all []*scaled, what string, bound time.Duration, minimum int, breaks func()) {
	t.Helper()
	before := map[*scaled]int{}
	for _, v := range all {
		before[v] = v.replicas()
	}
	breaks()
	low, high := map[*scaled]int{}, map[*scaled]int{}
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(time.Second) {
		for _, v := range all {
			n := v.replicas()
			if low[v] == 0 || n < low[v] {
				low[v] = n
			}
			high[v] = max(high[v], n)
		}
	}
	for _, v := range all {
		v.cells = append(v.cells, fmt.Sprintf("%d before, %d to %d", before[v], low[v], high[v]))
		t.Logf("%s: %s: %d pods before, then %d to %d", v.way, what, before[v], low[v], high[v])
		if low[v] < min(minimum, before[v]) {
			t.Errorf("%s: %s: got %d pods under load, want at least %d", v.way, what, low[v], min(minimum, before[v]))
		}
	}
}

// refuse rejects connections to the statistics port of n pods of each Deployment.
func refuse(t *testing.T, all []*scaled, n int) {
	t.Helper()
	v4 := strings.Fields("iptables -w -I INPUT -p tcp --dport 9090 -j REJECT --reject-with tcp-reset")
	for _, v := range all {
		pods, err := v.s.pods("app=model")
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods[:min(n, len(pods))] {
			if err := inNetworkOf(pod, v4...); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// accept removes the rules of refuse.
func accept(t *testing.T, all []*scaled) {
	t.Helper()
	for _, v := range all {
		pods, err := v.s.pods("app=model")
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods {
			if err := inNetworkOf(pod, "iptables", "-w", "-F", "INPUT"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// noFallback fails the test if KEDA uses its fallback for missing metrics.
func noFallback(t *testing.T, all []*scaled) {
	t.Helper()
	for _, v := range all {
		if !strings.HasPrefix(v.way, "KEDA") {
			continue
		}
		o, err := v.s.one("keda.sh/v1alpha1/scaledobjects", "model")
		if err != nil || o.condition("Fallback") || !o.condition("Ready") {
			t.Fatalf("%s: got %v and conditions %v, want Ready without Fallback", v.way, err, o.at("status", "conditions"))
		}
	}
}

// settle waits until the numbers of pods have not changed for 90 seconds. The metrics are
// averages over one minute, so the number of pods is too high at first.
func settle(t *testing.T, all []*scaled) {
	t.Helper()
	since, last := time.Now(), ""
	within(t, 3*scrapeBound, "the numbers of pods are stable", func() error {
		now := ""
		for _, v := range all {
			now += fmt.Sprintf("%s: %d; ", v.way, v.replicas())
		}
		if now != last {
			t.Log(now)
			since, last = time.Now(), now
		}
		if time.Since(since) < 90*time.Second {
			return errors.New(now)
		}
		return nil
	})
	for _, v := range all {
		v.ready()
	}
}

// scalersTable prints the results and, with -update, writes them to results.txt.
func scalersTable(t *testing.T, all []*scaled) {
	t.Helper()
	var b strings.Builder
	b.WriteString("| pods | under load | one scrape refused, 45 s | all refused, 100 s | Prometheus stopped, 100 s | without load |\n|---|---|---|---|---|---|\n")
	for _, v := range all {
		fmt.Fprintf(&b, "| %s | %s |\n", v.way, strings.Join(v.cells, " | "))
	}
	text := fmt.Sprintf("Kubernetes %s, KEDA %s, prometheus-adapter %s; %s.\n\n%s", it.version(), moduleVersion(t, "keda", "github.com/kedacore/keda/v2"),
		moduleVersion(t, "prometheus-adapter", "sigs.k8s.io/prometheus-adapter"), machineLine(), b.String())
	fmt.Printf("\n%s\n", text)
	if *update && !t.Failed() {
		if err := harness.WriteSection("results.txt", "autoscalers", "\n"+text+"\n"); err != nil {
			t.Error(err)
		}
	}
}
