package knative

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	netheader "knative.dev/networking/pkg/http/header"
	"knative.dev/serving/pkg/queue"
)

// timeoutBody is the body of the sidecar's response with status 504.
const timeoutBody = "request timeout"

// metricsService returns the Service whose ConfigMap enables Prometheus.
func metricsService(r *Release) string { return r.Name + "/metrics-prometheus" }

// timeOut sends a request that gets status 504 from the sidecar.
func (p *pod) timeOut() {
	p.t.Helper()
	p.image("timeout")
	p.waitUntilReady()
	answer, body := p.get(p.url("/?initialTimeout=5000"))
	if answer.StatusCode != http.StatusGatewayTimeout || body != timeoutBody {
		p.t.Fatalf("got %s %q, want 504 %q", answer.Status, body, timeoutBody)
	}
}

// The default template of the request log includes the size of the sidecar's own responses.
func requestLogHasSizeOfSidecarResponses(t *testing.T, _ *Release) {
	p := newPod(t, "request-log")
	p.start()
	p.timeOut()
	var entry struct {
		Request struct {
			Status       int    `json:"status"`
			ResponseSize string `json:"responseSize"`
		} `json:"httpRequest"`
	}
	poll(t, "the request log contains status 504", func() error {
		line, ok := p.sidecar.out.line(`"status": 504`)
		if !ok {
			return errors.New("there is no line with status 504")
		}
		return json.Unmarshal([]byte(line), &entry)
	})
	if got := entry.Request; got.Status != 504 || got.ResponseSize != "15" {
		t.Errorf(`got status %d and responseSize %q, want 504 and "15"`, got.Status, got.ResponseSize)
	}
}

// exposition scrapes the metrics like Prometheus.
func (p *pod) exposition(port string) string {
	p.t.Helper()
	answer, body := p.get("http://127.0.0.1:" + port + "/metrics")
	if answer.StatusCode != http.StatusOK {
		p.t.Fatalf("got %s, want 200", answer.Status)
	}
	return body
}

// The metrics contain the size of responses from the sidecar.
func metricsHaveSizeOfSidecarResponses(t *testing.T, r *Release) {
	p := newPod(t, metricsService(r))
	p.start()
	p.timeOut()
	size := regexp.MustCompile(`(?m)^http_server_response_body_size_bytes_sum\{[^}]*http_response_status_code="504"[^}]*\} (\S+)$`)
	poll(t, "the size of the response is counted", func() error {
		m := size.FindStringSubmatch(p.exposition("9091"))
		if m == nil || m[1] != "15" {
			return fmt.Errorf("got %q, want 15", m)
		}
		return nil
	})
}

// The ConfigMap can set another port for Prometheus.
func metricsPortFollowsConfigMap(t *testing.T, r *Release) {
	where := map[string]string{metricsService(r): "9091"}
	if r.OTLP {
		where[r.Name+"/metrics-prometheus-port"] = "9191"
	}
	for service, port := range where {
		t.Run(port, func(t *testing.T) {
			p := newPod(t, service)
			p.start()
			startApp(p)
			p.waitUntilReady()
			p.get(p.url("/"))
			name := "revision_request_count"
			if r.OTLP {
				name = "http_server_request_duration_seconds_count"
			}
			poll(t, name+" is exported", func() error { // retry, because a request is counted only after its response
				if got := p.exposition(port); !strings.Contains(got, "\n"+name+"{") {
					return fmt.Errorf("unexpected metrics:\n%s", got)
				}
				return nil
			})
		})
	}
}

// maxTags is the maximum number of route tags that become label values.
const maxTags = 16

// The label value of a route tag is the same as in Knative. Only the first maxTags tags become label
// values, so that clients cannot create an unlimited number of series.
func routeTagBecomesLabel(t *testing.T, r *Release) {
	p := newPod(t, metricsService(r))
	p.start()
	startApp(p)
	p.waitUntilReady()
	want := map[string]bool{}
	send := func(tag, defaultRoute string) string {
		var fields []string
		request := &http.Request{Header: http.Header{}}
		for name, value := range map[string]string{netheader.RouteTagKey: tag, netheader.DefaultRouteKey: defaultRoute} {
			if value != "" {
				fields = append(fields, name+": "+value)
				request.Header.Set(name, value)
			}
		}
		p.get(p.url("/"), fields...)
		return queue.GetRouteTagNameFromRequest(request)
	}
	for _, c := range [][2]string{{"", ""}, {"", "true"}, {"gone", "true"}, {"blue", ""}, {"green", "false"}} {
		want[send(c[0], c[1])] = true
	}
	p.waitForTags(func(got map[string]bool) bool { return maps.Equal(got, want) }, want)

	for i := range 2 * maxTags {
		send(fmt.Sprintf("tag-%d", i), "")
	}
	want[send("Not_A-DNS-Label!", "")] = false
	others := map[string]bool{"TAGGED": true, "kn:tagged": true}
	p.waitForTags(func(got map[string]bool) bool {
		tags := 0
		for value := range got {
			if strings.HasPrefix(value, "tag-") || value == "blue" || value == "green" {
				tags++
			} else if !want[value] && !others[value] {
				return false
			}
		}
		return tags == maxTags && (got["TAGGED"] || got["kn:tagged"])
	}, fmt.Sprintf("the metrics contain %d tags, and all other tags have the same label value", maxTags))
}

var routeTag = regexp.MustCompile(`(?m)^(?:revision_request_count|http_server_request_duration_seconds_count)\{[^}]*route_tag="([^"]*)"`)

// waitForTags waits until the label values of the request metric are correct.
func (p *pod) waitForTags(right func(map[string]bool) bool, want any) {
	p.t.Helper()
	poll(p.t, "the route tags are labels", func() error {
		got := map[string]bool{}
		for _, m := range routeTag.FindAllStringSubmatch(p.exposition("9091"), -1) {
			got[m[1]] = true
		}
		if !right(got) {
			return fmt.Errorf("got %q, want %v", slices.Sorted(maps.Keys(got)), want)
		}
		return nil
	})
}
