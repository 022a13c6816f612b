package stats

import (
	"cmp"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// A Format is a way of writing a report down, by the name that STATS_FORMAT and
// ?format= give it.
type Format string

// The formats that can be asked for by name.
const (
	inProtobuf   Format = "protobuf"   // Knative's message Stat
	inPrometheus Format = "prometheus" // Prometheus text
	inJSON       Format = "json"
)

// path is where [Handler] answers.
const path = "/metrics"

// Handler serves the report of the moment at /metrics for any method, and 404
// elsewhere (docs/promises.md 3.3).
//
// ?format= decides the format, else the Accept header. otherwise is the format
// for those who leave the choice to us: no Accept, */*, or several that are
// equally welcome. Empty or unknown means Protobuf. Prometheus is right where
// the readers of text are: Knative's first autoscalers and KEDA send no Accept.
// An explicit application/protobuf gets protobuf in any case. Whoever accepts
// nothing that we have (text/html, Prometheus' own
// application/vnd.google.protobuf) gets Prometheus text.
//
// The handler may be called concurrently. It takes the time from time.Now.
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
		// Autoscalers size their buffer by it.
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body) // who hangs up asks again in a second
	})
}

// format is a Format ready to be served.
type format struct {
	name        Format // "" if it cannot be asked for by name
	media       string // type/subtype, lower case
	version     string // the parameter of this name; "" for none
	contentType string
	write       func([]byte, Labels, Report) []byte
}

// formats is in the order of our preference. Gauges look the same in both
// versions of OpenMetrics.
var formats = [...]format{
	{inProtobuf, "application/protobuf", "", "application/protobuf", appendStat},
	{inPrometheus, "text/plain", "0.0.4", "text/plain; version=0.0.4; charset=utf-8", appendPrometheus},
	{"", "application/openmetrics-text", "1.0.0", "application/openmetrics-text; version=1.0.0; charset=utf-8", appendOpenMetrics},
	{"", "application/openmetrics-text", "0.0.1", "application/openmetrics-text; version=0.0.1; charset=utf-8", appendOpenMetrics},
	{inJSON, "application/json", "", "application/json", appendJSON},
}

// byName is the format of that name, nil if there is none.
func byName(name Format) *format {
	for i := range formats {
		if formats[i].name == name && name != "" {
			return &formats[i]
		}
	}
	return nil
}

// accepted finds the format that an Accept header likes best: of those that it
// likes equally first, then by the order of formats. A header without one media
// range says nothing.
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

// mediaRange is one element of an Accept header (RFC 9110, 12.5.1).
type mediaRange struct {
	media   string // type/subtype, type/* or */*, lower case
	version string // the parameter of this name; "" for none
	q       float64
}

// mediaRanges parses Accept. Elements that are no media ranges are skipped.
func mediaRanges(accept []string) []mediaRange {
	var ranges []mediaRange
	for element := range header.Members(strings.Join(accept, ",")) {
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

// quality is the weight that the most specific matching range gives to f, and
// the highest one where several are equally specific. 0: not acceptable.
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

// specificity is 0 if r does not match f, and more the closer it says what f is.
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
