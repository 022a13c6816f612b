package inject

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// readinessProbe is the beginning of the readinessProbe field of a container.
const readinessProbe = `,"readinessProbe":`

var protocols = []struct{ fact, container, why string }{ // why is empty if the pod is injected
	{"a port without evidence", `"ports":[{"containerPort":8080}]`, ""},
	{"the port number of Redis", `"ports":[{"containerPort":6379}]`, "6379 is the port of Redis"},
	{"the port number of Redis with the name http", `"ports":[{"containerPort":6379,"name":"http"}]`, ""},
	{"the port number of Redis with an HTTP probe", `"ports":[{"containerPort":6379}]` + readinessProbe + `{"httpGet":{"port":6379}}`, ""},
	{"the port number of Kafka with a gRPC probe", `"ports":[{"containerPort":9092}]` + readinessProbe + `{"grpc":{"port":9092}}`, ""},
	{"an HTTP probe of another port", `"ports":[{"containerPort":6379}]` + readinessProbe + `{"httpGet":{"port":8080}}`, "6379"},
	{"the port number of PostgreSQL with a TCP probe", `"ports":[{"containerPort":5432}]` + readinessProbe + `{"tcpSocket":{"port":5432}}`, "5432 is the port of PostgreSQL"},
	{"a port name", `"ports":[{"containerPort":8080,"name":"mysql"}]`, "the port name is mysql"},
	{"a port name that ends with a protocol", `"ports":[{"containerPort":8080,"name":"client-mqtt"}]`, "the port name is client-mqtt"},
	{"a port name of Istio for TCP", `"ports":[{"containerPort":8080,"name":"tcp-web"}]`, "the port name is tcp-web"},
	{"a port name of Istio for HTTP", `"ports":[{"containerPort":3306,"name":"http-mysql"}]`, ""},
	{"gRPC", `"ports":[{"containerPort":50051,"name":"grpc"}]`, ""},
	{"a protocol as a part of a word", `"ports":[{"containerPort":8080,"name":"webdb2"}]`, ""},
	{"a port name for TLS", `"ports":[{"containerPort":8080,"name":"web-https"}]`, "is for TLS: the port name is web-https"},
	{"a port number for TLS", `"ports":[{"containerPort":8443}]`, "8443 is a port of HTTPS"},
	{"TLS by a probe", `"ports":[{"containerPort":8080}]` + readinessProbe + `{"httpGet":{"port":8080,"scheme":"HTTPS"}}`, "the readiness probe uses HTTPS"},
	{"a probe of another host", `"ports":[{"containerPort":443}]` + readinessProbe + `{"httpGet":{"port":443,"host":"example.com"}}`, "443 is a port of HTTPS"},
	{"only a port for metrics", `"ports":[{"containerPort":8080,"name":"metrics"}]`, "the port name is metrics"},
	{"only a port for metrics, with an HTTP probe", `"ports":[{"containerPort":8080,"name":"envoy-prom"}]` + readinessProbe + `{"httpGet":{"port":8080}}`, "the port name is envoy-prom"},
	{"only a port for health checks", `"ports":[{"containerPort":8080,"name":"health"}]`, "is not for requests: the port name is health"},
	{"a port for metrics and a port named web", `"ports":[{"containerPort":9090,"name":"metrics"},{"containerPort":8080,"name":"web"}]`, ""},
	{"a port for metrics and a port of a database", `"ports":[{"containerPort":9090,"name":"metrics"},{"containerPort":3306,"name":"mysql"}]`, "port mysql (3306)"},
	{"a port of a broker and a port named web", `"ports":[{"containerPort":5672,"name":"amqp"},{"containerPort":15672,"name":"web"}]`, ""},
	{"a database client in a probe command", `"ports":[{"containerPort":7000}]` + readinessProbe + `{"exec":{"command":["/bin/sh","-c","/opt/bin/redis-cli -h x ping"]}}`, "runs redis-cli"},
	{"the name of a client as a part of a word", `"ports":[{"containerPort":7000}]` + readinessProbe + `{"exec":{"command":["check-mysqladmin-x"]}}`, ""},
	{"an image of a database", `"image":"docker.io/bitnami/mongodb:7.0.2-debian-11","ports":[{"containerPort":7000}]`, "the image is docker.io/bitnami/mongodb:7.0.2-debian-11"},
	{"an image with a digest", `"image":"mysql@sha256:aa","ports":[{"containerPort":7000}]`, "the image is mysql"},
	{"an image of an exporter", `"image":"shop/redis_exporter:v1","ports":[{"containerPort":7000,"name":"http"}]` + readinessProbe + `{"httpGet":{"port":7000}}`, "the image is shop/redis_exporter:v1"},
	{"an image of a console", `"image":"mongo-express:1","ports":[{"containerPort":8081}]`, ""},
	{"a repository path with the name of a database", `"image":"registry.example/redis/web:1","ports":[{"containerPort":8081}]`, ""},
	{"a database with an HTTP probe", `"image":"cockroachdb/cockroach:v24","ports":[{"containerPort":26257,"name":"grpc"},{"containerPort":8080,"name":"http"}]` + readinessProbe + `{"httpGet":{"port":"http"}}`, "the image is cockroachdb/cockroach:v24"},
	{"a helper next to a database", `"ports":[{"containerPort":3306}]},{"name":"backup","ports":[{"containerPort":3307}]`, "3306 is the port of MySQL"},
	{"a web server next to a database", `"ports":[{"containerPort":3306}]},{"name":"web","ports":[{"containerPort":8080}]`, ""},
	{"an MQTT broker", `"image":"eclipse-` + "mos" + `quitto:2","ports":[{"containerPort":7000}]`, "the image is eclipse-"},
	{"PHP with FastCGI", `"image":"php:8.3-fpm-alpine","ports":[{"containerPort":9000}]`, "the image is php:8.3-fpm-alpine"},
	{"a game server", `"ports":[{"containerPort":25565}]`, "25565 is the port of Minecraft"},
	{"an IRC server", `"ports":[{"containerPort":6667}]`, "6667 is the port of IRC"},
	{"a server for medical images", `"ports":[{"containerPort":4242,"name":"dicom"}]`, "the port name is dicom"},
	{"a Modbus gateway", `"ports":[{"containerPort":5020}]`, "5020 is the port of Modbus"},
	{"a database for metrics", `"ports":[{"containerPort":2003},{"containerPort":2004}]`, "2003 is the port of Graphite"},
	{"Hazelcast with an HTTP probe", `"image":"hazelcast/hazelcast:5","ports":[{"containerPort":5701}]` + readinessProbe + `{"httpGet":{"port":5701,"path":"/hazelcast/health"}}`, "the protocol of Hazelcast"},
	{"a port name for STUN and TURN", `"ports":[{"containerPort":8080,"name":"turn-tcp"}]`, "the port name is turn-tcp"},
	{"the port numbers of STUN and TURN", `"ports":[{"containerPort":3478},{"containerPort":5349}]`, "3478 is the port of STUN and TURN"},
	{"Docker in Docker", `"image":"x/runner"},{"name":"docker","image":"docker:dind","ports":[{"containerPort":2375}]`, "2375 is the port of Docker"},
	{"log servers", `"image":"apache/airflow:2","ports":[{"containerPort":8794}]`, "the log servers of Airflow"},
	{"PHP in a web server", `"image":"php:8.3-apache","ports":[{"containerPort":80}]`, ""},
}

