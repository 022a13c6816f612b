package inject

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A choice is a pod with its Services, and the port that the injector must select.
type choice struct {
	name, metadata, spec, services string
	want                           string // container:port, or the reason why the pod is not injected
}

// choose injects the pod of a choice. It returns the result in the same form as want.
func (c choice) choose(t *testing.T) (string, Outcome) {
	t.Helper()
	var ports []ServicePort
	if c.services != "" {
		ports = portsOf(t, `"name":"shop"`, c.services)
	}
	out := Inject(parse(t, `{"metadata":{`+c.metadata+`},"spec":{`+c.spec+`}}`), nil, ports...)
	if out.Verdict == Injected {
		return fmt.Sprintf("%s:%d", out.Container, out.AppPort), out
	}
	return out.Reason, out
}

func wantChoices(t *testing.T, all []choice) {
	t.Helper()
	for _, c := range all {
		if got, out := c.choose(t); got != c.want {
			t.Errorf("%s: got %s (%s), want %s", c.name, got, out.Text, c.want)
		}
	}
}

func TestUndeclaredServicePortSelectsContainer(t *testing.T) {
	const service = `{"name":"http","port":80}`
	wantChoices(t, []choice{
		{"the only container", "", `"containers":[{"name":"a"}]`, service, "a:80"},
		{"a container declares another port", "", `"containers":[{"name":"a","ports":[{"containerPort":8080}]},{"name":"b"}]`, service, "b:80"},
		{"a container declares a port for metrics", "", `"containers":[{"name":"a","ports":[{"name":"metrics","containerPort":9102}]},{"name":"b"}]`, service, NoPort},
		{"a flag contains another address", "", `"containers":[{"name":"a","args":["--listen","127.0.0.1:53"]},{"name":"b"}]`, service, "b:80"},
		{"a flag for metrics contains another address", "", `"containers":[{"name":"a","args":["--metrics-addr=:9102"]},{"name":"b"}]`, service, NoPort},
		{"a variable contains another port", "", `"containers":[{"name":"a","env":[{"name":"PORT","value":"3000"}]},{"name":"b"}]`, service, "b:80"},
		{"a variable contains the port of a database", "", `"containers":[{"name":"a","env":[{"name":"DB_PORT","value":"3000"}]},{"name":"b"}]`, service, NoPort},
		{"a helper", "", `"containers":[{"name":"a"},{"name":"log-agent"}]`, service, "a:80"},
		{"a variable contains the port", "", `"containers":[{"name":"a"},{"name":"log-agent","env":[{"name":"PORT","value":"80"}]}]`, service, "log-agent:80"},
		{"two containers remain", "", `"containers":[{"name":"a"},{"name":"b"},{"name":"c","ports":[{"containerPort":8080}]}]`, service, NoPort},
		{"all containers declare other ports", "", `"containers":[{"name":"a","ports":[{"containerPort":8080}]},{"name":"b","ports":[{"containerPort":8081}]}]`, service, NoPort},
	})
}

func TestUndeclaredServicePortHasLowConfidence(t *testing.T) {
	for _, c := range []struct {
		name, containers string
		want             Confidence
	}{
		{"no other port", `{"name":"a"}`, High},
		{"a port for metrics", `{"name":"a","ports":[{"name":"metrics","containerPort":9102}]}`, High},
		{"a probe of the port", `{"name":"a","ports":[{"containerPort":9000}],"livenessProbe":{"tcpSocket":{"port":80}}}`, High},
		{"another declared port", `{"name":"a","ports":[{"containerPort":8080}]}`, Low},
		{"another container", `{"name":"a"},{"name":"b","ports":[{"containerPort":8080}]}`, Low},
	} {
		_, out := choice{spec: `"containers":[` + c.containers + `]`, services: `{"port":80}`}.choose(t)
		if out.Confidence != c.want {
			t.Errorf("%s: got confidence %q (%s), want %s", c.name, out.Confidence, out.Text, c.want)
		}
	}
}

// Clients connect directly to the pods of a headless Service, so its port is often a placeholder.
func TestHeadlessServicePortIsNoEvidence(t *testing.T) {
	const server = `"containers":[{"name":"server","image":"x/server:1"`
	rows := []choice{
		{"an unknown number", "", server + `}]`, `{"name":"unused","port":1234}`, NoPort},
		{"a common HTTP port number", "", server + `}]`, `{"name":"dummy","port":80}`, NoPort},
		{"an HTTP port name", "", server + `}]`, `{"name":"http","port":80}`, NoPort},
		{"two containers", "", server + `},{"name":"b"}]`, `{"port":80}`, NoPort},
		{"another declared port", "", server + `,"ports":[{"containerPort":8080}]}]`, `{"name":"dummy","port":1234}`, "server:8080"},
		{"the declared port", "", server + `,"ports":[{"containerPort":80}]}]`, `{"port":80}`, "server:80"},
		{"a probe of the port", "", server + `,"livenessProbe":{"tcpSocket":{"port":80}}}]`, `{"port":80}`, "server:80"},
		{"an argument with the port", "", server + `,"args":["-m","http.server","8000"]}]`, `{"port":8000}`, "server:8000"},
		{"a variable with the port", "", server + `,"env":[{"name":"HTTP_PORT","value":"8000"}]}]`, `{"port":8000}`, "server:8000"},
		{"a web server", "", `"containers":[{"name":"a","image":"x/nginx-unprivileged:1"}]`, `{"port":8080}`, "a:8080"},
		{"a web server with an unknown number", "", `"containers":[{"name":"a","image":"x/nginx:1"}]`, `{"port":1234}`, NoPort},
		{"a web server with another name", "", `"containers":[{"name":"a","image":"x/nginx:1"}]`, `{"name":"unused","port":8080}`, NoPort},
	}
	for _, c := range rows {
		ports := portsOf(t, `"name":"shop"`, c.services)
		for i := range ports {
			ports[i].Headless = true
		}
		template := parse(t, `{"metadata":{},"spec":{`+c.spec+`}}`)
		out := Inject(template, nil, ports...)
		got := out.Reason
		if out.Verdict == Injected {
			got = fmt.Sprintf("%s:%d", out.Container, out.AppPort)
		}
		if got != c.want {
			t.Errorf("%s: got %s (%s), want %s", c.name, got, out.Text, c.want)
		}
		if c.want == NoPort && !strings.Contains(out.Text, fmt.Sprintf("--port %d", ports[0].Number)) {
			t.Errorf("%s: got the text %q, want the flag --port %d", c.name, out.Text, ports[0].Number)
		}
		ports[0].Headless = false
		if out := Inject(template, nil, ports...); c.want == NoPort && out.Verdict != Injected && !strings.Contains(c.spec, `"b"`) {
			t.Errorf("%s: got %s for a Service with an address, want an injection", c.name, out.Text)
		}
	}
}

