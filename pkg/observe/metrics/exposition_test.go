package metrics

import (
	"cmp"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// rewritten parses an exposition and writes it in another format.
func rewritten(t testing.TB, body string, from, to bool, taken ...string) string {
	t.Helper()
	x, err := readExposition(body, from)
	if err != nil {
		t.Fatalf("got error %v, want none for\n%s", err, body)
	}
	names := map[string]bool{}
	for _, name := range taken {
		names[name] = true
	}
	var out strings.Builder
	harness.NoError(t, x.write(&out, to, names))
	return out.String()
}

const (
	inText        = false
	inOpenMetrics = true
)

// lines joins lines and adds a newline after each.
func lines(all ...string) string { return strings.Join(all, "\n") + "\n" }

// formats contains expositions of an app and the expected output in both formats.
var formats = []struct {
	name           string
	from           bool
	in             string
	text, openText string // expected output in the text format and in OpenMetrics; "" means unchanged
}{{
	name: "counter and gauge in the text format",
	from: inText,
	in: lines("# HELP app_jobs_total Jobs \"done\"\\nand \\\\ over.", "# TYPE app_jobs_total counter", `app_jobs_total{kind="a"} 3`, `app_jobs_total{kind="b"} 4 1700000000123`,
		"", "# a comment", "# TYPE temperature gauge", "temperature -Inf"),
	text: lines("# HELP app_jobs_total Jobs \"done\"\\nand \\\\ over.", "# TYPE app_jobs_total counter", `app_jobs_total{kind="a"} 3`, `app_jobs_total{kind="b"} 4 1700000000123`,
		"# TYPE temperature gauge", "temperature -Inf"),
	openText: lines("# HELP app_jobs Jobs \\\"done\\\"\\nand \\\\ over.", "# TYPE app_jobs counter", `app_jobs_total{kind="a"} 3`, `app_jobs_total{kind="b"} 4 1700000000.123`,
		"# TYPE temperature gauge", "temperature -Inf"),
}, {
	name: "text counter without _total, and samples without a type",
	from: inText,
	in:   lines("# TYPE hits counter", "hits 1", "# TYPE old untyped", "old 2", "unknown_to_all 3"),
	openText: lines("# TYPE hits unknown", "hits 1", "# TYPE old unknown", "old 2",
		"unknown_to_all 3"),
}, {
	name:     "text counter and a gauge with its OpenMetrics name",
	from:     inText,
	in:       lines("# TYPE x_total counter", "x_total 1", "# TYPE x gauge", "x 2"),
	openText: lines("# TYPE x_total unknown", "x_total 1", "# TYPE x gauge", "x 2"),
}, {
	name: "histogram and summary in the text format",
	from: inText,
	in: lines("# TYPE h histogram", `h_bucket{le="1"} 1`, `h_bucket{le="+Inf"} 2`, "h_sum 3", "h_count 2",
		"# TYPE s summary", `s{quantile="0.5"} NaN`, "s_sum 1e3", "s_count 7"),
}, {
	name:     "blanks, trailing commas and invalid escapes in the text format",
	from:     inText,
	in:       lines(`  x { a = "1" , b="\d\\\"\n" , }   5   6  `, "\ty\t1", "#TYPE y counter", `z{}7`, `z2{a="} 1"} 8`),
	text:     lines(`x{a="1",b="\\d\\\"\n"} 5 6`, "y 1", "z 7", `z2{a="} 1"} 8`),
	openText: lines(`x{a="1",b="\\d\\\"\n"} 5 0.006`, "y 1", "z 7", `z2{a="} 1"} 8`),
}, {
	name:     "family in several parts has one TYPE line",
	from:     inText,
	in:       lines("# TYPE x gauge", "x 1", "# TYPE y gauge", "y 2", "# TYPE x gauge", `x{a="b"} 3`),
	text:     lines("# TYPE x gauge", "x 1", "# TYPE y gauge", "y 2", `x{a="b"} 3`),
	openText: lines("# TYPE x gauge", "x 1", "# TYPE y gauge", "y 2", `x{a="b"} 3`),
}, {
	name: "OpenMetrics with units, exemplars, timestamps and types that the text format does not have",
	from: inOpenMetrics,
	in: lines("# HELP took_seconds How \\\"long\\\".", "# TYPE took_seconds histogram", "# UNIT took_seconds seconds",
		`took_seconds_bucket{le="1.0"} 1 # {trace_id="abc"} 0.5 1700000000.5`, `took_seconds_bucket{le="+Inf"} 1`, "took_seconds_count 1", "took_seconds_sum 0.5", "took_seconds_created 1.7e9",
		"# HELP jobs Jobs.", "# TYPE jobs counter", `jobs_total 5.0 1700000000.123 # {} 1`, "jobs_created 1.7e9",
		"# TYPE build info", `build_info{v="1"} 1`, "# TYPE mode stateset", `mode{mode="a"} 1`, "# TYPE odd unknown", "odd 1",
		"# TYPE gh gaugehistogram", `gh_bucket{le="+Inf"} 1`, "gh_gcount 1", "gh_gsum 2", "# EOF"),
	text: lines("# HELP took_seconds How \"long\".", "# TYPE took_seconds histogram",
		`took_seconds_bucket{le="1.0"} 1`, `took_seconds_bucket{le="+Inf"} 1`, "took_seconds_count 1", "took_seconds_sum 0.5",
		"# HELP jobs_total Jobs.", "# TYPE jobs_total counter", "jobs_total 5.0 1700000000123",
		"# TYPE build_info gauge", `build_info{v="1"} 1`, "# TYPE mode gauge", `mode{mode="a"} 1`, "# TYPE odd untyped", "odd 1",
		`gh_bucket{le="+Inf"} 1`, "gh_gcount 1", "gh_gsum 2"),
	openText: lines("# HELP took_seconds How \\\"long\\\".", "# TYPE took_seconds histogram", "# UNIT took_seconds seconds",
		`took_seconds_bucket{le="1.0"} 1 # {trace_id="abc"} 0.5 1700000000.5`, `took_seconds_bucket{le="+Inf"} 1`, "took_seconds_count 1", "took_seconds_sum 0.5", "took_seconds_created 1.7e9",
		"# HELP jobs Jobs.", "# TYPE jobs counter", `jobs_total 5.0 1700000000.123 # {} 1`, "jobs_created 1.7e9",
		"# TYPE build info", `build_info{v="1"} 1`, "# TYPE mode stateset", `mode{mode="a"} 1`, "# TYPE odd unknown", "odd 1",
		"# TYPE gh gaugehistogram", `gh_bucket{le="+Inf"} 1`, "gh_gcount 1", "gh_gsum 2"),
}, {
	name: "last line without a newline",
	from: inText,
	in:   "x 1", text: "x 1\n", openText: "x 1\n",
}}

func TestExpositionWrite(t *testing.T) {
	for _, c := range formats {
		t.Run(c.name, func(t *testing.T) {
			harness.Equal(t, rewritten(t, c.in, c.from, inText), cmp.Or(c.text, c.in), "in text")
			harness.Equal(t, rewritten(t, c.in, c.from, inOpenMetrics), cmp.Or(c.openText, c.in), "in OpenMetrics")
		})
	}
	for _, to := range []bool{inText, inOpenMetrics} {
		harness.Equal(t, rewritten(t, "# EOF\n", inOpenMetrics, to), "", "empty exposition")
	}
}

func TestExpositionRenamesTakenNames(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		taken          []string
	}{{
		name:  "all samples of the family",
		taken: []string{"took_count"},
		in:    lines("# TYPE took histogram", `took_bucket{le="+Inf"} 1`, "took_sum 1", "took_count 1", "# TYPE took_other gauge", "took_other 1"),
		want:  lines("# TYPE app_took histogram", `app_took_bucket{le="+Inf"} 1`, "app_took_sum 1", "app_took_count 1", "# TYPE took_other gauge", "took_other 1"),
	}, {
		name:  "HELP line",
		taken: []string{"x"},
		in:    lines("# HELP x A thing.", "# TYPE x gauge", "x 1"),
		want:  lines("# HELP app_x A thing.", "# TYPE app_x gauge", "app_x 1"),
	}, {
		name:  "different type",
		taken: []string{"x", "x_bucket", "x_sum", "x_count"},
		in:    lines("# TYPE x counter", "x 1", "x_sum 5"),
		want:  lines("# TYPE app_x counter", "app_x 1", "app_x_sum 5"),
	}, {
		name:  "repeated prefix",
		taken: []string{"x", "app_app_x"},
		in:    lines("x 1", "app_x 2"),
		want:  lines("app_app_app_x 1", "app_x 2"),
	}} {
		t.Run(c.name, func(t *testing.T) {
			harness.Equal(t, rewritten(t, c.in, inText, inText, c.taken...), c.want)
		})
	}
}

