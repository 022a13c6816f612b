package stats

import (
	"cmp"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// A Format is the name of a format in STATS_FORMAT and in the query ?format=.
type Format string

// Values of Format.
const (
	inProtobuf   Format = "protobuf"   // Knative message Stat
	inPrometheus Format = "prometheus" // Prometheus text format
	inJSON       Format = "json"
)

// path is the URL path of the statistics.
const path = "/metrics"

// Handler returns a handler that serves the current report at /metrics for all methods, and 404 for other paths
// (docs/promises.md 3.3).
//
// The query ?format= selects the format. Without this query, the Accept header selects the format. If there is no
// Accept header, or if several formats have the same weight, the parameter otherwise selects the format. Protobuf is
// used if otherwise is "" or unknown. Use "prometheus" for early Knative autoscalers and for KEDA, because they do not
// send an Accept header. If no format is acceptable, the response is Prometheus text. For example, a header may accept
// only text/html or application/vnd.google.protobuf, which is the protobuf media type of Prometheus.
//
// The handler is safe for concurrent use.
func Handler(s *Stats, l Labels, otherwise Format) http.Handler {
	l = l.validUTF8()
	first := cmp.Or(byName(otherwise), byName(inProtobuf))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		var wanted *format
		if name := r.URL.Query().Get("format"); name == "" {
			wanted = accepted(r.Header.Values("Accept"), first)
		} else if wanted = byName(Format(name)); wanted == nil {
			http.Error(w, fmt.Sprintf("format must be %s, %s or %s, not %.64q", inPrometheus, inJSON, inProtobuf, name), http.StatusBadRequest)
			return
		}
		body := wanted.write(nil, l, s.Report(time.Now()))
		w.Header().Set("Content-Type", wanted.contentType)
		// Autoscalers allocate a buffer of this size.
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body) // an error means that the client disconnected
	})
}

// format describes how a report is served.
type format struct {
	name        Format // "" if ?format= does not support the format
	media       string // type/subtype, lower case
	version     string // value of the parameter version, or ""
	contentType string
	write       func([]byte, Labels, Report) []byte
}

// formats contains all formats in order of preference. Gauges have the same text in both versions of OpenMetrics.
var formats = [...]format{
	{inProtobuf, "application/protobuf", "", "application/protobuf", appendStat},
	{inPrometheus, "text/plain", "0.0.4", "text/plain; version=0.0.4; charset=utf-8", appendPrometheus},
	{"", "application/openmetrics-text", "1.0.0", "application/openmetrics-text; version=1.0.0; charset=utf-8", appendOpenMetrics},
	{"", "application/openmetrics-text", "0.0.1", "application/openmetrics-text; version=0.0.1; charset=utf-8", appendOpenMetrics},
	{inJSON, "application/json", "", "application/json", appendJSON},
}

// byName returns the format with the name, or nil.
func byName(name Format) *format {
	for i := range formats {
		if formats[i].name == name && name != "" {
			return &formats[i]
		}
	}
	return nil
}

// accepted returns the format with the highest weight in the Accept header. If several formats have this weight,
// accepted returns first if it is one of them, and otherwise the earliest one in formats. If the header has no valid
// media range, accepted returns first. If no format is acceptable, accepted returns the Prometheus text format.
func accepted(accept []string, first *format) *format {
	ranges := mediaRanges(accept)
	if ranges == nil {
		return first
	}
	best, most := first, quality(ranges, first)
	for i := range formats {
		if q := quality(ranges, &formats[i]); q > most {
			best, most = &formats[i], q
		}
	}
	if most == 0 {
		return byName(inPrometheus)
	}
	return best
}

// mediaRange is an element of an Accept header (RFC 9110 section 12.5.1).
type mediaRange struct {
	media   string // type/subtype, type/* or */*, lower case
	version string // value of the parameter version, or ""
	q       float64
}

// mediaRanges parses the values of Accept. It skips invalid elements.
func mediaRanges(accept []string) []mediaRange {
	var ranges []mediaRange
	for element := range transport.Members(strings.Join(accept, ",")) {
		media, params, err := mime.ParseMediaType(element)
		if err != nil {
			continue
		}
		q := 1.0
		if weight, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(weight, 64); err != nil || !(q >= 0 && q <= 1) {
				continue
			}
		}
		ranges = append(ranges, mediaRange{media, params["version"], q})
	}
	return ranges
}

// quality returns the weight of f, which is the weight of the most specific matching range. If several of these ranges
// are equally specific, the highest weight is used. A weight of 0 means that f is not acceptable.
func quality(ranges []mediaRange, f *format) float64 {
	q, closest := 0.0, 0
	for _, r := range ranges {
		switch how := r.specificity(f); {
		case how == 0 || how < closest:
		case how > closest:
			q, closest = r.q, how
		default:
			q = max(q, r.q)
		}
	}
	return q
}

// specificity returns 0 if r does not match f, and otherwise a number that is higher for more specific matches.
func (r mediaRange) specificity(f *format) int {
	family, _, _ := strings.Cut(f.media, "/")
	switch {
	case r.media == "*/*":
		return 1
	case r.media == family+"/*":
		return 2
	case r.media == f.media && r.version == "":
		return 3
	case r.media == f.media && r.version == f.version:
		return 4
	}
	return 0
}