func TestHeadlessServiceIsRead(t *testing.T) {
	s, ok := ReadService(parse(t, `{"metadata":{"name":"a"},"spec":{"clusterIP":"None","selector":{"app":"a"},"ports":[{"port":80}]}}`))
	harness.Equal(t, ok && s.ports[0].Headless, true)
}

// A flag or a variable for a certificate is stronger evidence than the number of a Service.
func TestCertificateOverridesServiceNumber(t *testing.T) {
	const args = `"args":["--certfile=/c/tls.crt","--keyfile=/c/tls.key"]`
	wantChoices(t, []choice{
		{"one port", "", `"containers":[{"name":"a",` + args + `,"ports":[{"containerPort":8000}]}]`, `{"port":80,"targetPort":8000}`, NotHTTP},
		{"an HTTP port name", "", `"containers":[{"name":"a",` + args + `,"ports":[{"name":"http","containerPort":8000}]}]`, `{"port":80,"targetPort":8000}`, "a:8000"},
		{"another port without evidence", "", `"containers":[{"name":"a",` + args + `,"ports":[{"containerPort":8000},{"containerPort":9001}]}]`, `{"name":"a","port":80,"targetPort":8000},{"name":"b","port":9001}`, "a:8000"},
		{"another port for TLS", "", `"containers":[{"name":"a",` + args + `,"ports":[{"containerPort":8000},{"containerPort":8443}]}]`, `{"name":"a","port":80,"targetPort":8000},{"name":"b","port":443,"targetPort":8443}`, "a:8000"},
	})
}

func TestManagementVariableSelectsOtherPort(t *testing.T) {
	wantChoices(t, []choice{{"two declared ports", "",
		`"containers":[{"name":"a","env":[{"name":"MANAGEMENT_SERVER_PORT","value":"8081"},{"name":"SERVER_PORT","value":"8080"}],"ports":[{"containerPort":8080},{"containerPort":8081}],` +
			`"readinessProbe":{"httpGet":{"path":"/actuator/health/readiness","port":8081}}}]`, "", "a:8080"}})
}

func TestErrorListsMostLikelyContainerFirst(t *testing.T) {
	for _, c := range []choice{
		{"the name of the Service", "", `"containers":[{"name":"a"},{"name":"b"},{"name":"shop"},{"name":"c"}]`, `{"port":80}`, "--container shop --port 80 (the Service has the same name) or --container a --port 80 or"},
		{"the name in a label", `"labels":{"app":"b"}`, `"containers":[{"name":"a"},{"name":"b"}]`, `{"port":80}`, "--container b --port 80 (the label app has the same value) or --container a --port 80;"},
		{"a helper", "", `"containers":[{"name":"kubectl","image":"x/kubectl:1"},{"name":"log-agent"},{"name":"a","ports":[{"containerPort":9}]},{"name":"b","ports":[{"containerPort":9}]}]`, `{"port":80}`, "select a container: --container a --port 80 or --container b --port 80 or --container kubectl"},
	} {
		_, out := c.choose(t)
		if !strings.Contains(out.Text, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, out.Text, c.want)
		}
	}
}