func TestReadExpositionRejectsInvalidLines(t *testing.T) {
	for _, bad := range []string{
		"<html>", "{}", "x", "x y", "x 1 2 3", "x 1 1.5", "x{ 1", `x{a} 1`, `x{a=b} 1`, `x{a="b} 1`, `x{a="b"`, `x{a="b" c="d"} 1`, `x{1="b"} 1`,
		`x{a="1",a="2"} 1`, `x{__name__="y"} 1`, `{"a.b"} 1`, "1x 1", "x-y 1", "x 0x10", "x 1_000", "x 1p3", "x\xff 1", "x{a=\"\xff\"} 1",
		"# TYPE x", "# TYPE x thing", "# TYPE x unknown", "# TYPE x-y gauge", "# HELP 1 a", "x 1 # {} 1", "x 1\r", "x 1\ny", "\x00",
	} {
		if _, err := readExposition(bad+"\n", inText); err != errGarbage {
			t.Errorf("text %q: got %v, want %v", bad, err, errGarbage)
		}
	}
	for _, bad := range []string{
		"", "x 1\n", "x 1\n# EOF\ny 1\n", "# EOF\n# EOF\n", "# EOF x\n", "# TYPE x untyped\n# EOF\n", "x 1 NaN\n# EOF\n", "x 1 +Inf\n# EOF\n", "x 1 1e30\n# EOF\n",
		"x 1 # 5\n# EOF\n", "x 1 # {} \n# EOF\n", "x 1 # {} y\n# EOF\n", "x 1 # {a} 1\n# EOF\n", "x 1 # {} 1 2 3\n# EOF\n", "# UNIT x\n# EOF\n", "# UNIT x 1 2\n# EOF\n",
	} {
		if _, err := readExposition(bad, inOpenMetrics); err != errGarbage {
			t.Errorf("OpenMetrics %q: got %v, want %v", bad, err, errGarbage)
		}
	}
}

