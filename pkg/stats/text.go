package stats

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Labels say whose numbers they are. An empty one is left out of every text: to
// Prometheus a label without a value and no label are the same.
type Labels struct {
	Namespace     string // destination_namespace
	Configuration string // destination_configuration
	Revision      string // destination_revision
	Pod           string // destination_pod, and pod_name of the protobuf
}

// label is one of them under its name on the wire.
type label struct{ name, value string }

func (l Labels) list() []label {
	return slices.DeleteFunc([]label{
		{"destination_namespace", l.Namespace},
		{"destination_configuration", l.Configuration},
		{"destination_revision", l.Revision},
		{"destination_pod", l.Pod},
	}, func(one label) bool { return one.value == "" })
}

// validUTF8 is l with every byte that is not UTF-8 replaced: no format that is
// served here can carry one.
func (l Labels) validUTF8() Labels {
	for _, value := range []*string{&l.Namespace, &l.Configuration, &l.Revision, &l.Pod} {
		*value = strings.ToValidUTF8(*value, "\uFFFD")
	}
	return l
}

// gauge is one number of a report with its name, which is the same in every
// text.
type gauge struct {
	name, help string
	value      float64
}

// gauges lists what a text tells. The first five are what the autoscaler of
// Knative 0.9 to 0.16 reads, under the names that it looks for. Before the first
// full second all are 0.
func gauges(r Report) []gauge {
	return []gauge{
		{"queue_average_concurrent_requests", "Requests in flight, averaged over the last full second.", r.Last.Concurrency},
		{"queue_average_proxied_concurrent_requests", "Requests in flight that came through the activator, averaged over the last full second.", r.Last.ProxiedConcurrency},
		{"queue_requests_per_second", "Requests that arrived in the last full second.", r.Last.Requests},
		{"queue_proxied_operations_per_second", "Requests that arrived through the activator in the last full second.", r.Last.ProxiedRequests},
		{"process_uptime", "Seconds since the start, as of the end of the last full second.", r.Uptime.Seconds()},

		{"queue_average_concurrent_requests_6s", "Requests in flight, averaged over the last 6 full seconds.", r.Last6.Concurrency},
		{"queue_average_proxied_concurrent_requests_6s", "Requests in flight that came through the activator, averaged over the last 6 full seconds.", r.Last6.ProxiedConcurrency},
		{"queue_requests_per_second_6s", "Requests that arrived per second, averaged over the last 6 full seconds.", r.Last6.Requests},
		{"queue_proxied_operations_per_second_6s", "Requests that arrived through the activator per second, averaged over the last 6 full seconds.", r.Last6.ProxiedRequests},

		{"queue_average_concurrent_requests_60s", "Requests in flight, averaged over the last 60 full seconds.", r.Last60.Concurrency},
		{"queue_average_proxied_concurrent_requests_60s", "Requests in flight that came through the activator, averaged over the last 60 full seconds.", r.Last60.ProxiedConcurrency},
		{"queue_requests_per_second_60s", "Requests that arrived per second, averaged over the last 60 full seconds.", r.Last60.Requests},
		{"queue_proxied_operations_per_second_60s", "Requests that arrived through the activator per second, averaged over the last 60 full seconds.", r.Last60.ProxiedRequests},
	}
}

// appendPrometheus appends r in the Prometheus text format 0.0.4, gauges only.
// Windows that are not full yet are averages over the seconds that exist; see
// [Window]. Labels must be valid UTF-8.
func appendPrometheus(dst []byte, l Labels, r Report) []byte {
	set := l.prometheus()
	for _, g := range gauges(r) {
		dst = append(dst, "# HELP "+g.name+" "+g.help+"\n# TYPE "+g.name+" gauge\n"+g.name+set+" "...)
		dst = append(strconv.AppendFloat(dst, g.value, 'g', -1, 64), '\n')
	}
	return dst
}

// appendOpenMetrics appends r as OpenMetrics text 1.0.0. For gauges that is the
// older format and a mark for its end.
func appendOpenMetrics(dst []byte, l Labels, r Report) []byte {
	return append(appendPrometheus(dst, l, r), "# EOF\n"...)
}

// prometheus is the set of labels with braces, or "" if it is empty.
func (l Labels) prometheus() string {
	var parts []string
	for _, one := range l.list() {
		parts = append(parts, one.name+`="`+escape.Replace(one.value)+`"`)
	}
	if parts == nil {
		return ""
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// escape makes a label value fit between quotes, in the Prometheus text format
// as in OpenMetrics. No other character may be escaped.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// appendJSON appends r as one flat JSON object: the labels, then the gauges
// under the names that they have in the text formats, then a line end. A value
// is reached by its name alone, for example by KEDA's valueLocation.
func appendJSON(dst []byte, l Labels, r Report) []byte {
	between := byte('{')
	for _, one := range l.list() {
		value, _ := json.Marshal(one.value) // a string has a JSON form always
		dst = append(append(dst, between), `"`+one.name+`":`...)
		dst = append(dst, value...)
		between = ','
	}
	for _, g := range gauges(r) {
		dst = append(append(dst, between), `"`+g.name+`":`...)
		dst = strconv.AppendFloat(dst, g.value, 'g', -1, 64)
		between = ','
	}
	return append(dst, "}\n"...)
}
