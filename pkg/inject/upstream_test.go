package inject

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestPortBehindProxyIsNotSelected(t *testing.T) {
	pod := func(proxy, app string) string {
		return `"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080}]` + app + `},{"name":"front",` + proxy + `}]`
	}
	args := func(list string) string {
		return `"image":"x/front:1","ports":[{"name":"https","containerPort":8443}],"args":[` + list + `]`
	}
	env := func(name, value string) string {
		return `"image":"x/front:1","env":[{"name":"` + name + `","value":"` + value + `"}]`
	}
	wantChoices(t, []choice{
		{"kube-rbac-proxy", "", pod(args(`"--upstream=http://127.0.0.1:8080/"`), ""), "", NotHTTP},
		{"oauth2-proxy", "", pod(`"image":"oauth2-proxy/oauth2-proxy:v7","ports":[{"name":"http","containerPort":4180}],"args":["--upstream","http://localhost:8080"]`, ""), "", NotHTTP},
		{"a variable", "", pod(env("OAUTH2_PROXY_UPSTREAMS", "http://localhost:8080/,file:///x"), ""), "", NotHTTP},
		{"a variable with flags", "", pod(env("PROXY_OPTS", "-v --upstream-url=http://localhost:8080"), ""), "", NotHTTP},
		{"an address without a scheme", "", pod(args(`"--backend=localhost:8080"`), ""), "", NotHTTP},
		{"a port", "", pod(env("BACKEND_PORT", "8080"), ""), "", NotHTTP},
		{"a metrics path", "", pod(args(`"--upstream=http://localhost:8080/metrics"`), ""), "", NotHTTP},
		{"a script", "", pod(args(`"sh","-c","front --proxy-to [::1]:8080"`), ""), "", NotHTTP},
		{"a native sidecar", "", `"initContainers":[{"name":"front","restartPolicy":"Always","args":["--target=http://localhost:8080"]}],"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080}]}]`, "", NotHTTP},
		{"a probe of the port", "", pod(args(`"--upstream=http://127.0.0.1:8080"`), `,"readinessProbe":{"httpGet":{"path":"/","port":8080}}`), "", NotHTTP},
		{"a port without a name next to it", "", `"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080},{"containerPort":3000}]},{"name":"front",` + args(`"--upstream=http://127.0.0.1:8080"`) + `}]`, "", NotHTTP},
		{"a Service", "", pod(args(`"--upstream=http://127.0.0.1:8080"`), ""), `{"name":"http","port":80,"targetPort":8080}`, "web:8080"},
		{"a Service of the proxy", "", pod(`"ports":[{"name":"public","containerPort":4180}],"args":["--upstream=http://localhost:8080"]`, ""), `{"name":"http","port":80,"targetPort":4180}`, "front:4180"},
		{"a proxy for metrics", "", `"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080},{"containerPort":9102}]},{"name":"front",` + args(`"--upstream=http://127.0.0.1:9102"`) + `}]`, "", "web:8080"},
		{"a proxy in the same container", "", `"containers":[{"name":"web","args":["--upstream=http://localhost:8080"],"ports":[{"name":"http","containerPort":8080}]},{"name":"b"}]`, "", "web:8080"},
		{"an exporter", "", pod(args(`"--nginx.scrape-uri=http://localhost:8080/stub_status","--scrape-uri","http://localhost:8080/","--telemetry.target=http://localhost:8080"`), ""), "", "web:8080"},
		{"an exporter with a target", "", pod(args(`"--target=http://localhost:8080/metrics"`), ""), "", "web:8080"},
		{"a proxy for egress", "", pod(env("HTTP_PROXY", "http://localhost:8080"), ""), "", "web:8080"},
		{"another host", "", pod(args(`"--upstream=http://api:8080"`), ""), "", "web:8080"},
	})
}

func TestPortIsNotSelectedIfProxyUpstreamIsUnknown(t *testing.T) {
	pod := func(proxy string) string {
		return `"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080}]},{"name":"front",` + proxy + `}]`
	}
	const image = `"image":"quay.io/oauth2-proxy/oauth2-proxy:v7","ports":[{"containerPort":4180}]`
	wantChoices(t, []choice{
		{"a configuration file", "", pod(image + `,"args":["--config=/etc/proxy.cfg"]`), "", NotHTTP},
		{"a variable with a configuration file", "", pod(image + `,"env":[{"name":"OAUTH2_PROXY_ALPHA_CONFIG","value":"/etc/alpha.yaml"}]`), "", NotHTTP},
		{"a variable from a Secret", "", pod(image + `,"env":[{"name":"OAUTH2_PROXY_UPSTREAMS","valueFrom":{"secretKeyRef":{"name":"x","key":"y"}}}]`), "", NotHTTP},
		{"all variables from a Secret", "", pod(image + `,"envFrom":[{"secretRef":{"name":"x"}}]`), "", NotHTTP},
		{"a configuration file and another server", "", pod(image + `,"args":["--config=/etc/proxy.cfg","--upstream=http://api:8080"]`), "", "web:8080"},
		{"a configuration file and a timeout", "", pod(image + `,"args":["--config=/etc/proxy.cfg","--upstream-timeout=30s"]`), "", NotHTTP},
		{"a configuration file and a flag with the URL of another server", "", pod(image + `,"args":["--config=/etc/proxy.cfg","--upstream-url=http://api:8080"]`), "", "web:8080"},
		{"no upstream server", "", pod(image), "", "web:8080"},
		{"another image with a configuration file", "", pod(`"image":"x/front:1","args":["--config=/etc/x"]`), "", "web:8080"},
		{"a Service for the application", "", pod(image + `,"args":["--config=/etc/proxy.cfg"]`), `{"port":80,"targetPort":"http"}`, "web:8080"},
		{"a Service for the proxy", "", pod(image + `,"args":["--config=/etc/proxy.cfg"]`), `{"port":80,"targetPort":4180}`, "front:4180"},
	})
}

func TestErrorForProxiedPortContainsFlags(t *testing.T) {
	const spec = `{"metadata":{},"spec":{"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080}]},
		{"name":"oauth2-proxy","args":["--upstream=http://localhost:8080"],"ports":[{"containerPort":4180}]}]}}`
	out := Inject(parse(t, spec), nil)
	for _, want := range []string{"port http (8080) of container web is the target of a proxy", "container oauth2-proxy forwards requests to the port (--upstream=http://localhost:8080)",
		"--container web --port 8080", "--container oauth2-proxy --port 4180"} {
		harness.Contains(t, out.Text, want)
	}
	for _, o := range []Options{{portOption: "8080"}, {portOption: "http", containerOption: "web"}} {
		out = Inject(parse(t, spec), o)
		harness.Equal(t, out.AppPort, 8080, out.Text)
	}
}

func TestProxyInFrontOfSidecarKeepsItsPort(t *testing.T) {
	out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080}]},
		{"name":"oauth2-proxy","args":["--upstream=http://localhost:8012"]}]}}`), nil)
	harness.Equal(t, out.ServingPort, 8012, out.Text, strings.Join(out.Warnings, "\n"))
}
