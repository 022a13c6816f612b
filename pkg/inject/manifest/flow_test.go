package manifest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// flowItems returns maps in flow style with different syntax.
func flowItems() []string {
	return []string{
		`{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: web}}, spec: {containers: [{name: web, ports: [{name: http, containerPort: 8080}]}]}}`,
		`{kind: Pod, apiVersion: v1, metadata: {labels: {app: web}, name: 'b, ]} # it''s'}, spec: {containers: [{name: web, image: "a\"]}", args: [-a, "#b", 'c: d', e f, y, ~, 1.0, 0x10], ports: [{containerPort: 8080, name: http}]}]}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"c"},"spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}}`,
		`{ apiVersion: v1 , kind: ConfigMap, data: {a: b'c, d: e"", g: h#i, j:k, url: http://host:80/, "l": } }`,
		`{apiVersion: v1, kind: Pod, metadata: {name: é}, spec: {terminationGracePeriodSeconds: 5, containers: [{name: web, ports: [{containerPort: 8080}], readinessProbe: {httpGet: {port: 8080,  path: /}}}]}}`,
	}
}

// flowLists returns Lists of the items in different layouts.
func flowLists(items []string) map[string]string {
	var dashed, long []string
	for _, item := range items {
		dashed = append(dashed, "  - "+item)
		long = append(long, strings.Join(strings.SplitAfter(item, "{"), "\n      "))
	}
	return map[string]string{
		"one line":              "{apiVersion: v1, kind: List, items: [" + strings.Join(items, ", ") + "]}\n",
		"one line, no newline":  "{apiVersion: v1,kind: List,items: [" + strings.Join(items, ",") + "]}",
		"items first":           "{items: [" + strings.Join(items, " , ") + " ,], kind: List, apiVersion: v1, metadata: {a: [b]}}\n",
		"JSON after a --- line": "---\n" + `{"kind":"List","apiVersion":"v1","items":[` + strings.Join(items, ",") + "]}\n",
		"on the --- line":       "--- {kind: List, apiVersion: v1, items: [" + strings.Join(items, ", ") + "]} # text\n...\n",
		"several lines":         "# text\n{\n  kind: List, # text ]\n  apiVersion: v1,\n  \"items\": [\n    # text {\n    " + strings.Join(long, ", # text\n    ") + "\n  ]\n}\n",
		"lines without indent":  "{\nkind: List,\napiVersion: v1,\nitems: [\n" + strings.Join(items, "\n,\n") + "\n]\n}\n# text\n",
		"bracket":               "kind: List\napiVersion: v1\nitems: [" + strings.Join(items, ", ") + "]\n",
		"bracket in lines":      "---\nitems: [\n" + strings.Join(items, ",\n\n") + "\n] # text\nkind: List\napiVersion: v1\n",
		"bracket, ... line":     "kind: List\napiVersion: v1\nitems: [ # text\n " + strings.Join(items, ", # text [\n ") + ", ]\n...\n",
		"bracket, block text":   "apiVersion: v1\nitems:\n  [" + strings.Join(items, ", ") + "]\nkind: List\nmetadata:\n  a: |\n    text",
		"dashes":                "apiVersion: v1\nkind: List\nitems:\n" + strings.Join(dashed, "\n") + "\n",
		"dashes and comments":   "kind: List\nitems:\n# text\n\n" + strings.Join(dashed, " # text {\n# text\n") + "\napiVersion: v1",
	}
}