// The rows are kinds of pods that charts and tools generate.
func TestChoiceForTypicalPods(t *testing.T) {
	wantChoices(t, []choice{
		{"a web server with an exporter", "", `"containers":[{"name":"web","ports":[{"containerPort":3009}]},{"name":"exporter","image":"x/nginx-exporter","ports":[{"containerPort":9113}]}]`, "", "web:3009"},
		{"an authentication proxy with a Service", "", `"containers":[{"name":"web","ports":[{"containerPort":3009}]},{"name":"proxy","image":"x/oauth2-proxy:v7","ports":[{"containerPort":4180}]}]`, `{"port":80,"targetPort":4180}`, "proxy:4180"},
		{"an application called auth", `"labels":{"app":"auth"}`, `"containers":[{"name":"auth","ports":[{"containerPort":3009}]},{"name":"cloud-sql-proxy","image":"x/cloud-sql-proxy:2"}]`, "", "auth:3009"},
		{"a helper called auth", `"labels":{"app":"web"}`, `"containers":[{"name":"web","ports":[{"containerPort":3009}]},{"name":"auth","ports":[{"containerPort":4180}]}]`, "", "web:3009"},
		{"a targetPort with a name of the second container", "", `"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]},{"name":"b","ports":[{"name":"web","containerPort":80}]}]`, `{"port":80,"targetPort":"web"}`, "b:80"},
		{"a targetPort with a name that no container has", "", `"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]}]`, `{"port":80,"targetPort":"web"}`, "a:8080"},
		{"UDP and TCP", "", `"containers":[{"name":"a","ports":[{"containerPort":53,"protocol":"UDP"},{"containerPort":8080}]}]`, `{"name":"dns","port":53,"protocol":"UDP"},{"port":8080}`, "a:8080"},
		{"the same number for UDP and TCP", "", `"containers":[{"name":"a","ports":[{"containerPort":8080,"protocol":"UDP"},{"containerPort":8080}]}]`, `{"port":8080}`, "a:8080"},
		{"UDP only", "", `"containers":[{"name":"a","ports":[{"containerPort":8080,"protocol":"UDP"}]}]`, "", NoPort},
		{"ports 80 and 443", "", `"containers":[{"name":"a","ports":[{"containerPort":80},{"containerPort":443}]}]`, `{"name":"http","port":80},{"name":"https","port":443}`, "a:80"},
		{"port 80 behind a load balancer with TLS", "", `"containers":[{"name":"a","ports":[{"containerPort":80}]}]`, `{"port":443,"targetPort":80}`, "a:80"},
		{"a port called https8443", "", `"containers":[{"name":"a","ports":[{"name":"https8443","containerPort":9001},{"name":"http8080","containerPort":9000}]}]`, "", "a:9000"},
		{"gRPC with metrics over HTTP", "", `"containers":[{"name":"a","ports":[{"name":"grpc","containerPort":9555},{"name":"http-metrics","containerPort":8080}]}]`, `{"name":"grpc","port":9555},{"name":"http-metrics","port":8080}`, "a:9555"},
		{"gRPC without a name", "", `"containers":[{"name":"a","ports":[{"containerPort":9555}],"readinessProbe":{"grpc":{"port":9555}}}]`, "", "a:9555"},
		{"names generated from numbers", "", `"containers":[{"name":"a","ports":[{"containerPort":8443},{"containerPort":8080}]}]`, `{"name":"8443-tcp","port":8443},{"name":"8080-tcp","port":8080}`, "a:8080"},
		{"a name generated from the number of a database", "", `"containers":[{"name":"a","ports":[{"containerPort":5432}]}]`, `{"name":"5432-tcp","port":5432}`, NotHTTP},
		{"appProtocol tcp", "", `"containers":[{"name":"a","ports":[{"containerPort":8080}]}]`, `{"port":8080,"appProtocol":"tcp"}`, NotHTTP},
		{"appProtocol with a prefix", "", `"containers":[{"name":"a","ports":[{"containerPort":8080}]}]`, `{"port":8080,"appProtocol":"kubernetes.io/wss"}`, NotHTTP},
		{"a DaemonSet in the network of the host", "", `"hostNetwork":true,"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]}]`, "", HostNetwork},
		{"a job", "", `"restartPolicy":"OnFailure","containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]}]`, "", Ends},
		{"a database with the protocol of MySQL on 4000", "", `"containers":[{"name":"a","image":"pingcap/tidb:v8","ports":[{"containerPort":4000}]}]`, `{"port":4000}`, NotHTTP},
		{"a broker with a proprietary protocol", "", `"containers":[{"name":"a","image":"apache/rocketmq:5","ports":[{"containerPort":10911}]}]`, "", NotHTTP},
		{"annotations of Prometheus", `"annotations":{"prometheus.io/scrape":"true","prometheus.io/port":"9102"}`, `"containers":[{"name":"a","ports":[{"containerPort":3009},{"containerPort":9102}]}]`, "", WhichPort},
		{"a native sidecar with a port", "", `"initContainers":[{"name":"proxy","restartPolicy":"Always","ports":[{"containerPort":9000}]}],"containers":[{"name":"a","ports":[{"containerPort":3009}]}]`, "", "a:3009"},
		{"a generated name with the name of the port", "", `"containers":[{"name":"a","ports":[{"name":"service","containerPort":7860}]}]`, `{"name":"tcp-service","port":7860}`, "a:7860"},
		{"a variable with the name of the container", "", `"containers":[{"name":"telemetry-docs","env":[{"name":"TELEMETRY_DOCS_PORT","value":"8000"}],"ports":[{"containerPort":8000}]}]`, "", "telemetry-docs:8000"},
		{"a variable with the name of a helper", "", `"containers":[{"name":"docs","env":[{"name":"TELEMETRY_PORT","value":"8000"}],"ports":[{"containerPort":8000}]}]`, "", NotHTTP},
		{"a Git server", "", `"containers":[{"name":"a","ports":[{"containerPort":22},{"containerPort":3000}]}]`, `{"name":"git","port":22},{"name":"page","port":3000}`, "a:3000"},
		{"a collector of logs", "", `"containers":[{"name":"a","ports":[{"containerPort":24224},{"containerPort":8282}]}]`, `{"name":"in","port":24224},{"name":"api","port":8282}`, "a:8282"},
		{"a collector of spans", "", `"containers":[{"name":"a","ports":[{"containerPort":14250},{"name":"thrift","containerPort":14268},{"name":"otlp","containerPort":4317}]}]`, `{"port":14250},{"name":"x","port":14268},{"name":"y","port":4317,"appProtocol":"grpc"}`, WhichPort},
		{"a broker with a console", "", `"containers":[{"name":"a","ports":[{"containerPort":5672},{"containerPort":15672}]}]`, `{"name":"in","port":5672},{"name":"page","port":15672}`, NotHTTP},
		{"kube-state-metrics with a port called http", "", `"containers":[{"name":"a","image":"x/kube-state-metrics:v2","ports":[{"name":"http","containerPort":8080}]}]`, `{"name":"http","port":8080}`, NotHTTP},
		{"a readiness probe for metrics", "", `"containers":[{"name":"a","readinessProbe":{"httpGet":{"port":9102,"path":"/metrics"}}}]`, "", NoPort},
		{"a collector of OpenTelemetry with a probe", "", `"containers":[{"name":"a","image":"x/opentelemetry-collector-k8s:1","readinessProbe":{"httpGet":{"port":13133,"path":"/"}}}]`, "", NotHTTP},
		{"a health check of the port for metrics", "", `"containers":[{"name":"a","ports":[{"containerPort":8081},{"containerPort":8084}],"readinessProbe":{"httpGet":{"port":8084,"path":"/healthz"}}}]`, `{"name":"server","port":8081},{"name":"metrics","port":8084}`, "a:8081"},
		{"a health check of the only port for metrics", "", `"containers":[{"name":"a","ports":[{"containerPort":8082}],"readinessProbe":{"httpGet":{"port":8082,"path":"/healthz"}}}]`, `{"name":"metrics","port":8082}`, NotHTTP},
	})
}

