package knative_test

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/knative"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// fields is a Getter for fields that net/http has parsed.
type fields http.Header

func (f fields) Header(name string) string { return http.Header(f).Get(name) }

// read returns a Getter for field lines.
func read(t testing.TB, lines ...string) observation.Getter {
	t.Helper()
	text := "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Join(append(lines, "", ""), "\r\n")
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	harness.NoError(t, err, lines)
	return fields(r.Header)
}

// A kindTest contains the fields of a request and the expected kind.
type kindTest struct {
	lines []string
	want  observation.Kind
}

// Abbreviations for kindTests.
const (
	queue      = observation.QueueProbe
	network    = observation.NetworkProbe
	unknown    = observation.UnknownProbe
	kubelet    = observation.KubeletRequest
	traffic    = observation.Traffic
	kubeAgent  = "User-Agent: kube-probe/1.31"
	activator  = "User-Agent: Knative-Activator-Probe"
	autoscaler = "User-Agent: Knative-Autoscaling-Probe"
	ingress    = "User-Agent: Knative-Ingress-Probe"
	curl       = "User-Agent: curl/8"
	asksQueue  = "K-Network-Probe: queue"
	asksRoute  = "K-Network-Probe: probe"
	hash       = "K-Network-Hash: h"
)

// kindTests contains the rows of docs/promises.md section 1. For combinations of fields, it contains
// the behavior of Knative's queue-proxy, unless the promises specify another behavior.
var kindTests = []kindTest{
	// Row 1: the queue probe, with any user agent.
	{[]string{kubeAgent, asksQueue}, queue},
	{[]string{"User-Agent: kube-probe/", asksQueue}, queue},
	{[]string{"User-Agent: kube-probe", asksQueue}, queue},
	{[]string{"User-Agent: Kube-Probe/1.31", asksQueue}, queue},
	{[]string{"User-Agent:   kube-probe/1.31", asksQueue}, queue},
	{[]string{kubeAgent, "K-Network-Probe:  queue  "}, queue},
	{[]string{kubeAgent, "K-Network-Probe:\tqueue\t"}, queue},
	{[]string{kubeAgent, asksQueue, "K-Network-Probe: x"}, queue},
	{[]string{kubeAgent, curl, asksQueue}, queue},
	{[]string{curl, kubeAgent, asksQueue}, queue},
	{[]string{"uSeR-aGeNt: kube-probe/1.31", "k-NETWORK-probe: queue"}, queue},
	{[]string{activator, asksQueue}, queue},
	{[]string{activator + "/9", asksQueue}, queue},
	{[]string{autoscaler, asksQueue}, queue},
	{[]string{ingress, asksQueue}, queue},
	{[]string{"User-Agent: Knative-Queue-Proxy-Probe", asksQueue}, queue},
	{[]string{"User-Agent: Envoy/HC", asksQueue, "X-Istio-Probe: 1"}, queue},
	{[]string{curl, asksQueue}, queue},
	{[]string{asksQueue}, queue},
	{[]string{asksQueue, hash}, queue},
	{[]string{asksQueue, "K-Kubelet-Probe: x"}, queue},

	// Row 2: the network probe, with any user agent. The hash does not affect the kind.
	{[]string{ingress, asksRoute, "K-Network-Hash: override"}, network},
	{[]string{ingress, asksRoute}, network},
	{[]string{ingress, asksRoute, "K-Network-Hash:"}, network},
	{[]string{asksRoute, hash}, network},
	{[]string{curl, asksRoute, hash}, network},
	{[]string{curl, asksRoute, "K-Network-Hash: a", "K-Network-Hash: b"}, network},
	{[]string{asksRoute, "K-Network-Hash:", "K-Network-Hash: b"}, network},
	{[]string{asksRoute, "K-Network-Hash: " + strings.Repeat("h", 70_000)}, network},
	{[]string{asksRoute, "K-Network-Hash: a\tb\xff\xfe"}, network},
	{[]string{kubeAgent, asksRoute, "K-Network-Hash: abc"}, network},
	{[]string{activator, asksRoute, hash}, network},
	{[]string{autoscaler, asksRoute, hash}, network},
	{[]string{asksRoute, hash, "K-Kubelet-Probe: x"}, network},

	// Row 3: any other value of the probe field, with any user agent.
	{[]string{kubeAgent, "K-Network-Probe: Queue"}, unknown},
	{[]string{kubeAgent, "K-Network-Probe: QUEUE"}, unknown},
	{[]string{kubeAgent, "K-Network-Probe: queue, queue"}, unknown},
	{[]string{kubeAgent, "K-Network-Probe: queue;"}, unknown},
	{[]string{kubeAgent, `K-Network-Probe: "queue"`}, unknown},
	{[]string{kubeAgent, "K-Network-Probe: queue\u00a0"}, unknown},
	{[]string{kubeAgent, "K-Network-Probe: <script>alert(1)</script>"}, unknown},
	{[]string{kubeAgent, "K-Network-Probe: \xe9"}, unknown},
	{[]string{kubeAgent, "K-Network-Probe: x", asksQueue}, unknown},
	{[]string{activator, "K-Network-Probe: activator"}, unknown},
	{[]string{autoscaler, "K-Network-Probe: activator"}, unknown},
	{[]string{"K-Network-Probe: Probe", hash}, unknown},
	{[]string{"K-Network-Probe: probes", hash}, unknown},
	{[]string{curl, "K-Network-Probe: activator"}, unknown},
	{[]string{curl, "K-Network-Probe: x", "K-Kubelet-Probe: x"}, unknown},

	// Row 4: Knative's user agents without a probe field.
	{[]string{activator}, unknown},
	{[]string{activator + "/9"}, unknown},
	{[]string{activator + "s"}, unknown},
	{[]string{autoscaler}, unknown},
	{[]string{activator, "K-Network-Probe:"}, unknown},
	{[]string{activator, "K-Network-Probe:", asksQueue}, unknown},
	{[]string{activator, "K-Kubelet-Probe: x"}, unknown},
	{[]string{activator, curl}, unknown},
	{[]string{"User-Agent: \tKnative-Autoscaling-Probe"}, unknown},

	// Row 5: the kubelet, or a client that imitates it.
	{[]string{kubeAgent}, kubelet},
	{[]string{"User-Agent: kube-probe/"}, kubelet},
	{[]string{"User-Agent:  kube-probe/1.31"}, kubelet},
	{[]string{kubeAgent, "K-Network-Probe:"}, kubelet},
	{[]string{kubeAgent, "K-Network-Probe: \t"}, kubelet},
	{[]string{kubeAgent, "K-Network-Probe:", asksQueue}, kubelet},
	{[]string{kubeAgent, hash}, kubelet},
	{[]string{kubeAgent, curl}, kubelet},
	{[]string{curl, "K-Kubelet-Probe: x"}, kubelet},
	{[]string{"k-kubelet-probe: 0"}, kubelet},

	// Row 6: all other requests.
	{nil, traffic},
	{[]string{curl}, traffic},
	{[]string{curl, hash}, traffic},
	{[]string{curl, kubeAgent}, traffic},
	{[]string{curl, activator}, traffic},
	{[]string{ingress}, traffic},
	{[]string{"User-Agent: Knative-Queue-Proxy-Probe"}, traffic},
	{[]string{"User-Agent: kube-probe"}, traffic},
	{[]string{"User-Agent: Kube-Probe/1.31"}, traffic},
	{[]string{"User-Agent: knative-activator-probe"}, traffic},
	{[]string{"User-Agent: my kube-probe/1.31"}, traffic},
	{[]string{"K-Network-Probe:"}, traffic},
	{[]string{"K-Network-Probe:", asksQueue}, traffic},
	{[]string{"K-Kubelet-Probe:"}, traffic},
	{[]string{"K-Kubelet-Probe:  ", "K-Kubelet-Probe: x"}, traffic},
	{[]string{"X-Istio-Probe: queue"}, traffic},
	{[]string{"K_Network_Probe: queue"}, traffic},
}