// A pod is skipped if there is evidence that its port is not for HTTP requests. The text contains
// the evidence. If the port option selects the port, the evidence is ignored.
func TestNonHTTPPortIsSkipped(t *testing.T) {
	for _, c := range protocols {
		pod := `{"metadata":{%s},"spec":{"containers":[{"name":"app",` + c.container + `}]}}`
		wantNotHTTP(t, c.fact, Inject(parse(t, strings.Replace(pod, "%s", "", 1)), nil), c.why)
		if c.why == "" || strings.Contains(c.fact, "TLS by a probe") { // the pod is refused even if the option selects the port
			continue
		}
		for _, port := range []string{"6379", "8080", "5432", "8443", "443", "3306", "9092", "7000", "9000"} {
			if strings.Contains(c.container, `"containerPort":`+port) {
				named := strings.Replace(pod, "%s", `"annotations":{"queue-proxy.dev/port":"`+port+`"}`, 1)
				out := Inject(parse(t, named), nil)
				harness.Equal(t, verdictOf(out), "injected", c.fact, "with the option port", out.Text)
			}
		}
	}
}

// wantNotHTTP checks that a pod is skipped as not-http and that the text contains why. If why is
// empty, the pod must be injected.
func wantNotHTTP(t *testing.T, fact string, out Outcome, why string) {
	t.Helper()
	want := "injected"
	if why != "" {
		want = "skipped not-http"
	}
	harness.Equal(t, verdictOf(out), want, fact, out.Text)
	harness.Contains(t, out.Text, why, fact)
}