// The rows are kinds of pods with ports for metrics, certificates or two protocols.
func TestChoiceForPodsWithOtherPorts(t *testing.T) {
	wantChoices(t, []choice{
		{"a port for requests and metrics", "", `"containers":[{"name":"a","ports":[{"containerPort":8000}],"readinessProbe":{"httpGet":{"port":8000,"path":"/healthz"}}}]`, `{"name":"serve","port":80,"targetPort":8000},{"name":"metrics","port":8000}`, "a:8000"},
		{"a port with the name of its container", "", `"containers":[{"name":"store-admin","ports":[{"name":"store-admin","containerPort":3009}]}]`, "", "store-admin:3009"},
		{"a metrics port with the name of its container", "", `"containers":[{"name":"store-metrics","ports":[{"name":"store-metrics","containerPort":3009}]}]`, "", NotHTTP},
		{"a certificate below the home directory", "", `"volumes":[{"name":"shop-certificates","secret":{"secretName":"x"}}],"containers":[{"name":"a","ports":[{"containerPort":9000}],"volumeMounts":[{"name":"shop-certificates","mountPath":"/root/certs"}]}]`, `{"port":9000}`, NotHTTP},
		{"an agent with a debug page", "", `"containers":[{"name":"a","image":"grafana/alloy","ports":[{"containerPort":12345}]}]`, "", NotHTTP},
		{"a port called metricshttps", "", `"containers":[{"name":"a","ports":[{"name":"metricshttps","containerPort":9120}]}]`, "", NotHTTP},
		{"a debug port", "", `"containers":[{"name":"a","ports":[{"containerPort":3009},{"name":"debug","containerPort":5005}]}]`, "", "a:3009"},
		{"a webhook with a port called http", "", `"volumes":[{"name":"certificates","secret":{"secretName":"x"}}],"containers":[{"name":"a","ports":[{"name":"http","containerPort":9443}],"volumeMounts":[{"name":"certificates","mountPath":"/certs"}]}]`, `{"name":"https","port":443,"targetPort":9443}`, NotHTTP},
		{"a port called http that a Service offers as HTTPS, and a certificate", "", `"containers":[{"name":"a",` + pairOfFlags + `,"ports":[{"name":"http","containerPort":8080}]}]`, `{"name":"https","port":443,"targetPort":"http"}`, NotHTTP},
		{"a port called http behind a load balancer with TLS", "", `"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]}]`, `{"name":"https","port":443,"targetPort":"http"}`, "a:8080"},
		{"a webhook with a port called http and no Service", "", `"containers":[{"name":"a","image":"x/shop-admission-webhooks","ports":[{"name":"http","containerPort":9443}],"livenessProbe":{"httpGet":{"port":8081,"path":"/healthz"}}}]`, "", NotHTTP},
		{"the image of a webhook with a Service on port 80", "", `"containers":[{"name":"a","image":"x/shop-webhook","ports":[{"name":"http","containerPort":9443}]}]`, `{"port":80,"targetPort":"http"}`, "a:9443"},
		{"the image of a webhook with a port called http", "", `"containers":[{"name":"a","image":"x/shop-webhook","ports":[{"name":"http","containerPort":8080}]}]`, "", "a:8080"},
		{"a port called prom-metrics that a Service calls http", "", `"containers":[{"name":"a","ports":[{"name":"prom-metrics","containerPort":3200}]}]`, `{"name":"http","port":3200,"targetPort":"prom-metrics"}`, "a:3200"},
		{"a port called metrics that a Service calls http-metrics", "", `"containers":[{"name":"a","ports":[{"name":"metrics","containerPort":3200}]}]`, `{"name":"http-metrics","port":3200}`, NotHTTP},
		{"a port called metrics with a variable for metrics", "", `"containers":[{"name":"a","env":[{"name":"TELEMETRY_PORT","value":"8080"}],"ports":[{"name":"metrics","containerPort":8080}]}]`, `{"name":"http","port":8080}`, NotHTTP},
		{"a probe of a port next to a database", "", `"containers":[{"name":"db","image":"mongo:3.3"},{"name":"api","livenessProbe":{"httpGet":{"port":8080,"path":"/hello"}}}]`, "", "api:8080"},
		{"a collector of OpenTelemetry", "", `"containers":[{"name":"a","ports":[{"name":"otlp-grpc","containerPort":4317},{"name":"http","containerPort":4318}]}]`, "", WhichPort},
		{"a collector of OpenTelemetry with a Service", "", `"containers":[{"name":"a","ports":[{"containerPort":4317},{"containerPort":4318}]}]`, `{"name":"otlp","port":4317},{"name":"http","port":4318}`, WhichPort},
		{"a store of spans with two ports in its Service", "", `"containers":[{"name":"a","ports":[{"name":"query","containerPort":3200}]}]`, `{"name":"otlp-http","port":4318},{"name":"query","port":3200}`, WhichPort},
		{"gRPC and HTTP without a Service", "", `"containers":[{"name":"a","ports":[{"name":"grpc","containerPort":9999},{"name":"http","containerPort":9898}]}]`, "", "a:9898"},
		{"gRPC and HTTP in the Service", "", `"containers":[{"name":"a","ports":[{"name":"grpc","containerPort":9999},{"name":"http","containerPort":9898}]}]`, `{"name":"http","port":9898},{"name":"grpc","port":9999}`, WhichPort},
		{"HTTP in the Service and gRPC in the pod", "", `"containers":[{"name":"a","ports":[{"name":"grpc","containerPort":9999},{"name":"http","containerPort":9898}]}]`, `{"name":"http","port":9898}`, "a:9898"},
		{"a variable with the loopback address and a Service", "", `"containers":[{"name":"a","env":[{"name":"LISTEN_ADDRESS","value":"localhost:8000"}],"ports":[{"containerPort":8000}]}]`, `{"port":80,"targetPort":8000}`, NotHTTP},
		{"a flag with the loopback address and a Service", "", `"containers":[{"name":"a","args":["--listen=127.0.0.1:8000"],"ports":[{"name":"http","containerPort":8000}]}]`, `{"port":80,"targetPort":"http"}`, NotHTTP},
		{"a management port with the probe", "", `"containers":[{"name":"a","ports":[{"name":"app","containerPort":8080},{"name":"management","containerPort":8081}],"readinessProbe":{"httpGet":{"port":"management","path":"/actuator/health"}}}]`, "", "a:8080"},
	})
}

