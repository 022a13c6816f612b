package manifest

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestSyntaxErrorHasLineAndCause(t *testing.T) {
	for _, c := range []struct {
		text string
		line int
		want string
	}{
		{"%YAML 1.2\n---\na: 1\n", 1, "only the directive %YAML 1.1 is supported; remove the line"},
		{"# x\n%YAML x\n---\na: 1\n", 2, "only the directive %YAML 1.1 is supported; remove the line"},
		{"%YAML 1.1\n%YAML 1.1\n---\na: 1\n", 2, "the directive is repeated; remove the line"},
		{"%YAML 1.1\na: 1\n", 1, "the --- line after the directive is missing"},
		{"kind: Pod\nspec: {a: 1}\nspec: {}\n", 3, `the key "spec" is repeated`},
		{"a:\n\tb: 1\n", 2, "the line is indented with a tab, but YAML requires spaces; replace the tabs with spaces"},
		{"a: &x\n  b: *y\n", 2, "the alias *y refers to an anchor that does not exist in the document; if it is a string, put it in quotes"},
		{"a: b\nc: d: e\n", 2, `the line contains an unexpected ": "; check the indentation, and put a string that contains ": " in quotes`},
		{"a: 1\nb: [1, 2\nc: d\n", 2, "invalid list in brackets; check the commas, the quotes and the closing ]"},
		{"{\"a\": 1,\n\"b\" 2}\n", 2, "invalid map in braces; check the commas, the quotes and the closing }"},
		{"{\"a\": 1,\n\"b\": {", 2, "the JSON ends before the last closing brace; the file may be incomplete"},
		{"{\"a\": 1,\n\"b\": \"c", 2, "the JSON ends before the last closing brace; the file may be incomplete"},
		{"a: 1\nb: \"x\nc: 1\n", 2, "the closing quote of a string is missing"},
		{"a: \"x\nc: 1\n", 1, "the closing quote of a string is missing"},
		{"a: 1\nb: @x\n", 2, "a value starts with a reserved character, such as @, % or `; put the value in quotes"},
		{"a: 1\nb: \"\\q\"\n", 2, "a string in double quotes contains an invalid escape sequence; write \\\\ for a backslash, or use single quotes"},
		{"a: 1\nb: \x01\n", 2, "the document contains a control character"},
		{"a: 1\nb: \xff\n", 2, "the document is not valid UTF-8"},
		{"apiVersion: v1\nkind: List\nitems: {a: b}\n", 3, "items: must be a list"},
		{"apiVersion: v1\nkind: PodList\nitems: x\n", 3, "items: must be a list"},
		{"a: 1\nb: {{ .c }}\nd: {{ .e }}\n", 2, errHelmTemplate.Error()},
		{"a: 1\nb\n", 2, "missing colon after a key"},
		{"a: 1\n... x\n", 2, "missing --- line before the second value"},
		{"kind: Pod\nspec: !!int x\n", 2, `the value "x" does not match its tag !!int`},
	} {
		results := Inject([]*File{Parse("f", []byte("a: 1\n...\n"+c.text))}, nil, inject.Workloads)
		if len(results) < 2 {
			t.Fatalf("%q: got %d results", c.text, len(results))
		}
		r := results[1]
		harness.Equal(t, strings.TrimSuffix(r.Text, "; the document is not changed"), c.want, c.text)
		harness.Equal(t, r.Line, c.line+2, "line", c.text)
		harness.Equal(t, r.Document, 2, "document", c.text)
	}
}

// The library may report other errors in a later version.
func TestSyntaxErrorHidesParserError(t *testing.T) {
	for _, text := range []string{
		"a: |x\n", "a: & b\n", "a: *\n", "!<tag:x\n", "a: !<x\n", "a: |0\n", "%FOO\n---\na: 1\n", "%\n---\na\n", "a: - b\n", "a: !x!y z\n",
		"a:\n  - x\n y: 1\n", "-\n- ]\n", "a: ]\n", "a: }\n", "? a\n? b: ? c\n", "a: 'x\n--- b\n", "a: \"\\u12\"\n", "%TAG x\n---\na\n", "a: [b\n", "a: {b\n", "- a\n b: 1\n-c\n",
	} {
		for _, r := range Inject([]*File{Parse("f", []byte(text))}, nil, inject.Workloads) {
			for _, words := range []string{"yaml:", "did not find", "could not find", "found ", "not allowed in this context"} {
				if strings.Contains(r.Text, words) {
					t.Errorf("%q: got %q, want no text of the library", text, r.Text)
				}
			}
		}
	}
}