// portsOf returns the ports of a Service for pods with the label app=web.
func portsOf(t *testing.T, metadata, ports string) []ServicePort {
	t.Helper()
	s, ok := ReadService(parse(t, `{"kind":"Service","metadata":{`+metadata+`},"spec":{"selector":{"app":"web"},"ports":[`+ports+`]}}`))
	if !ok {
		t.Fatalf("invalid Service %s", ports)
	}
	return s.PortsOf("", map[string]string{"app": "web", "more": "x"})
}

// servicePorts contains containers with the ports of a Service, and the port that is selected.
var servicePorts = []struct {
	fact, containers, service string
	port                      int32 // expected port; 0 if the pod is not injected
	reason                    string
}{
	{"an undeclared port", `{"name":"a"}`, `{"port":80,"targetPort":5000}`, 5000, ""},
	{"an undeclared port without targetPort", `{"name":"a"}`, `{"port":8000}`, 8000, ""},
	{"two ports, one for metrics", `{"name":"a"}`, `{"port":80,"targetPort":5000},{"name":"metrics","port":9102}`, 5000, ""},
	{"two undeclared ports", `{"name":"a"}`, `{"port":82,"targetPort":5000},{"port":81,"targetPort":3000}`, 0, WhichPort},
	{"two undeclared ports, one as port 80", `{"name":"a"}`, `{"port":81,"targetPort":5000},{"port":80,"targetPort":3000}`, 0, WhichPort},
	{"two undeclared ports, one without evidence", `{"name":"a"}`, `{"port":81,"targetPort":7777},{"port":80,"targetPort":3000}`, 3000, ""},
	{"an undeclared name", `{"name":"a"}`, `{"port":80,"targetPort":"web"}`, 0, NoPort},
	{"UDP", `{"name":"a"}`, `{"port":80,"targetPort":5000,"protocol":"UDP"}`, 0, NotHTTP},
	{"a Service and a readiness probe", `{"name":"a","readinessProbe":{"tcpSocket":{"port":7000}}}`, `{"port":80,"targetPort":5000}`, 5000, ""},
	{"an undeclared port and a declared port for metrics", `{"name":"a","ports":[{"name":"metrics","containerPort":9102}]}`, `{"port":80,"targetPort":5000}`, 5000, ""},
	{"the undeclared port of a database", `{"name":"a","image":"mysql:8"}`, `{"port":3306}`, 0, NotHTTP},
	{"two containers, one with a probe", `{"name":"a","livenessProbe":{"tcpSocket":{"port":5000}}},{"name":"b"}`, `{"port":80,"targetPort":5000}`, 5000, ""},
	{"two containers without evidence", `{"name":"a"},{"name":"b"}`, `{"port":80,"targetPort":5000}`, 0, NoPort},
	{"one of two declared ports", `{"name":"a","ports":[{"containerPort":1000},{"containerPort":1001}]}`, `{"port":80,"targetPort":1001}`, 1001, ""},
	{"both declared ports", `{"name":"a","ports":[{"containerPort":1000},{"containerPort":1001}]}`, `{"port":82,"targetPort":1001},{"port":81,"targetPort":1000}`, 0, WhichPort},
	{"a named port of the second container", `{"name":"a","ports":[{"containerPort":1000}]},{"name":"b","ports":[{"containerPort":1001,"name":"web"}]}`, `{"port":80,"targetPort":"web"}`, 1001, ""},
	{"appProtocol for HTTP and the name tcp", `{"name":"a","ports":[{"containerPort":1000,"name":"tcp"}]}`, `{"port":80,"targetPort":1000,"appProtocol":"kubernetes.io/h2c"}`, 1000, ""},
	{"appProtocol for TLS and the name http", `{"name":"a","ports":[{"containerPort":1000,"name":"http"}]}`, `{"port":80,"targetPort":"http","appProtocol":"https"}`, 0, NotHTTP},
	{"an unknown appProtocol with a prefix", `{"name":"a","ports":[{"containerPort":1000}]}`, `{"port":80,"targetPort":1000,"appProtocol":"example.com/own"}`, 1000, ""},
	{"the name redis in the Service", `{"name":"a","ports":[{"containerPort":1000}]}`, `{"name":"redis","port":80,"targetPort":1000}`, 0, NotHTTP},
	{"the names https and http in the Service", `{"name":"a","ports":[{"containerPort":1000}]}`, `{"name":"https","port":443,"targetPort":1000},{"name":"http","port":80,"targetPort":1000}`, 0, NotHTTP},
	{"the names https and http in the Service, and the name http in the pod", `{"name":"a","ports":[{"name":"http","containerPort":1000}]}`, `{"name":"https","port":443,"targetPort":1000},{"name":"http","port":80,"targetPort":1000}`, 1000, ""},
	{"the names https and http in the Service, and port 80 in the pod", `{"name":"a","ports":[{"containerPort":80}]}`, `{"name":"https","port":443,"targetPort":80},{"name":"http","port":80}`, 80, ""},
	{"ports 443 and 80 in the Service, and a health check", `{"name":"a","ports":[{"containerPort":8080}],"readinessProbe":{"httpGet":{"port":8080,"path":"/healthz"}}}`, `{"name":"a","port":443,"targetPort":8080},{"name":"b","port":80,"targetPort":8080}`, 0, NotHTTP},
	{"the names https and http in the Service, and a flag for HTTP", `{"name":"a","args":["--http-port=1000"],"ports":[{"containerPort":1000}]}`, `{"name":"https","port":443,"targetPort":1000},{"name":"http","port":80,"targetPort":1000}`, 1000, ""},
	{"the names https and http in the Service, and the flag insecure", `{"name":"a","args":["serve","--insecure"],"ports":[{"containerPort":1000}]}`, `{"name":"https","port":443,"targetPort":1000},{"name":"http","port":80,"targetPort":1000}`, 1000, ""},
	{"the names https and http in the Service, and another flag", `{"name":"a","args":["--insecure-skip-verify"],"ports":[{"containerPort":1000}]}`, `{"name":"https","port":443,"targetPort":1000},{"name":"http","port":80,"targetPort":1000}`, 0, NotHTTP},
	{"the names https and http in the Service, and a variable of the server", `{"name":"a","env":[{"name":"A_SERVER_INSECURE","value":"true"}],"ports":[{"containerPort":1000}]}`, `{"name":"https","port":443,"targetPort":1000},{"name":"http","port":80,"targetPort":1000}`, 1000, ""},
	{"the names https and http in the Service, and a variable of a client", `{"name":"a","env":[{"name":"OTEL_EXPORTER_INSECURE","value":"true"}],"ports":[{"containerPort":1000}]}`, `{"name":"https","port":443,"targetPort":1000},{"name":"http","port":80,"targetPort":1000}`, 0, NotHTTP},
	{"gRPC on port 443", `{"name":"a","ports":[{"name":"grpc","containerPort":1000}]}`, `{"name":"grpc","port":443,"targetPort":1000}`, 0, NotHTTP},
	{"gRPC on port 8443", `{"name":"a","ports":[{"containerPort":1000}]}`, `{"name":"grpc-api","port":8443,"targetPort":1000}`, 0, NotHTTP},
	{"gRPC in the pod and port 443", `{"name":"a","ports":[{"name":"grpc","containerPort":1000}]}`, `{"port":443,"targetPort":"grpc"}`, 0, NotHTTP},
	{"gRPC on ports 443 and 80", `{"name":"a","ports":[{"name":"grpc","containerPort":1000}]}`, `{"name":"grpc","port":443,"targetPort":1000},{"name":"old","port":80,"targetPort":1000}`, 0, NotHTTP},
	{"gRPC on port 443 with a gRPC probe", `{"name":"a","ports":[{"name":"grpc","containerPort":1000}],"readinessProbe":{"grpc":{"port":1000}}}`, `{"name":"grpc","port":443,"targetPort":1000}`, 1000, ""},
	{"the name web on port 443", `{"name":"a","ports":[{"containerPort":1000}]}`, `{"name":"web","port":443,"targetPort":1000}`, 0, NotHTTP},
	{"gRPC with appProtocol tcp", `{"name":"a","ports":[{"name":"rpc","containerPort":1000}]}`, `{"name":"grpc-rpc","port":1000,"appProtocol":"tcp"}`, 1000, ""},
	{"a port with the name of its container, and http in the Service", `{"name":"redis-console","ports":[{"name":"redis-console","containerPort":1000}]}`, `{"name":"http","port":81,"targetPort":1000}`, 1000, ""},
	{"a port with the name of its container, and another name in the Service", `{"name":"redis-console","ports":[{"name":"redis-console","containerPort":1000}]}`, `{"name":"x","port":81,"targetPort":1000}`, 0, NotHTTP},
	{"the number of memberlist and http in the Service", `{"name":"a"}`, `{"name":"http","port":7946}`, 0, WhichPort},
	{"the number of Alertmanager's peers and http in the Service", `{"name":"a","ports":[{"containerPort":9093},{"name":"x","containerPort":9094}]}`, `{"name":"http","port":9094}`, 0, WhichPort},
	{"the name gossip and http in the Service", `{"name":"a","ports":[{"name":"gossip","containerPort":1000}]}`, `{"name":"http","port":1000}`, 0, WhichPort},
	{"Jenkins with port 50000 for agents", `{"name":"a","ports":[{"containerPort":8080},{"containerPort":50000}]}`, `{"name":"ui","port":8080},{"name":"agents","port":50000}`, 8080, ""},
	{"Jenkins with a port called httpport", `{"name":"a","ports":[{"containerPort":8088},{"containerPort":50000}]}`, `{"name":"httpport","port":8088},{"name":"jnlpport","port":50000}`, 8088, ""},
	{"Db2 with a helper", `{"name":"a","image":"icr.io/db2_community/db2:11","ports":[{"containerPort":50000}]}`, `{"port":50000}`, 0, NotHTTP},
	{"a port that a probe uses", `{"name":"a","livenessProbe":{"tcpSocket":{"port":7000}}}`, `{"port":7000},{"name":"http","port":7001}`, 7000, ""},
	{"a port next to that of a database", `{"name":"a","ports":[{"containerPort":5672},{"containerPort":8080}]}`, `{"port":5672},{"port":8080}`, 0, NotHTTP},
	{"a port next to another container with a database", `{"name":"a","ports":[{"containerPort":5000}]},{"name":"b","ports":[{"containerPort":6379}]}`, `{"port":5000}`, 5000, ""},
	{"two protocols", `{"name":"a","ports":[{"containerPort":1000,"name":"grpc"},{"containerPort":1001}]}`, `{"port":1000},{"port":1001}`, 0, WhichPort},
	{"the name tcp and a common number", `{"name":"a","ports":[{"containerPort":8080}]}`, `{"name":"tcp-service","port":8080}`, 0, NotHTTP},
	{"the name tcp and a port for HTTP", `{"name":"a","ports":[{"containerPort":8080}]}`, `{"name":"tcp-service","port":8080},{"name":"http","port":80,"targetPort":8080}`, 8080, ""},
	{"the name tcp and a probe", `{"name":"a","ports":[{"containerPort":8080}],"livenessProbe":{"httpGet":{"port":8080}}}`, `{"name":"tcp-port","port":8080}`, 8080, ""},
	{"the name tcp and a port called http", `{"name":"a","ports":[{"name":"http","containerPort":8080}]}`, `{"name":"tcp-port","port":8080}`, 8080, ""},
	{"the name tcp and a flag", `{"name":"a","args":["--http-port=8080"],"ports":[{"containerPort":8080}]}`, `{"name":"tcp-port","port":8080}`, 8080, ""},
	{"the name tcp and port 80", `{"name":"a","ports":[{"containerPort":8080}]}`, `{"name":"tcp","port":80,"targetPort":8080}`, 8080, ""},
	{"the name tcp in the pod", `{"name":"a","ports":[{"name":"tcp-port","containerPort":8080}]}`, `{"name":"tcp-port","port":8080}`, 0, NotHTTP},
	{"the name tcp and another number", `{"name":"a","ports":[{"containerPort":1000}]}`, `{"name":"tcp-service","port":1000}`, 0, NotHTTP},
	{"only port 443", `{"name":"a","ports":[{"containerPort":1000}]}`, `{"port":443,"targetPort":1000}`, 0, NotHTTP},
}