func TestPortOfFlagIsUsedIfNoPortIsDeclared(t *testing.T) {
	const liveness = `,"livenessProbe":{"httpGet":{"port":3000,"path":`
	wantChoices(t, []choice{
		{"a flag", "", `"containers":[{"name":"a","args":["--port","3000"]}]`, "", "a:3000"},
		{"a flag for HTTP", "", `"containers":[{"name":"a","args":["--http-addr=:3000"]}]`, "", "a:3000"},
		{"a variable", "", `"containers":[{"name":"a","env":[{"name":"PORT","value":"3000"}]}]`, "", "a:3000"},
		{"a variable for a client", "", `"containers":[{"name":"a","env":[{"name":"REDIS_PORT","value":"3000"}]}]`, "", NoPort},
		{"a URL of another server", "", `"containers":[{"name":"a","env":[{"name":"API_URL","value":"http://api:3000"}]}]`, "", NoPort},
		{"a flag with a loopback address", "", `"containers":[{"name":"a","args":["--addr=localhost:3000"]}]`, "", NoPort},
		{"a flag for metrics", "", `"containers":[{"name":"a","args":["--metrics-addr=:3000"]}]`, "", NoPort},
		{"a flag of a CSI driver", "", `"containers":[{"name":"a","args":["--http-endpoint=:3000"]}]`, "", NoPort},
		{"another container", "", `"containers":[{"name":"a","args":["--port=3000"]},{"name":"b"}]`, "", NoPort},
		{"a helper", "", `"containers":[{"name":"a","args":["--port=3000"]},{"name":"log-agent"}]`, "", "a:3000"},
		{"two flags", "", `"containers":[{"name":"a","args":["--port=3000","--grpc-port=3001"]}]`, "", NoPort},
		{"a flag and a certificate", "", `"containers":[{"name":"a","args":["--port=3000","--tls-cert=/x/tls.crt","--tls-key=/x/tls.key"]}]`, "", NotHTTP},
		{"a flag with the port of a database", "", `"containers":[{"name":"a","args":["--port=6379"]}]`, "", NotHTTP},
		{"a liveness probe for a page", "", `"containers":[{"name":"a"` + liveness + `"/index.html"}}}]`, "", "a:3000"},
		{"a liveness probe for the health", "", `"containers":[{"name":"a"` + liveness + `"/healthz"}}}]`, "", NoPort},
		{"the flag -b of Gunicorn", "", `"containers":[{"name":"a","command":["gunicorn","-b","0.0.0.0:9000","app"]}]`, "", "a:9000"},
		{"the flag -b of Gunicorn without a space", "", `"containers":[{"name":"a","command":["sh","-c","exec gunicorn -b:9000 app"]}]`, "", "a:9000"},
		{"the flag -b of Gunicorn with the loopback address", "", `"containers":[{"name":"a","command":["gunicorn","-b","127.0.0.1:9000","app"]}]`, "", NoPort},
		{"the server of Django", "", `"containers":[{"name":"a","command":["python","manage.py","runserver","--noreload","0.0.0.0:9000"]}]`, "", "a:9000"},
		{"the loopback address and a port", "", `"containers":[{"name":"a","args":["--host","127.0.0.1","--port","9000"]}]`, "", "a:9000"},
		{"a declared port and a flag", "", `"containers":[{"name":"a","args":["--port=3000"],"ports":[{"containerPort":3001}]}]`, "", "a:3001"},
		{"the image of an operator", "", `"containers":[{"name":"a","image":"x/shop-operator","args":["--port=3000"]}]`, "", NotHTTP},
	})
}

// A health check is not evidence that clients use a port.
func TestHealthCheckSelectsNoPort(t *testing.T) {
	const probes = `"livenessProbe":{"httpGet":{"port":8081,"path":"/healthz"}},"readinessProbe":{"httpGet":{"port":8081,"path":"/ready"}}`
	const pod = `"containers":[{"name":"a","ports":[{"containerPort":8081},{"containerPort":9000}],` + probes + `}]`
	wantChoices(t, []choice{
		{"a Service names the other port", "", pod, `{"port":9000}`, "a:9000"},
		{"a Service names both ports", "", pod, `{"name":"a","port":9000},{"name":"b","port":8081}`, WhichPort},
		{"no Service", "", pod, "", WhichPort},
		{"no Service, and a common number", "", `"containers":[{"name":"a","ports":[{"containerPort":8081},{"containerPort":8080}],` + probes + `}]`, "", "a:8080"},
		{"only one port", "", `"containers":[{"name":"a","ports":[{"containerPort":8081}],` + probes + `}]`, "", "a:8081"},
		{"a flag with the port", "", `"containers":[{"name":"a","args":["--port=8081"],"ports":[{"containerPort":8081},{"containerPort":9000}],` + probes + `}]`, "", "a:8081"},
	})
}

func TestHealthPathIsNoEvidenceForRequests(t *testing.T) {
	for path, want := range map[string]string{
		"/status": NoPort, "/api/status": NoPort, "/statusz": NoPort, "/up": NoPort, "/ok": NoPort, "/isalive": NoPort, "/internal/isReady": NoPort, "/hc": NoPort, "/up?full=1": NoPort,
		"/health-check": NoPort, "/_health": NoPort, "/ping": NoPort, "/__lbheartbeat__": NoPort, "/readinessProbe": NoPort,
		"/sign-up": "a:8081", "/up/files": "a:8081", "/statuses": "a:8081", "/status-page": "a:8081", "/book": "a:8081",
	} {
		wantChoices(t, []choice{{path, "", `"containers":[{"name":"a","readinessProbe":{"httpGet":{"port":8081,"path":"` + path + `"}}}]`, "", want}})
	}
}

