package main

import (
	"slices"
	"strings"
	"testing"
)

func TestAlternativesAreExpanded(t *testing.T) {
	for _, c := range []struct {
		pattern string
		want    []string
	}{
		{"", []string{""}},
		{"TestA", []string{"TestA"}},
		{"^TestA|^TestB", []string{"^TestA", "^TestB"}},
		{"^(A|B)$", []string{"^A$", "^B$"}},
		{"/(wire|h2) Fuzz(A|B)", []string{"/wire FuzzA", "/wire FuzzB", "/h2 FuzzA", "/h2 FuzzB"}},
		{"(?:A|B)C", []string{"AC", "BC"}},
		{"A(B(C|D)|E)", []string{"ABC", "ABD", "AE"}},
		{"(A|B)+C", []string{"(A|B)+C"}},
		{"(?i:A|B)", []string{"(?i:A|B)"}},
		{`A\|B|C`, []string{`A\|B`, "C"}},
		{"[|)]A|[]|]B|[^]|]C", []string{"[|)]A", "[]|]B", "[^]|]C"}},
		{"[[:digit:]|]A|B", []string{"[[:digit:]|]A", "B"}},
		{"A()", []string{"A"}},
	} {
		if got := alternatives(c.pattern); !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.pattern, got, c.want)
		}
	}
}

func TestSubtestPatternsAreRemoved(t *testing.T) {
	for pattern, want := range map[string]string{
		"TestA/b":       "TestA",
		"TestA/b|TestB": "TestA|TestB",
		"Test[/]A/b":    "Test[/]A",
	} {
		if got := topLevel(pattern); got != want {
			t.Errorf("%q: got %q, want %q", pattern, got, want)
		}
	}
}

func TestAlternativesWithoutMatchAreReported(t *testing.T) {
	names := []string{"TestAlpha", "TestBeta"}
	for _, c := range []struct {
		pattern string
		want    []string
	}{
		{"TestAlpha|Beta$", nil},
		{".", nil},
		{"Alpha|Gamma", []string{"Gamma"}},
		{"^Test(Alpha|Bet)$", []string{"^TestBet$"}},
	} {
		if got, err := unmatched(c.pattern, names); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, %v; want %q", c.pattern, got, err, c.want)
		}
	}
	if got, err := unmatched("(A", names); err == nil {
		t.Errorf("invalid pattern: got %q, want an error", got)
	}
}

func TestRunReportsPatternsWithoutMatch(t *testing.T) {
	const fuzzers = "./pkg/transport/http1/wire FuzzChunks\n./pkg/transport/http2/http2conn FuzzFrames\n"
	for _, c := range []struct {
		args string // arguments separated by commas
		err  string // expected error; "" means no error
	}{
		{"-run,TestRunReports|TestAlternatives,.", ""},
		{"-run,,.", ""},
		{"-run,TestRunReports/some subtest,.", ""},
		{"-run,TestRunReports|TestNoSuch,.", `"TestNoSuch"`},
		{"-run,FuzzNoSuch,.", `"FuzzNoSuch"`},
		{"-run,Test,./nosuch", "no test files"},
		{"-run,(,.", "missing closing"},
		{"-lines,/(wire|http2conn) ", ""},
		{"-lines,/wire FuzzChunks$", ""},
		{"-lines,/(wire|goaway) ", `"/goaway "`},
	} {
		err := run(strings.Split(c.args, ","), strings.NewReader(fuzzers))
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %v, want an error with %q", c.args, err, c.err)
		}
	}
}

func TestBuildTagsSelectTestFiles(t *testing.T) {
	const e2e = "TestPrometheusScrapesInjector"
	for _, c := range []struct {
		tags []string
		want bool
	}{{nil, false}, {[]string{"e2e"}, true}} {
		functions, err := testFunctions("../../..", []string{"./pkg/observe/metrics"}, c.tags)
		if got := slices.Contains(functions, e2e); err != nil || got != c.want {
			t.Errorf("tags %q: functions contain %s: got %v, %v; want %v", c.tags, e2e, got, err, c.want)
		}
	}
}

func TestFlagSelectsKindOfFunction(t *testing.T) {
	all := []string{"TestA", "Testify", "FuzzB", "BenchmarkC", "ExampleD", "helper"}
	for flag, want := range map[string][]string{
		"run":   {"TestA", "FuzzB", "ExampleD"},
		"fuzz":  {"FuzzB"},
		"bench": {"BenchmarkC"},
	} {
		if got := ofKind(all, flag); !slices.Equal(got, want) {
			t.Errorf("-%s: got %q, want %q", flag, got, want)
		}
	}
}