// A Service that offers a port as HTTP and as HTTPS is evidence for TLS, so CompactPorts
// must keep both ports of the Service.
func TestCompactPortsKeepsServiceWithTLS(t *testing.T) {
	var ports []ServicePort
	for i := range maxNamedServices {
		ports = append(ports, portsOf(t, fmt.Sprintf(`"name":"plain-%d"`, i), `{"name":"http","port":80,"targetPort":1000}`)...)
	}
	ports = append(ports, portsOf(t, `"name":"both"`, `{"name":"http","port":80,"targetPort":1000},{"name":"https","port":443,"targetPort":1000}`)...)
	pod := parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","ports":[{"containerPort":1000}]}]}}`)
	want := Inject(pod, nil, ports...)
	harness.Equal(t, want.Reason, NotHTTP, want.Text)
	harness.Equal(t, Inject(pod, nil, CompactPorts(ports)...).Text, want.Text)
}

// The target ports and port names of Services are evidence, and appProtocol overrides other
// evidence.
func TestServicesSelectPort(t *testing.T) {
	for _, c := range servicePorts {
		pod := parse(t, `{"metadata":{},"spec":{"containers":[`+c.containers+`]}}`)
		out := Inject(pod, nil, portsOf(t, `"name":"shop"`, c.service)...)
		if out.AppPort != c.port || out.Reason != c.reason {
			t.Errorf("%s: got port %d, %s (%s): %s; want %d (%s)", c.fact, out.AppPort, out.Verdict, out.Reason, out.Text, c.port, c.reason)
		}
	}
}