func TestConsolePortIsNotSelected(t *testing.T) {
	pod := func(args, console string) string {
		return `"containers":[{"name":"a","args":[` + args + `],"ports":[{"containerPort":9000},{"containerPort":9001` + console + `}],"readinessProbe":{"httpGet":{"port":9000,"path":"/minio/health/ready"}}}]`
	}
	const services = `{"name":"api","port":9000},{"name":"console","port":9001}`
	wantChoices(t, []choice{
		{"a flag and a Service", "", pod(`"--console-address",":9001"`, ""), services, "a:9000"},
		{"a flag and a declared name", "", pod(`"--console-address=:9001"`, `,"name":"web-console"`), `{"name":"api","port":9000},{"name":"ui","port":9001}`, "a:9000"},
		{"HTTP port names", "", pod(`"--console-address=:9001"`, ""), `{"name":"http","port":9000},{"name":"http-console","port":9001}`, "a:9000"},
		{"only a flag", "", pod(`"--console-address=:9001"`, ""), `{"name":"api","port":9000},{"name":"ui","port":9001}`, WhichPort},
		{"only a Service", "", pod("", ""), services, WhichPort},
		{"a Service for the console only", "", pod(`"--console-address=:9001"`, ""), `{"name":"console","port":9001}`, "a:9001"},
	})
}

// If a probe uses an undeclared port, the declared port may be closed.
func TestUndeclaredProbePortRequiresPortOption(t *testing.T) {
	const probe = `"livenessProbe":{"tcpSocket":{"port":20003}}`
	wantChoices(t, []choice{
		{"another declared port", "", `"containers":[{"name":"a","ports":[{"containerPort":8080}],` + probe + `}]`, "", WhichPort},
		{"a port called http", "", `"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}],` + probe + `}]`, "", "a:8080"},
		{"both ports are declared", "", `"containers":[{"name":"a","ports":[{"containerPort":8080},{"containerPort":20003}],` + probe + `}]`, "", "a:8080"},
		{"a probe of the declared port", "", `"containers":[{"name":"a","ports":[{"containerPort":8080}],"readinessProbe":{"tcpSocket":{"port":8080}},` + probe + `}]`, "", "a:8080"},
		{"a Service", "", `"containers":[{"name":"a","ports":[{"containerPort":8080}],` + probe + `}]`, `{"port":8080}`, "a:8080"},
		{"an HTTP probe for the health", "", `"containers":[{"name":"a","ports":[{"containerPort":8080}],"livenessProbe":{"httpGet":{"port":8081,"path":"/healthz"}}}]`, "", "a:8080"},
	})
}

// If Services expose two ports, both ports receive requests, and the injector cannot
// select one.
func TestTwoServicePortsReturnWhichPort(t *testing.T) {
	const pod = `"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080},{"name":"grpc","containerPort":9000},{"name":"ui","containerPort":7777}]}]`
	wantChoices(t, []choice{
		{"HTTP and gRPC", "", pod, `{"name":"http","port":80,"targetPort":"http"},{"name":"grpc","port":9000}`, WhichPort},
		{"HTTP only", "", pod, `{"name":"http","port":80,"targetPort":"http"}`, "a:8080"},
		{"gRPC only", "", pod, `{"name":"grpc","port":9000}`, "a:9000"},
		{"HTTP and a port without evidence", "", pod, `{"name":"http","port":80,"targetPort":"http"},{"name":"ui","port":7777}`, "a:8080"},
		{"HTTP and metrics with appProtocol", "", pod, `{"name":"http","port":80,"targetPort":"http"},{"name":"http-metrics","port":7777}`, "a:8080"},
		{"no Service", "", pod, "", "a:8080"},
	})
	wantChoices(t, []choice{{"metrics with appProtocol", "", `"containers":[{"name":"a","ports":[{"name":"api-port","containerPort":20001},{"name":"http-metrics","containerPort":9090}]}]`,
		`{"name":"http","port":20001,"appProtocol":"http"},{"name":"http-metrics","port":9090,"appProtocol":"http"}`, "a:20001"}})
}

func TestSleepingContainerIsNotSelected(t *testing.T) {
	for command, sleeps := range map[string]bool{
		`["/bin/sleep","infinity"]`: true, `["tail","-f","/dev/null"]`: true, `["/bin/sh","-c","sleep 3650d"]`: true,
		`["sh","-c","while true; do echo alive; sleep 60; done"]`:             true,
		`["sh","-ec","touch /tmp/healthy; sleep 30; rm /tmp/healthy & wait"]`: true,
		`["bash","-c","--","while true; do sleep 30; done"]`:                  true,
		`["sh","-c","sleep 5; exec /app"]`:                                    false,
		`["sh","-c","echo $(date) > /x; nginx"]`:                              false,
		`["sh","-c","while true; do nc -l -p 8080 < /x; sleep 1; done"]`:      false,
		`["sh","/entrypoint.sh"]`:                                             false,
		`["python","-c","import time; time.sleep(1)"]`:                        false,
		`["sh","-c","echo started"]`:                                          false,
	} {
		want := "a:80"
		if sleeps {
			want = NotHTTP
		}
		wantChoices(t, []choice{{command, "", `"containers":[{"name":"a","command":` + command + `}]`, `{"name":"http","port":80}`, want}})
	}
}

// If the sidecar forwarded requests to a port on the loopback address, other pods could
// reach the port.
func TestLoopbackPortIsNotSelected(t *testing.T) {
	const pod = `"containers":[{"name":"a","args":["--listen","127.0.0.1:3000"],"ports":[{"name":"http","containerPort":3000}]}`
	wantChoices(t, []choice{
		{"a declared port", "", pod + `]`, "", NotHTTP},
		{"next to a proxy", "", pod + `,{"name":"b","args":["--listen=:4180"],"ports":[{"containerPort":4180}]}]`, "", "b:4180"},
		{"a Service names the port", "", pod + `]`, `{"port":80,"targetPort":3000}`, NotHTTP},
		{"a variable", "", `"containers":[{"name":"a","env":[{"name":"API_ADDR","value":"localhost:3000"}],"ports":[{"containerPort":3000}]}]`, "", "a:3000"},
	})
}

