package manifest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// texts returns the texts of all documents of a file.
func texts(f *File) (all []string) {
	for _, d := range f.documents {
		all = append(all, string(d.text))
	}
	return all
}

// Each item is decoded separately, because a decoded List needs about 50 times the memory
// of its text.
func TestItemsOfListAreSeparateDocuments(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []string
	}{
		{`{"kind":"List","items":[{"a":1},{"b":2}]}`, []string{`{"kind":"List","items":[`, `{"a":1}`, `,`, `{"b":2}`, `]}`}},
		{`{"items":[{"a":1}],"kind":"PodList"} `, []string{`{"items":[`, `{"a":1}`, `],"kind":"PodList"} `}},
		{"{\n  \"kind\": \"List\",\n  \"items\": [\n    {\n      \"a\": {}\n    }\n  ]\n}\n",
			[]string{"{\n  \"kind\": \"List\",\n  \"items\": [\n    ", "{\n  \"a\": {}\n}", "\n  ]\n}\n"}},
		{"kind: List\nitems:\n- a: 1\n  b: 2\n# text\n\n- c: |\n    - d\nmetadata: {}\n",
			[]string{"kind: List\nitems:\n", "  a: 1\n  b: 2\n# text\n\n", "  c: |\n    - d\n", "metadata: {}\n"}},
		{"---\n# text\nitems: \n  - a: [1]\n  - b:\n    - 2\nkind: \"ServiceList\"",
			[]string{"---\n# text\nitems: \n", "    a: [1]\n", "    b:\n    - 2\n", "kind: \"ServiceList\""}},
	} {
		f := Parse("", []byte(tt.text))
		harness.Equal(t, fmt.Sprintf("%q", texts(f)), fmt.Sprintf("%q", tt.want), tt.text)
		harness.Equal(t, string(f.Text()), tt.text, "text of the file")
	}
}

func TestOtherListsAreNotDivided(t *testing.T) {
	for _, text := range []string{
		`{"kind":"List","items":[]}`,
		`{"kind":"List","items":{"a":1}}`,
		`{"kind":"List","items":[1]}`,
		`{"kind":"List","items":[{"a":1}],"items":[{"b":1}]}`,
		`{"kind":"Pod","items":[{"a":1}]}`,
		`{kind: List, items: [{a: 1}]}`,
		"kind: List\nitems: []\n",
		"kind: Pod\nitems:\n- a: 1\n",
		"kind: |\n  List\nitems:\n- a: 1\n",
		"kind: List\nitems:\n- a: &b 1\n- c: *b\n",
		"%YAML 1.2\n---\nkind: List\nitems:\n- a: 1\n",
		"kind: List\nitems:\n- a: 1\n- \"b\n- c: 2\n  d\": 3\n",
		"kind: List\nitems:\n- a: 1\n- - b: 2\n",
		"kind: List\nitems:\n- a: 1\n -c: 2\n",
		"kind: List\nkind: List\nitems:\n- a: 1\n",
	} {
		harness.Equal(t, fmt.Sprintf("%q", texts(Parse("", []byte(text)))), fmt.Sprintf("%q", []string{text}), text)
	}
}

// listOf returns a List of the documents in block style or in JSON, or "" if a document has another style.
func listOf(t *testing.T, documents []string, indent string) string {
	t.Helper()
	var items []string
	for _, d := range documents {
		lines := strings.SplitAfter(strings.TrimPrefix(d, "---\n"), "\n")
		items = append(items, indent+"- "+strings.TrimSuffix(strings.Join(lines, indent+"  "), indent+"  "))
	}
	return "apiVersion: v1\nkind: List\nitems:\n" + strings.Join(items, "")
}

func TestItemsOfListAreInjectedAsDocuments(t *testing.T) {
	const workload = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\nspec:\n  containers:\n  - name: web # text\n    ports:\n    - containerPort: 8080\n"
	documents := []string{fmt.Sprintf(workload, "a"), "apiVersion: v1\nkind: ConfigMap\ndata:\n  b: c\n", fmt.Sprintf(workload, "d")}
	separate := Parse("", []byte(strings.Join(documents, "---\n")))
	Inject([]*File{separate}, nil, inject.Services)
	for _, indent := range []string{"", "  "} {
		text := listOf(t, documents, indent)
		f := Parse("", []byte(text))
		results := Inject([]*File{f}, nil, inject.Services)
		harness.Equal(t, len(results), 3, "results")
		harness.Equal(t, results[2].Line, 17, "line of the last result")
		harness.Equal(t, string(f.Text()), listOf(t, texts(separate), indent), "injected List")
		harness.Equal(t, string(uninjectedText(f)), text, "List after Uninject")
	}
}

// The items of a typed list can omit their kind.
func TestUninjectRestoresTypedList(t *testing.T) {
	const text = `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a"},"spec":{"containers":[ {"name":"web","ports":[{"containerPort":8080}]}]}}]}`
	f := Parse("", []byte(text))
	harness.Equal(t, Inject([]*File{f}, nil, inject.Workloads)[0].Verdict, inject.Injected, "verdict")
	f = Parse("", f.Text())
	Inject([]*File{f}, nil, inject.Services)
	if !json.Valid(f.Text()) {
		t.Errorf("got %s, want JSON", f.Text())
	}
	harness.Equal(t, string(uninjectedText(f)), text, "text after Uninject")
}
