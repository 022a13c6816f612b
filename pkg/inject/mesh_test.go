package inject

import (
	"encoding/json"
	"fmt"
	"testing"
)

func TestAContainerOfAMeshIsNoApp(t *testing.T) {
	const proxy = `{"name":"linkerd-proxy","image":"proxy","ports":[{"name":"linkerd-proxy","containerPort":4143},{"name":"linkerd-admin","containerPort":4191}]}`
	const web = `{"name":"web","image":"web","ports":[{"containerPort":8080}]}`
	for _, c := range []struct {
		fact, containers string
		said             Options
		verdict          Verdict
		reason, app      string
	}{
		{"before the app", proxy + "," + web, nil, Injected, "", "web"},
		{"behind the app", web + "," + proxy, nil, Injected, "", "web"},
		{"alone", proxy, nil, Skipped, NoPort, ""},
		{"named", proxy + "," + web, Options{"container": "linkerd-proxy", "port": "4143"}, Injected, "", "linkerd-proxy"},
	} {
		pod, err := Decode(json.RawMessage(fmt.Sprintf(`{"spec":{"containers":[%s]}}`, c.containers)))
		if err != nil {
			t.Fatal(err)
		}
		if out := Inject(pod, c.said); out.Verdict != c.verdict || out.Reason != c.reason || out.Container != c.app {
			t.Errorf("%s: got %s %s of %q (%s), want %s %s of %q", c.fact, out.Verdict, out.Reason, out.Container, out.Text, c.verdict, c.reason, c.app)
		}
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
		pod, err := Decode(json.RawMessage(`{"spec":{` + c.spec + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		out := Inject(pod, Options{"mode": "native"})
		if out.Verdict != Injected {
			t.Errorf("%s: got %s %s (%s), want it injected", c.fact, out.Verdict, out.Reason, out.Text)
			continue
		}
		object, err := Apply(pod, out.Changes)
		if err != nil {
			t.Fatal(err)
		}
		sidecar := at(object, "spec", "initContainers", sidecarName)
		if got := at(sidecar, "startupProbe") != nil; sidecar == nil || got != c.probed {
			t.Errorf("%s: got a startup probe: %v, want %v, of %v", c.fact, got, c.probed, sidecar)
		}
	}
}