func TestServiceForMetricsIsIgnored(t *testing.T) {
	for service, want := range map[string]string{"shop-metrics": NotHTTP, "shop-monitor-metrics-service": NotHTTP, "shop-metrics-service": NotHTTP, "metrics-browser": "a:8080"} {
		ports := portsOf(t, `"name":"`+service+`"`, `{"name":"http","port":8080}`)
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]}]}}`), nil, ports...)
		got := out.Reason
		if out.Verdict == Injected {
			got = fmt.Sprintf("%s:%d", out.Container, out.AppPort)
		}
		if got != want {
			t.Errorf("Service %s: got %s (%s), want %s", service, got, out.Text, want)
		}
	}
}

func TestServiceForMetricsIsNoEvidence(t *testing.T) {
	const probed = `,"readinessProbe":{"httpGet":{"port":8080,"path":"/"}}`
	for name, c := range map[string]struct{ container, service, want string }{
		"a port that a probe requests":    {`"ports":[{"containerPort":8080}]` + probed, `{"port":80,"targetPort":8080}`, NotHTTP},
		"a port called http":              {`"ports":[{"name":"http","containerPort":8080}]` + probed, `{"name":"http","port":80,"targetPort":8080}`, NotHTTP},
		"another port called http":        {`"ports":[{"name":"http","containerPort":8080},{"containerPort":9102}]`, `{"port":80,"targetPort":9102}`, "a:8080"},
		"another port without a name":     {`"ports":[{"containerPort":8080},{"containerPort":9102}]`, `{"port":80,"targetPort":9102}`, NotHTTP},
		"another port that a probe names": {`"ports":[{"containerPort":8080},{"containerPort":9102}]` + probed, `{"port":80,"targetPort":9102}`, "a:8080"},
	} {
		out := Inject(parse(t, `{"spec":{"containers":[{"name":"a",`+c.container+`}]}}`), nil, portsOf(t, `"name":"px-metrics"`, c.service)...)
		got := out.Reason
		if out.Verdict == Injected {
			got = fmt.Sprintf("%s:%d", out.Container, out.AppPort)
		}
		if got != c.want {
			t.Errorf("%s: got %s (%s), want %s", name, got, out.Text, c.want)
		}
	}
}

func TestPortNameThatEqualsServiceNameIsIgnored(t *testing.T) {
	for service, want := range map[string]Verdict{"store-admin": Injected, "store-metrics": Skipped, "admin": Skipped} {
		ports := portsOf(t, `"name":"`+service+`"`, `{"name":"`+service+`","port":8080}`)
		if out := Inject(parse(t, `{"spec":{"containers":[{"name":"a"}]}}`), nil, ports...); out.Verdict != want {
			t.Errorf("%s: got %s (%s), want %s", service, out.Verdict, out.Text, want)
		}
	}
}

// The first flag in the error selects the most likely port. It is often not the first declared
// port.
func TestErrorContainsMostLikelyFlag(t *testing.T) {
	const admin = `"containers":[{"name":"a","image":"jaegertracing/jaeger-collector:1.60","ports":[{"containerPort":14269},{"containerPort":14268},{"name":"zipkin","containerPort":9411}],"readinessProbe":{"httpGet":{"port":14269,"path":"/health"}}}]`
	for _, c := range []struct {
		choice
		flags []string // in the order in which the error contains them
	}{
		{choice{"an admin port", "", `"containers":[{"name":"a","ports":[{"name":"admin-http","containerPort":14269},{"name":"redis","containerPort":14268}]}]`, "", NotHTTP}, []string{"--port 14268"}},
		{choice{"several ports", "", admin, "", WhichPort}, []string{"--port 14268 (", "--port 9411 (declared as zipkin)"}},
		{choice{"two ports in Services", "", `"containers":[{"name":"a","ports":[{"name":"http","containerPort":10902},{"name":"grpc","containerPort":10901},{"containerPort":19291}]}]`,
			`{"name":"grpc","port":10901},{"name":"remote-write","port":19291,"appProtocol":"http"}`, WhichPort}, []string{"--port 19291 (", "--port 10901 ("}},
		{choice{"a helper with the only port", "", `"containers":[{"name":"auth-helper","ports":[{"containerPort":4180}]},{"name":"shop"}]`, "", NoPort}, []string{"--container shop --port PORT", "--container auth-helper --port 4180 ("}},
		{choice{"a helper only", `"labels":{"app":"shop"}`, `"containers":[{"name":"auth-helper","ports":[{"containerPort":4180}]},{"name":"istio-proxy"}]`, "", NoPort}, []string{"--container auth-helper --port 4180 ("}},
	} {
		got, out := c.choose(t)
		rest := out.Text
		for _, flag := range c.flags {
			var found bool
			if _, rest, found = strings.Cut(rest, flag); !found {
				t.Errorf("%s: got %q, want it to contain %q in this order", c.name, out.Text, c.flags)
			}
		}
		harness.Equal(t, got, c.want, c.name, out.Text)
		if len(c.flags) == 1 {
			harness.Equal(t, strings.Count(out.Text, "--port "), 1, c.name, out.Text)
		}
	}
}

func TestPortOptionOutOfRangeIsRefused(t *testing.T) {
	for _, port := range []string{"65536", "0", "-1"} {
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"web"}]}}`), Options{portOption: port})
		harness.Equal(t, verdictOf(out)+" "+out.Text, "refused bad-option port: \""+port+"\": must be a port name or a port number from 1 to 65535")
	}
}

func TestContainerPortOutOfRangeIsRefused(t *testing.T) {
	for _, port := range []string{"99999", "65536", "0", "-1"} {
		for _, containers := range []string{
			`"containers":[{"name":"web","ports":[{"containerPort":` + port + `}]}]`,
			`"containers":[{"name":"a","ports":[{"containerPort":8080}]},{"name":"web","ports":[{"containerPort":` + port + `}]}]`,
			`"containers":[{"name":"a","ports":[{"containerPort":8080}]}],"initContainers":[{"name":"web","ports":[{"containerPort":` + port + `}]}]`,
		} {
			out := Inject(parse(t, `{"metadata":{},"spec":{`+containers+`}}`), nil)
			harness.Equal(t, verdictOf(out)+" "+out.Text, "refused unreadable container web: containerPort: "+port+" is not in 1..65535", containers)
		}
	}
}

// clusterPorts returns the ports of two Services: a named Service and a headless Service for
// peers.
func clusterPorts(t *testing.T, ports, peers string) []ServicePort {
	t.Helper()
	return append(portsOf(t, `"name":"shop"`, ports), portsOf(t, `"name":"shop-memberlist"`, `{"name":"http","port":7946,"targetPort":"`+peers+`"}`)...)
}

