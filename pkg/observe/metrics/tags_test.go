package metrics

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	dto "github.com/prometheus/client_model/go"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// tagging returns the observation of a request with a route tag.
func tagging(tag, byDefault string, status int) *observation.Observation {
	o := observed("GET", 1, 1, status, observation.OK)
	o.Exchange = exchange{request: &http.Request{Header: http.Header{"Knative-Serving-Tag": {tag}, "Knative-Serving-Default-Route": {byDefault}}}}
	return &o
}

// tagsOf returns the value of a metric in a scrape for each value of a label.
func tagsOf(t *testing.T, m *Metrics, metric, label string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for series, n := range samples(scrape(t, m.Handler(), text), metric+"{") {
		_, rest, _ := strings.Cut(series, `,`+label+`="`)
		value, _, _ := strings.Cut(rest, `"`)
		found[value] = n
	}
	return found
}

func wantTags(t *testing.T, m *Metrics, want map[string]string) {
	t.Helper()
	harness.Equal(t, tagsOf(t, m, "revision_request_count", "route_tag"), want, "route_tag")
	head := map[string]string{}
	for value, n := range want {
		if upper := strings.ToUpper(value); upper == value && value != "" && value[0] >= 'A' {
			value = "kn:" + strings.ToLower(value)
		}
		head[value] = n
	}
	harness.Equal(t, tagsOf(t, m, "http_server_request_duration_seconds_count", "kn_route_tag"), head, "kn_route_tag")
}

func TestRouteTagLabelValues(t *testing.T) {
	m := newMetrics(t, options("all"))
	for _, c := range [][2]string{
		{"", ""}, {"", "true"}, {"", "false"}, {"blue", "true"}, {"blue", ""}, {"blue", "false"}, {"green-2", ""},
		{"Blue", ""}, {"a_b", ""}, {"TAGGED", ""}, {"kn:default", ""}, {strings.Repeat("a", 64), ""},
	} {
		m.Observe(tagging(c[0], c[1], 200))
	}
	wantTags(t, m, map[string]string{"DISABLED": "1", "DEFAULT": "2", "UNDEFINED": "1", "blue": "2", "green-2": "1", "TAGGED": "5"})
}

func TestFirst16RouteTagsAreLabelValues(t *testing.T) {
	m := newMetrics(t, options("all"))
	want := map[string]string{"TAGGED": "40"}
	for round := range 2 {
		for i := range 36 {
			m.Observe(tagging(fmt.Sprint("tag-", i), "", 200))
			if i < maxTags && round == 0 {
				want[fmt.Sprint("tag-", i)] = "2"
			}
		}
	}
	wantTags(t, m, want)
}

func TestConcurrentRequestsUseSame16RouteTags(t *testing.T) {
	m := newMetrics(t, options("all"))
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 100 {
				m.Observe(tagging(fmt.Sprint("t", (i+worker)%25), "", 200))
			}
		})
	}
	all.Wait()
	old, head := tagsOf(t, m, "revision_request_count", "route_tag"), tagsOf(t, m, "http_server_request_duration_seconds_count", "kn_route_tag")
	head["TAGGED"] = head["kn:tagged"]
	delete(head, "kn:tagged")
	if len(old) != maxTags+1 || !maps.Equal(old, head) {
		t.Errorf("got %v and %v, want the same %d names and TAGGED in both", old, head, maxTags)
	}
}

// Because the app responds with any status code, 16 names could create 16 series for each combination of status,
// method and protocol.
func TestNamedRouteTagSeriesAreLimited(t *testing.T) {
	m := newMetrics(t, options("knative-head"))
	requests := 0.0
	for i := range maxTags {
		for status := 100; status < 600; status++ {
			for _, method := range []string{"GET", "PUT", "BREW"} {
				o := tagging(fmt.Sprint("t", i), "", status)
				o.Method = method
				m.Observe(o)
				requests++
			}
		}
	}
	families, err := m.gatherer.Gather()
	harness.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "http_server_request_duration_seconds" && f.GetName() != "http_client_request_duration_seconds" {
			continue
		}
		named, counted := 0, 0.0
		for _, s := range f.GetMetric() {
			counted += float64(s.GetHistogram().GetSampleCount())
			if !slices.ContainsFunc(s.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "kn_route_tag" && l.GetValue() == "kn:tagged" }) {
				named++
			}
		}
		if named != maxNamed || counted != requests {
			t.Errorf("%s: got %d series with named tags and %v requests, want %d and %v", f.GetName(), named, counted, maxNamed, requests)
		}
	}
}

// An app that responds with arbitrary status codes could create tens of thousands of series of 6 KB.
func TestKnativeHeadSeriesAreLimited(t *testing.T) {
	const few = 2 * 3 * 5 * firstNamed // schemes, versions, classes and tags for the method _OTHER
	m := newMetrics(t, options("knative-head"))
	requests := uint64(0)
	for i, method := range otelMethods {
		for status := range 500 {
			for n := range 6 {
				o := tagging("", []string{"", "true"}[i%2], 100+status)
				o.Method, o.Major, o.Minor, o.TLS = method, 1+n/4, n%2, n%3 == 0
				m.Observe(o)
				requests++
			}
		}
	}
	for _, name := range []string{"http_server_request_duration_seconds", "http_client_request_duration_seconds"} {
		counted := uint64(0)
		series := gathered(t, m, name).GetMetric()
		for _, s := range series {
			counted += s.GetHistogram().GetSampleCount()
		}
		if len(series) > maxMade+few || counted != requests {
			t.Errorf("%s: got %d series and %d requests, want at most %d series and %d requests", name, len(series), counted, maxMade+few, requests)
		}
	}
	if got := int(m.head.server.made.Load()); got < maxMade {
		t.Errorf("got %d series, want at least %d so that the limit is tested", got, maxMade)
	}
}

func TestRouteTagLookupDoesNotAllocate(t *testing.T) {
	m := newMetrics(t, options("all"))
	full := newMetrics(t, options("all"))
	for i := range maxTags {
		full.Observe(tagging(fmt.Sprint("t", i), "", 200))
	}
	for name, c := range map[string]struct {
		m *Metrics
		o *observation.Observation
	}{
		"no tag":        {m, tagging("", "", 200)},
		"valid tag":     {m, tagging("blue", "", 200)},
		"malformed tag": {m, tagging(strings.Repeat("B", 10_000), "", 200)},
		"17th tag":      {full, tagging("blue", "", 200)},
	} {
		c.m.Observe(c.o)
		harness.Equal(t, testing.AllocsPerRun(100, func() { c.m.Observe(c.o) }), 0, name, "allocations")
	}
}

// The label must be a copy, because the engine reuses the memory of the strings for the next request.
func TestRouteTagLabelCopiesString(t *testing.T) {
	m := newMetrics(t, options("all"))
	memory := []byte("blue")
	m.Observe(tagging(unsafe.String(unsafe.SliceData(memory), len(memory)), "", 200))
	copy(memory, "gree")
	m.Observe(tagging("blue", "", 200))
	wantTags(t, m, map[string]string{"blue": "2"})
}