func TestReadinessProbeSelectsUndeclaredPort(t *testing.T) {
	for text, want := range map[string]int32{
		`{"httpGet":{"port":5000}}`: 5000, `{"tcpSocket":{"port":5001}}`: 5001, `{"grpc":{"port":5002}}`: 5002,
		`{"httpGet":{"port":5000,"host":"other"}}`: 0, `{"exec":{"command":["x"]}}`: 0, `{"tcpSocket":{"port":6379}}`: 0, `{"httpGet":{"port":5000,"scheme":"HTTPS"}}`: 0,
	} {
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","readinessProbe":`+text+`}]}}`), nil)
		if out.AppPort != want || want > 0 && !strings.Contains(out.Text, "but the readiness probe uses the port") {
			t.Errorf("%s: got port %d, %s (%s): %s; want %d", text, out.AppPort, out.Verdict, out.Reason, out.Text, want)
		}
	}
}

// The explain command prints these values.
func TestPortsHaveReasonsAndConfidence(t *testing.T) {
	get := func(path string) string { return `"readinessProbe":{"httpGet":{"port":8080,"path":"` + path + `"}},` }
	for _, c := range []struct{ fact, container, service, want string }{
		{"a number", `"ports":[{"containerPort":8080}]`, "", "8080 low [declared; 8080 is a common port of HTTP]"},
		{"a request path", get("/") + `"ports":[{"containerPort":8080}]`, "", "8080 low [declared; probe GET /]"},
		{"a health path", get("/healthz") + `"ports":[{"containerPort":8080}]`, "", "8080 low [declared]"},
		{"a name", `"ports":[{"containerPort":9000,"name":"http"}]`, "", "9000 high [declared as http]"},
		{"a Service by number", `"ports":[{"containerPort":7778}]`, `{"port":81,"targetPort":7778}`, "7778 low [Service shop uses the port; declared]"},
		{"a Service by name", `"ports":[{"containerPort":7778,"name":"web"}]`, `{"port":81,"targetPort":"web"}`, "7778 high [Service shop uses the port; declared as web]"},
		{"appProtocol", `"ports":[{"containerPort":7778}]`, `{"port":81,"targetPort":7778,"appProtocol":"h2c"}`, "7778 high [Service shop uses the port with appProtocol h2c; declared]"},
		{"an undeclared port in a Service", `"image":"x"`, `{"port":80,"targetPort":5000}`, "5000 high [Service shop uses the port; Service shop exposes the port as port 80]"},
		{"a known image", `"image":"x/shop-operator","ports":[{"containerPort":9000,"name":"http"}]`, "", "9000 low [declared as http; but the image is x/shop-operator (an operator)]"},
	} {
		var ports []ServicePort
		if c.service != "" {
			ports = portsOf(t, `"name":"shop"`, c.service)
		}
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a",`+c.container+`}]}}`), nil, ports...)
		got := ""
		for _, p := range out.Ports {
			if p.Selected {
				got = fmt.Sprintf("%d %s [%s]", p.Number, p.Confidence, strings.Join(p.Reasons, "; "))
			}
		}
		harness.Equal(t, got, c.want, c.fact, out.Text)
		if sure := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a",`+c.container+`}]}}`), Options{sureOption: "high"}, ports...); (sure.Reason == Unsure) != (out.Confidence == Low) {
			t.Errorf("%s: got %s with sure=high, and confidence %s", c.fact, verdictOf(sure), out.Confidence)
		}
	}
}

func TestMetricsServiceSelectsNoPort(t *testing.T) {
	ports := portsOf(t, `"name":"shop-metrics"`, `{"name":"http","port":8080}`)
	out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a"}]}}`), nil, ports...)
	harness.Equal(t, verdictOf(out), "skipped not-http", out.Text)
	harness.Contains(t, out.Text, "the port belongs to Service shop-metrics")
}