func TestPortOfPeersIsNotSelected(t *testing.T) {
	for _, c := range []struct{ name, containers, service, peers, want string }{
		{"a port without an HTTP name", `{"name":"a","ports":[{"name":"api","containerPort":8080},{"name":"gossip","containerPort":7946}]}`, `{"name":"api","port":8080}`, "gossip", "a:8080"},
		{"a port called http-metrics", `{"name":"a","ports":[{"name":"http-metrics","containerPort":3100},{"name":"memberlist-port","containerPort":7946}]}`, `{"name":"http-metrics","port":3100}`, "memberlist-port", WhichPort},
		{"the API of an image called http-metrics", `{"name":"a","image":"grafana/loki:2","ports":[{"name":"http-metrics","containerPort":3100},{"name":"grpc","containerPort":9095},{"name":"memberlist-port","containerPort":7946}],` +
			`"readinessProbe":{"httpGet":{"port":"http-metrics","path":"/ready"}}}`, `{"name":"http-metrics","port":3100}`, "memberlist-port", "a:3100"},
		{"another port called http-metrics", `{"name":"a","image":"grafana/loki:2","ports":[{"name":"http-metrics","containerPort":9102}]}`, `{"name":"http-metrics","port":9102}`, "x", NotHTTP},
	} {
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[`+c.containers+`]}}`), nil, clusterPorts(t, c.service, c.peers)...)
		got := out.Reason
		if out.Verdict == Injected {
			got = fmt.Sprintf("%s:%d", out.Container, out.AppPort)
		}
		harness.Equal(t, got, c.want, c.name, out.Text)
	}
}

func TestPortBehindTLSLoadBalancerIsSelected(t *testing.T) {
	for annotations, want := range map[string]int32{
		`"service.beta.kubernetes.io/aws-load-balancer-ssl-cert":"x"`:                                                                        8080,
		`"service.beta.kubernetes.io/do-loadbalancer-certificate-id":"x"`:                                                                    8080,
		`"service.beta.kubernetes.io/aws-load-balancer-ssl-cert":"x","service.beta.kubernetes.io/aws-load-balancer-backend-protocol":"http"`: 8080,
		`"service.beta.kubernetes.io/aws-load-balancer-ssl-cert":"x","service.beta.kubernetes.io/aws-load-balancer-backend-protocol":"ssl"`:  0,
		`"service.beta.kubernetes.io/aws-load-balancer-internal":"true"`:                                                                     0,
		`"service.beta.kubernetes.io/aws-load-balancer-ssl-cert":""`:                                                                         0,
	} {
		for _, ports := range []string{`{"port":443,"targetPort":8080}`, `{"name":"http","port":80,"targetPort":8080},{"name":"https","port":443,"targetPort":8080}`} {
			out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","ports":[{"containerPort":8080}]}]}}`), nil, portsOf(t, `"name":"shop","annotations":{`+annotations+`}`, ports)...)
			harness.Equal(t, out.AppPort, want, annotations, ports, out.Text)
		}
	}
}

// If a Service has the name of its container, the suffix -metrics belongs to the name of the application.
func TestServiceNamedLikeContainerIsNotForMetrics(t *testing.T) {
	for port, want := range map[string]string{`{"name":"http","port":8428}`: "injected", `{"name":"x","port":8428}`: "skipped not-http"} {
		ports := portsOf(t, `"name":"shop-metrics"`, port)
		for container, want := range map[string]string{"shop-metrics": want, "a": "skipped not-http"} {
			out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"`+container+`","ports":[{"containerPort":8428}]}]}}`), nil, ports...)
			harness.Equal(t, verdictOf(out), want, port, container, out.Text)
		}
	}
}

func TestErrorForPeerPortContainsItsNameInService(t *testing.T) {
	out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","ports":[{"name":"gossip","containerPort":1000}]}]}}`), nil, portsOf(t, `"name":"shop"`, `{"name":"web","port":1000}`)...)
	harness.Equal(t, out.Reason, WhichPort)
	harness.Contains(t, out.Text, "port gossip (1000) of container a has the name web in Service shop, but the port name is gossip")
}

// If a probe uses HTTPS on the port, the port option cannot select it.
func TestErrorForTLSProbeContainsNoFlag(t *testing.T) {
	const probe = `"readinessProbe":{"httpGet":{"port":8443,"scheme":"HTTPS"}}`
	for ports, want := range map[string]string{
		`{"containerPort":8443}`: "the sidecar requires a port for plain HTTP",
		`{"containerPort":8443},{"name":"mysql","containerPort":3306}`: "if a port serves plain HTTP requests: --port 3306",
	} {
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a",`+probe+`,"ports":[`+ports+`]}]}}`), nil)
		harness.Equal(t, verdictOf(out), "skipped not-http")
		harness.Contains(t, out.Text, want)
		harness.Equal(t, strings.Contains(out.Text, "--port 8443"), false, out.Text)
	}
}

func TestErrorForPortsOfTwoContainers(t *testing.T) {
	out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]},{"name":"b","ports":[{"name":"web","containerPort":9000}]}]}}`), nil,
		portsOf(t, `"name":"shop"`, `{"name":"http","port":81,"targetPort":"http"},{"name":"web","port":82,"targetPort":"web"}`)...)
	harness.Equal(t, out.Reason, WhichPort)
	harness.Contains(t, out.Text, "the Services use the ports http (8080) and web (9000) for requests; select a port: --container a --port 8080 (")
}

func TestWarningForUnknownTargetPort(t *testing.T) {
	for target, want := range map[string]bool{"web": true, "http": false, "http-usermetric": false} {
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]}]}}`), nil, portsOf(t, `"name":"shop"`, `{"port":80,"targetPort":"`+target+`"}`)...)
		harness.Equal(t, slices.ContainsFunc(out.Warnings, func(w string) bool {
			return strings.HasPrefix(w, "Service shop has targetPort web, but no container has a port with this name")
		}), want, target)
	}
}
