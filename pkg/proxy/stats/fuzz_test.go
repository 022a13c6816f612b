package stats

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// The grammar of Accept (RFC 9110 sections 5.6 and 12.5.1), except for escapes in quoted strings and asterisks in the
// names of parameters. The package mime parses these differently.
const (
	acceptToken  = `[!#$%&'+\-.^_` + "`" + `|~0-9A-Za-z]+`
	acceptParam  = `[ \t]*;[ \t]*(?:` + acceptToken + `)=(?:` + acceptToken + `|"[^"\\\x00-\x1f\x7f-\xff]*")`
	acceptRange  = `[ \t]*(?:\*/\*|` + acceptToken + `/\*|` + acceptToken + `/` + acceptToken + `)(?:` + acceptParam + `)*[ \t]*`
	acceptWeight = `^(?:0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)$`
)

var (
	acceptList   = regexp.MustCompile(`^` + acceptRange + `(?:,` + acceptRange + `)*$`)
	acceptRanges = regexp.MustCompile(acceptRange)
	acceptParams = regexp.MustCompile(`;[ \t]*(` + acceptToken + `)=("[^"]*"|` + acceptToken + `)`)
	aWeight      = regexp.MustCompile(acceptWeight)
)

// served contains the formats that the handler supports, in order of preference: media type, version and content type.
var served = [][3]string{
	{"application/protobuf", "", "application/protobuf"},
	{"text/plain", "0.0.4", "text/plain; version=0.0.4; charset=utf-8"},
	{"application/openmetrics-text", "1.0.0", "application/openmetrics-text; version=1.0.0; charset=utf-8"},
	{"application/openmetrics-text", "0.0.1", "application/openmetrics-text; version=0.0.1; charset=utf-8"},
	{"application/json", "", "application/json"},
}

// preferred returns the index in served of the format that the list in an Accept header selects. If several formats have
// the same weight, first is preferred. ok is false if the expressions do not match the list.
func preferred(list string, first int) (best int, ok bool) {
	if !acceptList.MatchString(list) {
		return 0, false
	}
	weight, closest := make([]float64, len(served)), make([]int, len(served))
	for _, one := range acceptRanges.FindAllString(list, -1) {
		media, _, _ := strings.Cut(one, ";")
		media = strings.ToLower(strings.Trim(media, " \t"))
		q, version, seen := 1.0, "", map[string]bool{}
		for _, p := range acceptParams.FindAllStringSubmatch(one, -1) {
			name, value := strings.ToLower(p[1]), strings.Trim(p[2], `"`)
			if seen[name] {
				return 0, false // the RFC does not define duplicate parameters
			}
			seen[name] = true
			switch name {
			case "version":
				version = value
			case "q":
				if !aWeight.MatchString(value) {
					return 0, false
				}
				q, _ = strconv.ParseFloat(value, 64)
			}
		}
		for i, s := range served {
			how := 0
			switch {
			case media == "*/*":
				how = 1
			case media == s[0][:strings.Index(s[0], "/")]+"/*":
				how = 2
			case media == s[0] && version == "":
				how = 3
			case media == s[0] && version == s[1]:
				how = 4
			}
			if how > closest[i] {
				closest[i], weight[i] = how, q
			} else if how > 0 && how == closest[i] {
				weight[i] = max(weight[i], q)
			}
		}
	}
	best = first
	for i := range served {
		if weight[i] > weight[best] {
			best = i
		}
	}
	if weight[best] == 0 {
		best = 1 // text if no format is acceptable
	}
	return best, true
}

// FuzzAccept sends requests with any Accept header in one or two lines. The response must have one of the formats. If
// the header is valid according to RFC 9110, the format must be the same as in preferred. The query ?format= has
// precedence.
func FuzzAccept(f *testing.F) {
	f.Add("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "", 0)
	f.Add("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", "text/plain;q=0", 1)
	f.Add(`text/html;x=",application/protobuf,"`, "", 1)
	f.Add("application/*;q=0.2, text/plain;q=0.2", `application/json;charset="a;q=0"`, 4)
	f.Add("*/*;q=0", "text/plain;q=2", 0)
	f.Fuzz(func(t *testing.T, one, two string, first int) {
		first = []int{0, 1, 4}[max(first, -first, 0)%3]
		otherwise := map[int]Format{0: inProtobuf, 1: inPrometheus, 4: inJSON}[first]
		h := Handler(New(time.Now()), Labels{}, otherwise)
		lines := []string{one}
		if two != "" {
			lines = append(lines, two)
		}
		w := get(h, "/metrics", lines)
		got := -1
		for i, s := range served {
			if w.Header().Get("Content-Type") == s[2] {
				got = i
			}
		}
		if w.Code != 200 || got < 0 {
			t.Fatalf("%q: got %d %q, want one of the formats", lines, w.Code, w.Header().Get("Content-Type"))
		}
		if want, ok := preferred(strings.Join(lines, ","), first); ok && got != want {
			t.Errorf("%q, default %s: got %s, want %s", lines, otherwise, served[got][2], served[want][2])
		}
		harness.Equal(t, get(h, "/metrics?format=json", lines).Header().Get("Content-Type"), "application/json", lines, "with ?format=json")
	})
}
