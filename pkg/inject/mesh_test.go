package inject

import (
	"fmt"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestAContainerOfAMeshIsNoApp(t *testing.T) {
	const proxy = `{"name":"linkerd-proxy","image":"proxy","ports":[{"name":"linkerd-proxy","containerPort":4143},{"name":"linkerd-admin","containerPort":4191}]}`
	const web = `{"name":"web","image":"web","ports":[{"containerPort":8080}]}`
	for _, c := range []struct {
		fact, containers string
		said             Options
		verdict, app     string
	}{
		{"before the app", proxy + "," + web, nil, "injected", "web"},
		{"behind the app", web + "," + proxy, nil, "injected", "web"},
		{"alone", proxy, nil, "skipped no-port", ""},
		{"named", proxy + "," + web, Options{"container": "linkerd-proxy", "port": "4143"}, "injected", "linkerd-proxy"},
	} {
		out := Inject(parse(t, fmt.Sprintf(`{"spec":{"containers":[%s]}}`, c.containers)), c.said)
		harness.Equal(t, verdictOf(out), c.verdict, c.fact, out.Text)
		harness.Equal(t, out.Container, c.app, c.fact)
	}
}

// A mesh sends what comes to the pod to its proxy, by rules that are there before any container
// or from an init container on. An ordinary container starts after all init containers: until
// then a probe of the kubelet's reaches nobody.
func TestANativeSidecarWaitsForNoProbeBeforeAMeshsProxyRuns(t *testing.T) {
	const web = `{"name":"web","image":"web","ports":[{"containerPort":8080}]}`
	const proxy = `{"name":"%s","image":"proxy","ports":[{"containerPort":15090}]%s}`
	for _, c := range []struct {
		fact, spec string
		probed     bool
	}{
		{"no mesh", `"containers":[` + web + `]`, true},
		{"Linkerd's proxy beside the app", `"initContainers":[{"name":"linkerd-init","image":"init"}],"containers":[` + fmt.Sprintf(proxy, "linkerd-proxy", "") + `,` + web + `]`, false},
		{"Istio's proxy beside the app", `"containers":[` + web + `,` + fmt.Sprintf(proxy, "istio-proxy", "") + `]`, false},
		{"a proxy that runs by then", `"initContainers":[` + fmt.Sprintf(proxy, "istio-proxy", `,"restartPolicy":"Always"`) + `],"containers":[` + web + `]`, true},
	} {
		pod := parse(t, `{"spec":{`+c.spec+`}}`)
		out := Inject(pod, Options{"mode": "native"})
		harness.Equal(t, verdictOf(out), "injected", c.fact, out.Text)
		sidecar := at(changed(t, pod, out.Changes), "spec", "initContainers", sidecarName)
		if got := at(sidecar, "startupProbe") != nil; sidecar == nil || got != c.probed {
			t.Errorf("%s: got a startup probe: %v, want %v, of %v", c.fact, got, c.probed, sidecar)
		}
	}
}
