package inject

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A Service with targetPort user-port reaches the second container. It must still do so
// after the first container's port moves to the sidecar.
func TestRenamedPortNameIsUniqueInPod(t *testing.T) {
	pod := parse(t, `{"metadata":{},"spec":{"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080}]},
		{"name":"other","ports":[{"name":"user-port","protocol":"TCP","containerPort":7000}]}]}}`)
	out := Inject(pod, Options{containerOption: "web"})
	harness.Equal(t, verdictOf(out), "injected", out.Text)
	harness.Equal(t, containerOfName(changed(t, pod, out.Changes), "user-port"), "other")
}

func TestSidecarPortsAvoidServiceTargets(t *testing.T) {
	pod := web(t, `,"ports":[{"name":"http","containerPort":8080}]`)
	ports := portsOf(t, `"name":"web"`, `{"name":"http","port":80,"targetPort":"http"},{"name":"admin","port":9090,"targetPort":9090}`)
	out := Inject(pod, nil, ports...)
	harness.Equal(t, verdictOf(out), "injected", out.Text)
	for _, p := range findSidecar(t, specOf(t, changed(t, pod, out.Changes))).Ports {
		if p.ContainerPort == 9090 {
			t.Errorf("got port %s of the sidecar on 9090, which a Service uses", p.Name)
		}
	}
}