func TestKindOfUsesFirstMatch(t *testing.T) {
	for _, c := range kindTests {
		harness.Equal(t, knative.KindOf(read(t, c.lines...)), c.want, c.lines)
	}
}

func TestSidecarAnswersKnativeProbes(t *testing.T) {
	for _, c := range []struct {
		kind observation.Kind
		want bool
		name string
	}{
		{observation.Traffic, false, "traffic"},
		{observation.QueueProbe, true, "queue probe"},
		{observation.NetworkProbe, true, "network probe"},
		{observation.UnknownProbe, true, "unknown probe"},
		{observation.KubeletRequest, false, "kubelet probe"},
	} {
		if got := c.kind.Answered(); got != c.want {
			t.Errorf("%v: got answered %t, want %t", c.kind, got, c.want)
		}
		harness.Equal(t, c.kind.String(), c.name, "kind", c.kind)
	}
}

// row is a row of docs/promises.md section 1.
type row struct {
	kind observation.Kind
	is   func(probe, agent, kubelet string) bool
}

var table = []row{
	{observation.QueueProbe, func(probe, _, _ string) bool { return probe == "queue" }},
	{observation.NetworkProbe, func(probe, _, _ string) bool { return probe == "probe" }},
	{observation.UnknownProbe, func(probe, _, _ string) bool { return probe != "" }},
	{observation.UnknownProbe, func(probe, agent, _ string) bool {
		return probe == "" && (starts(agent, "Knative-Activator-Probe") || starts(agent, "Knative-Autoscaling-Probe"))
	}},
	{observation.KubeletRequest, func(_, agent, kubelet string) bool { return starts(agent, "kube-probe/") || kubelet != "" }},
	{observation.Traffic, func(_, _, _ string) bool { return true }},
}

func starts(s, prefix string) bool { return len(s) >= len(prefix) && s[:len(prefix)] == prefix }

// three is a Getter for the three fields that decide the kind.
type three struct{ probe, agent, kubelet string }

func (h three) Header(name string) string {
	switch name {
	case "K-Network-Probe":
		return h.probe
	case "User-Agent":
		return h.agent
	case "K-Kubelet-Probe":
		return h.kubelet
	}
	return "asked for " + name
}

func FuzzKindOf(f *testing.F) {
	words := []string{"", "queue", "probe", "Queue", "queue ", "activator", "\xe9"}
	agents := []string{"", "curl/8", "kube-probe/", "kube-probe/1.31", "kube-probe", "Knative-Activator-Probe", "Knative-Autoscaling-Probe/9", "Knative-Ingress-Probe"}
	for _, word := range words {
		for _, agent := range agents {
			f.Add(word, agent, "")
			f.Add(word, agent, "x")
		}
	}
	f.Fuzz(func(t *testing.T, probe, agent, kubelet string) {
		want := observation.Traffic
		for _, r := range table {
			if r.is(probe, agent, kubelet) {
				want = r.kind
				break
			}
		}
		harness.Equal(t, knative.KindOf(three{probe, agent, kubelet}), want, "probe", probe, "agent", agent, "kubelet", kubelet)
	})
}

func TestKindOfDoesNotAllocate(t *testing.T) {
	h := fields{"User-Agent": {"curl/8"}, "K-Network-Hash": {"h"}}
	var g observation.Getter = h
	harness.Equal(t, testing.AllocsPerRun(100, func() { knative.KindOf(g) }), 0, "allocations")
}