// injectFlow injects a file with the given documents. It returns the new content, the messages of the
// results, and the content after Uninject.
func injectFlow(t *testing.T, documents []*document) (text, messages, undone string) {
	t.Helper()
	f := &File{Name: "f.yaml", documents: documents}
	found, err := json.MarshalIndent(Inject([]*File{f}, nil, inject.Services), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = string(f.Text())
	return text, string(found), string(uninjectedText(Parse("f.yaml", []byte(text))))
}

// compareFlow checks that the result for a divided List is the result for the undivided List.
func compareFlow(t *testing.T, name, list string, documents []*document) {
	t.Helper()
	text, messages, undone := injectFlow(t, documents)
	wantText, wantMessages, wantUndone := injectFlow(t, []*document{{file: "f.yaml", line: 1, text: []byte(list)}})
	harness.Equal(t, text, wantText, name, "text")
	harness.Equal(t, messages, wantMessages, name, "results")
	harness.Equal(t, undone, wantUndone, name, "text after Uninject")
}

func TestFlowListsAreInjectedAsWholeLists(t *testing.T) {
	all := flowItems()
	for _, items := range [][]string{all, all[:1], all[2:4], {all[3], "{}"}, {all[0], all[2]}} {
		for name, list := range flowLists(items) {
			name = fmt.Sprintf("%s, %d items", name, len(items))
			documents := splitFlowList("f.yaml", 1, []byte(list))
			if got, want := len(documents), 2*len(items)+1; got != want {
				t.Errorf("%s: got %d documents, want %d", name, got, want)
				continue
			}
			compareFlow(t, name, list, documents)
		}
	}
}

func FuzzFlowList(f *testing.F) {
	for _, list := range flowLists(flowItems()) {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		if len(splitMarks([]byte(list))) > 1 {
			return
		}
		if documents := splitFlowList("f.yaml", 1, []byte(list)); documents != nil {
			compareFlow(t, list, list, documents)
		}
	})
}

func TestUnsupportedFlowListsAreNotDivided(t *testing.T) {
	for _, text := range []string{
		"{kind: List, items: []}",
		"{kind: Pod, items: [{a: 1}]}",
		"{kind: List, items: [{a: 1}, b]}",
		"{kind: List, items: [{a: 1} {b: 1}]}",
		"{kind: List, items: [{a: 1},, {b: 1}]}",
		"{kind: List, items: [{a: 1}, {b: 1}",
		"{kind: List, items: [{a: &b 1}, {c: 2}]}",
		"{kind: List, items: [{a: &b 1, c: *b}]}",
		"{kind: List, items: [{a: !!str 1}]}",
		"{kind: List, items: [{a: 1, a: 2}]}",
		"{kind: List, items: [{a: 1}], items: [{b: 1}]}",
		"{kind: List, items: [{kind: PodList, items: [{a: 1}]}]}",
		"{kind: List, items: [{a: 1}]}\r\n",
		"{kind: List, data: {items: [{a: 1}]}, items: [{b: 1}]}",
		"{kind: List, items: [{a: \"queue-proxy.dev/status\"}]}",
		"{kind: List, items: [{a: b\"c}]}",
		"kind: List\nitems: [{a: 1,\n  b: 2}]\n",
		"kind: List\nitems: [{a: 1}]\nitems: []\n",
		"kind: List\ndata: \"\nitems: [{a: 1}]\"\nitems: [{b: 1}]\n",
		"kind: List\nitems:\n- {a: 1}\n - {b: 1}\n",
		"kind: List\nitems:\n- {a: 1}\n- b: 1\n",
		"kind: List\nitems:\n- {a: 1} text\n",
		"kind: List\nitems:\n- {a: 1,\n  b: 2}\n",
	} {
		if got := len(splitFlowList("", 1, []byte(text))); got != 0 {
			t.Errorf("%s: got %d documents, want the undivided List", text, got)
		}
	}
}

// If each item required a search of the text before or after the item, splitting these Lists would take
// minutes.
func TestFlowListIsSplitInLinearTime(t *testing.T) {
	const items = 100_000
	lists := flowLists(strings.Split(strings.Repeat("{};", items-1)+"{}", ";"))
	for _, name := range []string{"one line", "bracket", "dashes"} {
		f := Parse("f.yaml", []byte(lists[name]))
		if got, want := len(f.documents), 2*items+1; got != want {
			t.Errorf("%s: got %d documents, want %d", name, got, want)
		}
	}
}