// FuzzExposition verifies that the output can be parsed, that a second conversion does not change its samples,
// and that it does not contain taken names.
func FuzzExposition(f *testing.F) {
	for _, openMetrics := range []bool{false, true} {
		f.Add(lines("# HELP x_total A \\ \\n \"thing\".", "# TYPE x_total counter", `x_total{a="b",} 1 5`, "ours 1", "app_ours 2", "# EOF"), openMetrics)
		f.Add(lines("# TYPE x counter", `x_total 1 5 # {a="b"} 1`, "x_created 1", "# TYPE ours histogram", "ours_sum 1", "# EOF"), openMetrics)
		f.Add(lines(`x{ a="\d\\" , b="\"\n}"} +Inf`, "# TYPE x info", "x_info 1", "# UNIT x seconds", "# EOF"), openMetrics)
	}
	f.Fuzz(func(t *testing.T, body string, openMetrics bool) {
		if _, err := readExposition(body, openMetrics); err != nil {
			return
		}
		inOM := rewritten(t, body, openMetrics, inOpenMetrics, "ours", "ours_sum") + "# EOF\n"
		if again := rewritten(t, inOM, inOpenMetrics, inOpenMetrics); withoutComments(again) != withoutComments(inOM) {
			t.Errorf("OpenMetrics: got\n%s\nfrom\n%s\nwant the same samples", again, inOM)
		}
		plain := rewritten(t, body, openMetrics, inText, "ours", "ours_sum")
		if again := rewritten(t, plain, inText, inText); withoutComments(again) != withoutComments(plain) {
			t.Errorf("text: got\n%s\nfrom\n%s\nwant the same samples", again, plain)
		}
		for _, out := range []string{inOM, plain} {
			for line := range strings.Lines(out) {
				if name, _ := cutName(line, ":"); name == "ours" || name == "ours_sum" {
					t.Errorf("got %q, want no taken name", line)
				}
			}
		}
	})
}

func withoutComments(body string) string {
	var kept strings.Builder
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "#") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func TestExpositionIsValidForPrometheusParser(t *testing.T) {
	body := lines("# HELP x_total A \\ \\n \"thing\".", "# TYPE x_total counter", `x_total{ a="b\d", } 1 5`, "# TYPE h histogram", `h_bucket{le="+Inf"} 1`, "h_sum 1", "h_count 1", "lonely NaN")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(rewritten(t, body, inText, inText)))
	if err != nil || len(families) != 3 {
		t.Errorf("got %v, error %v, want 3 families", families, err)
	}
	harness.Equal(t, families["x_total"].GetHelp(), "A \\ \n \"thing\".", "help")
}

func BenchmarkExposition(b *testing.B) {
	var body strings.Builder
	for _, name := range []string{"alpha", "beta", "gamma", "delta"} {
		body.WriteString("# TYPE " + name + "_total counter\n")
		for range 2500 {
			body.WriteString(name + `_total{method="GET",path="/api/v1/things",code="200"} 12345` + "\n")
		}
	}
	b.SetBytes(int64(body.Len()))
	b.ReportAllocs()
	for b.Loop() {
		rewritten(b, body.String(), inText, inText)
	}
}
