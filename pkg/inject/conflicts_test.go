package inject

import (
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestSidecarAvoidsUndeclaredPorts(t *testing.T) {
	for _, c := range []struct {
		name, metadata, container, more string
		options                         Options
		want                            []int32 // ports for requests, administration, the autoscaler, metrics and status
	}{
		{name: "no number", want: []int32{8012, 8022, 9090, 9091, 8008}},
		{name: "a flag and a value", container: `"args":["--metrics-port","9090"]`, want: []int32{8012, 8022, 19090, 9091, 8008}},
		{name: "an address", container: `"args":["--web.listen-address=:9091"]`, want: []int32{8012, 8022, 9090, 19091, 8008}},
		{name: "a script", container: `"command":["sh","-c","serve -l 0.0.0.0:8012 & wait"]`, want: []int32{18012, 8022, 9090, 9091, 8008}},
		{name: "a system property", container: `"args":["java","-Dmanagement.server.port=9091"]`, want: []int32{8012, 8022, 9090, 19091, 8008}},
		{name: "a variable", container: `"env":[{"name":"MANAGEMENT_SERVER_PORT","value":"9090"}]`, want: []int32{8012, 8022, 19090, 9091, 8008}},
		{name: "an annotation", metadata: `"annotations":{"prometheus.io/port":"9090"}`, want: []int32{8012, 8022, 19090, 9091, 8008}},
		{name: "a known image", container: `"image":"docker.io/prom/prometheus:v3.1.0"`, want: []int32{8012, 8022, 19090, 9091, 8008}},
		{name: "another container", more: `,"initContainers":[{"name":"b","restartPolicy":"Always","args":["--admin=127.0.0.1:8022","--status","8008"]}]`, want: []int32{8012, 18022, 9090, 9091, 18008}},
		{name: "an init container that ends", more: `,"initContainers":[{"name":"b","args":["--port=9090"]}]`, want: []int32{8012, 8022, 9090, 9091, 8008}},
		{name: "a longer number", container: `"args":["--id=190901","--port=09090"]`, want: []int32{8012, 8022, 9090, 9091, 8008}},
		{name: "an option", container: `"args":["--metrics-port=9090"]`, options: Options{"autoscaler-port": "9090"}, want: []int32{8012, 8022, 9090, 9091, 8008}},
	} {
		container := `"name":"a","ports":[{"name":"http","containerPort":8080}]`
		if c.container != "" {
			container += "," + c.container
		}
		out := Inject(parse(t, `{"metadata":{`+c.metadata+`},"spec":{"containers":[{`+container+`}]`+c.more+`}}`), c.options)
		got := []int32{out.ServingPort}
		for _, name := range []string{"ADMIN_PORT", "AUTOSCALER_PORT", "METRICS_PORT", "STATUS_PORT"} {
			got = append(got, environPort(out, name))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got ports %v (%s), want %v", c.name, got, out.Text, c.want)
		}
	}
}

// environPort returns the port in a variable of the sidecar, or the default of the port.
func environPort(out Outcome, name string) int32 {
	for _, u := range defaultPorts {
		o, _ := find(u.option)
		if o.variable != name {
			continue
		}
		for _, change := range out.Changes {
			if strings.Contains(string(change.Value), `{"name":"`+name+`","value":"`+decimal(u.number+portOffset)+`"}`) {
				return u.number + portOffset
			}
		}
		return u.number
	}
	return 0
}

func TestMetricsAnnotationContainsMovedPort(t *testing.T) {
	out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","args":["--metrics-port=9091"],"ports":[{"name":"http","containerPort":8080}]}]}}`), nil)
	i := slices.IndexFunc(out.Changes, func(c Change) bool { return strings.HasSuffix(c.Path, "/prometheus.io~1port") })
	if i < 0 {
		t.Fatalf("got no annotation (%s), want prometheus.io/port", out.Text)
	}
	harness.Equal(t, string(out.Changes[i].Value), `"19091"`)
	harness.Contains(t, strings.Join(out.Warnings, "\n"), "an argument of container a uses port 9091, so metrics-port of the sidecar is 19091")
}

func TestConflictOfDefaultAndReplacementPortIsRefused(t *testing.T) {
	out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","args":["--ports=9091,19091"],"ports":[{"name":"http","containerPort":8080}]}]}}`), nil)
	harness.Equal(t, verdictOf(out), "refused port-taken", out.Text)
	harness.Contains(t, out.Text, "set the option metrics-port to another port")
}
