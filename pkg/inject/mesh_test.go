package inject

import (
	"fmt"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMeshProxyIsNotSelected(t *testing.T) {
	const proxy = `{"name":"linkerd-proxy","image":"proxy","ports":[{"name":"linkerd-proxy","containerPort":4143},{"name":"linkerd-admin","containerPort":4191}]}`
	const web = `{"name":"web","image":"web","ports":[{"containerPort":8080}]}`
	for _, c := range []struct {
		fact, containers string
		opts             Options
		verdict, app     string
	}{
		{"before the application", proxy + "," + web, nil, "injected", "web"},
		{"after the application", web + "," + proxy, nil, "injected", "web"},
		{"without an application", proxy, nil, "skipped no-port", ""},
		{"selected with options", proxy + "," + web, Options{"container": "linkerd-proxy", "port": "4143"}, "injected", "linkerd-proxy"},
	} {
		out := Inject(parse(t, fmt.Sprintf(`{"spec":{"containers":[%s]}}`, c.containers)), c.opts)
		harness.Equal(t, verdictOf(out), c.verdict, c.fact, out.Text)
		harness.Equal(t, out.Container, c.app, c.fact)
	}
}

// A mesh redirects the connections to a pod to the mesh proxy, either before any container starts or
// after an init container. If the proxy is a regular container, it starts after all init containers.
// Until then, a probe of a native sidecar fails.
func TestNativeSidecarHasNoStartupProbeInMesh(t *testing.T) {
	const web = `{"name":"web","image":"web","ports":[{"containerPort":8080}]}`
	const proxy = `{"name":"%s","image":"proxy","ports":[{"containerPort":15090}]%s}`
	for _, c := range []struct {
		fact, spec string
		probed     bool
	}{
		{"no mesh", `"containers":[` + web + `]`, true},
		{"proxy of Linkerd next to the application", `"initContainers":[{"name":"linkerd-init","image":"init"}],"containers":[` + fmt.Sprintf(proxy, "linkerd-proxy", "") + `,` + web + `]`, false},
		{"proxy of Istio next to the application", `"containers":[` + web + `,` + fmt.Sprintf(proxy, "istio-proxy", "") + `]`, false},
		{"native proxy", `"initContainers":[` + fmt.Sprintf(proxy, "istio-proxy", `,"restartPolicy":"Always"`) + `],"containers":[` + web + `]`, true},
	} {
		pod := parse(t, `{"spec":{`+c.spec+`}}`)
		out := Inject(pod, Options{"mode": "native"})
		harness.Equal(t, verdictOf(out), "injected", c.fact, out.Text)
		sidecar := At(changed(t, pod, out.Changes), "spec", "initContainers", SidecarName)
		if got := At(sidecar, "startupProbe") != nil; sidecar == nil || got != c.probed {
			t.Errorf("%s: got a startup probe %v, want %v: %v", c.fact, got, c.probed, sidecar)
		}
	}
}
