package main

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const root = "../.."

var update = flag.Bool("update", false, "write the chart's templates")

func TestChartMatchesKustomize(t *testing.T) {
	files, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(root, templates)
	for name, want := range files {
		path := filepath.Join(folder, name)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is not up to date (%v); run go test ./hack/chart -update", path, err)
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if files[e.Name()] == "" && e.Name() != "NOTES.txt" {
			t.Errorf("%s: unexpected template, want only %v", e.Name(), slices.Sorted(maps.Keys(files)))
		}
	}
}

func node(t *testing.T, text string) *yaml.Node {
	t.Helper()
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	return document.Content[0]
}

func TestMergeAddsConditions(t *testing.T) {
	for _, c := range []struct{ name, a, b, want string }{
		{"equal", "x: 1", "x: 1", "x: 1\n"},
		{"different values", "x: 1", "x: 2", "x: {{ if A }}1{{ else }}2{{ end }}\n"},
		{"a key only in the first", "x: 1\ny: 2", "x: 1", "x: 1\n{{- if A }}\ny: 2\n{{- end }}\n"},
		{"a key only in the second", "x: 1", "x: 1\ny: 2", "x: 1\n{{- if B }}\ny: 2\n{{- end }}\n"},
		{"an additional item", "x:\n- a\n- b", "x:\n- a", "x:\n  - a\n  {{- if A }}\n  - b\n  {{- end }}\n"},
		{"different items", "x:\n- a\n- b", "x:\n- a\n- c", "x:\n  - a\n  {{- if A }}\n  - b\n  {{- end }}\n  {{- if B }}\n  - c\n  {{- end }}\n"},
		{"a key in an item", "x:\n- n: 1\n  y: 2", "x:\n- n: 1", "x:\n  - n: 1\n    {{- if A }}\n    y: 2\n    {{- end }}\n"},
	} {
		template := &template{}
		merged, err := template.merge(node(t, c.a), node(t, c.b), "A", "B")
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got, err := template.text(merged); got != c.want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func TestMergeDifferentKindsReturnsError(t *testing.T) {
	if _, err := (&template{}).merge(node(t, "x: 1"), node(t, "x: [1]"), "A", "B"); err == nil || !strings.Contains(err.Error(), "x: ") {
		t.Errorf("got %v, want an error that contains x", err)
	}
}

func TestTemplateEscapesBraces(t *testing.T) {
	got, err := (&template{}).text(node(t, "summary: 'Pod {{ $labels.pod }}'"))
	if want := "summary: 'Pod {{ \"{{\" }} $labels.pod }}'\n"; got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestInsertMissingPathReturnsError(t *testing.T) {
	o := object{"Deployment", "injector", node(t, "spec: {}")}
	if err := (&template{}).insert(o, ""); err == nil || !strings.Contains(err.Error(), "spec/replicas") {
		t.Errorf("got %v, want an error that contains spec/replicas", err)
	}
}
