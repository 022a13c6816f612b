package stats

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Labels are the labels of the statistics. Empty labels are omitted, because they are equivalent to missing labels in
// Prometheus.
type Labels struct {
	Namespace     string // destination_namespace
	Configuration string // destination_configuration
	Revision      string // destination_revision
	Pod           string // destination_pod, and pod_name in protobuf
}

// label is the name and the value of a label in the output.
type label struct{ name, value string }

// list returns the labels that are not empty.
func (l Labels) list() []label {
	return slices.DeleteFunc([]label{
		{"destination_namespace", l.Namespace},
		{"destination_configuration", l.Configuration},
		{"destination_revision", l.Revision},
		{"destination_pod", l.Pod},
	}, func(one label) bool { return one.value == "" })
}

// validUTF8 returns l with invalid UTF-8 replaced, because all formats require valid UTF-8.
func (l Labels) validUTF8() Labels {
	for _, value := range []*string{&l.Namespace, &l.Configuration, &l.Revision, &l.Pod} {
		*value = strings.ToValidUTF8(*value, "\uFFFD")
	}
	return l
}

// gauge is a value of a report. Its name is the same in all text formats.
type gauge struct {
	name, help string
	value      float64
}

// gauges returns the values of the text formats. The autoscaler of Knative 0.9 to 0.16 reads the first five gauges.
// Before the first full second, all values are 0.
func gauges(r Report) []gauge {
	return []gauge{
		{"queue_average_concurrent_requests", "Average number of requests in flight in the last full second.", r.Last.Concurrency},
		{"queue_average_proxied_concurrent_requests", "Average number of requests from the activator in flight in the last full second.", r.Last.ProxiedConcurrency},
		{"queue_requests_per_second", "Number of requests that arrived in the last full second.", r.Last.Requests},
		{"queue_proxied_operations_per_second", "Number of requests from the activator in the last full second.", r.Last.ProxiedRequests},
		{"process_uptime", "Number of full seconds since the start.", r.Uptime.Seconds()},

		{"queue_average_concurrent_requests_6s", "Average number of requests in flight in the last 6 full seconds.", r.Last6.Concurrency},
		{"queue_average_proxied_concurrent_requests_6s", "Average number of requests from the activator in flight in the last 6 full seconds.", r.Last6.ProxiedConcurrency},
		{"queue_requests_per_second_6s", "Average number of requests that arrived per second in the last 6 full seconds.", r.Last6.Requests},
		{"queue_proxied_operations_per_second_6s", "Average number of requests from the activator that arrived per second in the last 6 full seconds.", r.Last6.ProxiedRequests},

		{"queue_average_concurrent_requests_60s", "Average number of requests in flight in the last 60 full seconds.", r.Last60.Concurrency},
		{"queue_average_proxied_concurrent_requests_60s", "Average number of requests from the activator in flight in the last 60 full seconds.", r.Last60.ProxiedConcurrency},
		{"queue_requests_per_second_60s", "Average number of requests that arrived per second in the last 60 full seconds.", r.Last60.Requests},
		{"queue_proxied_operations_per_second_60s", "Average number of requests from the activator that arrived per second in the last 60 full seconds.", r.Last60.ProxiedRequests},
	}
}

// appendPrometheus appends the gauges of r in the Prometheus text format 0.0.4. The labels must be valid UTF-8.
func appendPrometheus(dst []byte, l Labels, r Report) []byte {
	set := l.prometheus()
	for _, g := range gauges(r) {
		dst = append(dst, "# HELP "+g.name+" "+g.help+"\n# TYPE "+g.name+" gauge\n"+g.name+set+" "...)
		dst = append(strconv.AppendFloat(dst, g.value, 'g', -1, 64), '\n')
	}
	return dst
}

// appendOpenMetrics appends the gauges of r in OpenMetrics 1.0.0. For gauges, this format is the Prometheus text format
// with an EOF line.
func appendOpenMetrics(dst []byte, l Labels, r Report) []byte {
	return append(appendPrometheus(dst, l, r), "# EOF\n"...)
}

// prometheus returns the labels in braces, or "" if there are none.
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

// escape escapes a label value in the Prometheus text format and in OpenMetrics. Other characters must not be escaped.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// appendJSON appends the labels and the gauges of r as a flat JSON object and a newline. The names are the same as in
// the text formats. A client can select a value by its name, for example with valueLocation in KEDA.
func appendJSON(dst []byte, l Labels, r Report) []byte {
	between := byte('{')
	for _, one := range l.list() {
		value, _ := json.Marshal(one.value) // a string can always be encoded
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
