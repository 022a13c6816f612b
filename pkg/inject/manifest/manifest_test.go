package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// inputs returns the inputs of the golden pairs by name.
func inputs(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("../testdata/pairs/*/in.*")
	if err != nil || len(files) < 40 {
		t.Fatalf("got %d inputs (%v), want at least 40", len(files), err)
	}
	all := map[string][]byte{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		harness.NoError(t, err)
		all[filepath.Base(filepath.Dir(name))] = text
	}
	return all
}

// meaning returns the decoded value of each document. For a document that cannot be decoded, the
// value is the raw text.
func meaning(t testing.TB, text []byte) []any {
	t.Helper()
	var all []any
	for _, chunk := range split(text) {
		n, err := parse(chunk)
		harness.NoError(t, err, "in", chunk)
		if n == nil {
			continue
		}
		v, err := valueOf(n)
		if err != nil { // an object without pods, which is not changed
			v = string(chunk)
		}
		all = append(all, v)
	}
	return all
}

func refused(results []*Result) bool {
	for _, r := range results {
		if r.Verdict == inject.Refused {
			return true
		}
	}
	return false
}

func TestUnchangedDocumentsKeepTheirBytes(t *testing.T) {
	const before = "# first\n\n---\na:   [1,  2]   # odd\n\"b\" : 'c'\n\n---   \n# nothing\n--- # a mark with a comment\n- x\n-   y\n"
	const pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: web, ports: [{containerPort: 8080}]}\n"
	const after = "...\n%YAML 1.1\n---\nkey: |\n  text\n   more\n\t\n--- {kind: ConfigMap,   apiVersion: v1}\n---\n\n"
	f := Parse("stream", []byte(before+pod+after))
	results := Inject([]*File{f}, nil, inject.Services)
	got := string(f.Text())
	if !strings.HasPrefix(got, before) || !strings.HasSuffix(got, after) {
		t.Errorf("got\n%s\nwant the prefix\n%s\nand the suffix\n%s", got, before, after)
	}
	if !strings.Contains(got, "queue-proxy:dev") {
		t.Errorf("got no sidecar in the pod: %+v", results)
	}
}

func TestResultsHaveLineNumbersOfFile(t *testing.T) {
	f := Parse("f", []byte("# a\n---\n# b\nkind: ConfigMap\n---\n\nkind: List\nitems:\n- kind: Secret\n\n- kind: Pod\n---\n\n\na: b\na: c\n"))
	var got []string
	for _, r := range Inject([]*File{f}, nil, inject.Services) {
		got = append(got, fmt.Sprint(r.Kind, " ", r.Line))
	}
	want := []string{"ConfigMap 4", "Secret 9", "Pod 11", " 16"}
	harness.Equal(t, got, want)
}

// The YAML library reports the line before the map or the list that contains the error.
func TestSyntaxErrorHasLineNumberOfFile(t *testing.T) {
	for text, want := range map[string]int{
		"\n\n\nkind: Pod\nspec:\n  a: b\n c: d\n":                                  7,
		"kind: A\n---\nkind: Pod\nspec:\n  a: b\n c: d\ne: f\n":                    6,
		"kind: Pod\nspec:\n- a: b\n  c: d\n - e: f\n":                              5,
		"kind: Pod\nspec: [1,\n  2\nd: e\n":                                        3,
		"kind: Pod\nspec: {a: b\n":                                                 2,
		"kind: Pod\nmetadata:\n  name: a: b\n":                                     3,
		"kind: Pod\nspec:\n  a: b\n c: d\n" + strings.Repeat("# x\n", maxSearched): 3,
	} {
		results := Inject([]*File{Parse("f", []byte(text))}, nil, inject.Services)
		last := results[len(results)-1]
		harness.Equal(t, fmt.Sprint(last.Reason, " ", last.Line), fmt.Sprint(inject.Unreadable, " ", want), text[:20], last.Text)
	}
}

// restyle encodes documents in a random style with comments. It also returns the comments that the
// injection must preserve.
func restyle(r *rand.Rand, text []byte) ([]byte, []string, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2 + r.IntN(3))
	var comments []string
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		if err := d.Decode(&doc); err != nil {
			break
		}
		dress(r, doc.Content[0], true, &comments)
		if err := e.Encode(&doc); err != nil {
			return nil, nil, err
		}
	}
	return b.Bytes(), comments, e.Close()
}

func dress(r *rand.Rand, n *yaml.Node, keep bool, comments *[]string) {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	switch n.Kind {
	case yaml.ScalarNode:
		n.Style = 0
		if isNull(n) { // in flow style, the library writes null as two single quotes
			n.Value = "null"
		}
		if n.ShortTag() == "!!str" {
			n.Style = []yaml.Style{0, 0, yaml.DoubleQuotedStyle, yaml.SingleQuotedStyle, yaml.FoldedStyle, yaml.LiteralStyle}[r.IntN(6)]
			if strings.Contains(n.Value, "\n") { // when the library folds a string, it loses lines
				n.Style = yaml.LiteralStyle
			}
		}
	case yaml.MappingNode, yaml.SequenceNode:
		if r.IntN(6) == 0 {
			n.Style = yaml.FlowStyle
			for _, child := range n.Content {
				dress(r, child, false, new([]string))
			}
			return
		}
		n.Style = 0
	}
	for i, child := range n.Content {
		isKey := n.Kind == yaml.MappingNode && i%2 == 0
		gone := n.Kind == yaml.MappingNode && i%2 == 1 && strings.Contains("readinessProbe lifecycle hostPort hostIP", n.Content[i-1].Value)
		dress(r, child, keep && !gone, comments)
		if isKey {
			child.Style &^= yaml.FoldedStyle | yaml.LiteralStyle
			if keep && r.IntN(5) == 0 && !strings.Contains("readinessProbe lifecycle hostPort hostIP", child.Value) {
				child.HeadComment = fmt.Sprintf("# comment %d.", len(*comments))
				*comments = append(*comments, child.HeadComment)
			}
		}
	}
}

func TestRandomLayoutsAreEditedInPlace(t *testing.T) {
	const rounds = 2
	r := rand.New(rand.NewPCG(1, 2))
	encodeDocument, reformatted := 0, 0
	all := inputs(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		text := all[name]
		if name == "not-yaml" || name == "duplicate-key" || name == "anchors" || name == "alias-in-place" || name == "merge-keys" {
			continue
		}
		flat := new(bytes.Buffer)
		if json.Compact(flat, text) == nil { // inject stores the layout of other JSON in the status
			text = bytes.ReplaceAll(flat.Bytes(), []byte("1e0"), []byte("1"))
		}
		plain := Parse(name, text)
		if refused(Inject([]*File{plain}, nil, inject.Services)) {
			continue
		}
		before, want := meaning(t, text), meaning(t, plain.Text())
		for range rounds {
			styled, comments, err := restyle(r, text)
			harness.NoError(t, err)
			f := Parse(name, styled)
			results := Inject([]*File{f}, nil, inject.Services)
			got := f.Text()
			if !reflect.DeepEqual(meaning(t, styled), before) {
				t.Fatalf("%s: restyle changed the values:\n%s", name, styled)
			}
			if !reflect.DeepEqual(meaning(t, got), want) {
				t.Fatalf("%s: got\n%s\nfrom\n%s\nwant the values of the compact document: %+v", name, got, styled, results)
			}
			for _, c := range comments {
				if !bytes.Contains(got, []byte(c)) {
					t.Errorf("%s: got comment %q removed from\n%s\nin\n%s", name, c, styled, got)
				}
			}
			for _, res := range results {
				if res.Verdict == inject.Injected || res.Verdict == inject.Rewritten {
					encodeDocument++
				}
				if strings.Contains(strings.Join(res.Warnings, ""), "cannot be edited in place") {
					reformatted++
				}
			}
		}
	}
	t.Logf("%d documents changed, %d of them reformatted", encodeDocument, reformatted)
	if reformatted*20 > encodeDocument {
		t.Errorf("got %d of %d documents reformatted, want at most one in twenty", reformatted, encodeDocument)
	}
}

// Some programs write JSON in ASCII, with a surrogate pair for characters above U+FFFF, and some
// programs escape slashes.
func TestJSONEscapesAreDecoded(t *testing.T) {
	const text = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","annotations":{"by":"\ud83d\ude80 \\ud83d \uD83D\uDE80\/\\/\"\u002f"}},` +
		`"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}` + "\n"
	f := Parse("f", []byte(text+text))
	for _, r := range Inject([]*File{f}, nil, inject.Services) {
		if r.Verdict != inject.Injected {
			t.Fatalf("got %s: %s, want injected", r.Verdict, r.Text)
		}
	}
	again := Parse("f", f.Text())
	Uninject([]*File{again})
	for d := json.NewDecoder(bytes.NewReader(again.Text())); d.More(); {
		var pod struct {
			Metadata struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		}
		harness.NoError(t, d.Decode(&pod))
		harness.Equal(t, pod.Metadata.Annotations["by"], `🚀 \ud83d 🚀/\/"/`)
	}
}

// The string on is a boolean in YAML 1.1. In JSON, it must be quoted.
func TestJSONPortNameOnIsAString(t *testing.T) {
	const text = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"web","ports":[{"name":"on","containerPort":8080}]}]}}` + "\n"
	harness.Contains(t, injectText(t, text), `"name":"on"`)
}

// An anchor can contain an alias of itself, as a value or in a merge key.
func TestRecursiveAliasIsRefused(t *testing.T) {
	for _, text := range []string{"a: &a\n  b: [*a]\n", "a:\n  <<: &a [*a]\n", "a: &a\n  <<: *a\n", "a:\n  <<: &a [[*a, *a]]\n"} {
		n, err := parse([]byte(text))
		harness.NoError(t, err)
		_, err = valueOf(n)
		harness.Contains(t, fmt.Sprint(err), "the alias *a is part of the value of its anchor, so the value is infinite; remove the alias", text)
	}
}

// Without a limit, the memory for a short document with aliases would be unbounded.
func TestAliasesExpandToLimitedNumberOfValues(t *testing.T) {
	const list = "a: &a {x: [1, 2, 3, 4, 5, 6, 7, 8]}\n" // the map, the list and 8 numbers
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"below the limit":        {list + "b: [" + strings.Repeat("*a, ", maxAliased/10) + "]\n", nil},
		"above the limit":        {list + "b: [" + strings.Repeat("*a, ", maxAliased/10+1) + "]\n", errAliases},
		"nested":                 {list + "b: &b [" + strings.Repeat("*a, ", 100) + "]\nc: [" + strings.Repeat("*b, ", 50) + "]\n", errAliases},
		"merged":                 {list + "b: [" + strings.Repeat("{<<: *a}, ", maxAliased/10+1) + "]\n", errAliases},
		"values without aliases": {"b: [" + strings.Repeat("{x: 1}, ", maxAliased) + "]\n", nil},
	} {
		if _, _, err := read([]byte(c.text)); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func FuzzInject(f *testing.F) {
	for _, text := range inputs(f) {
		f.Add(text)
	}
	f.Add([]byte("apiVersion: v1\nkind: Pod\nspec: &a\n  containers: [*a]\n"))
	f.Add([]byte("a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n"))
	f.Add([]byte("? {kind: Pod}\n: - - x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file := Parse("fuzz", text)
		if got := file.Text(); !bytes.Equal(got, text) {
			t.Fatalf("got %q before the injection, want %q", got, text)
		}
		if refused(Inject([]*File{file}, nil, inject.Services)) {
			return
		}
		again := Parse("fuzz", file.Text())
		if Inject([]*File{again}, nil, inject.Services); !bytes.Equal(again.Text(), file.Text()) {
			t.Errorf("got\n%s\nafter a second injection of\n%s", again.Text(), file.Text())
		}
		after := Parse("fuzz", file.Text())
		Uninject([]*File{after})
		if got, want := meaning(t, after.Text()), meaning(t, text); !reflect.DeepEqual(got, want) && !bytes.Contains(text, []byte(inject.Prefix)) {
			t.Errorf("got\n%s\nwant the values of\n%s", after.Text(), text)
		}
	})
}

// FuzzSplit compares the documents of a stream with the documents that the YAML library returns for
// the whole stream.
func FuzzSplit(f *testing.F) {
	for _, text := range inputs(f) {
		if len(text) < 2<<10 {
			f.Add(text)
		}
	}
	for _, text := range []string{
		"a: 1\n---\nb: 2\n...\n# c\n---\n", "%YAML 1.1\n---\na\n...\n%TAG ! tag:x,2000:\n--- !y\nb\n", "a: |\n  ---\n  ...\n--- |\n x\n", "--- a\n--- b\n---\n---\n",
		"a: '\n\n  --- x'\n", "---\r\na: 1\r\n---\r\nb: 2\r\n", "\ufeffa: 1\n---\n\ufeffb: 2\n", "--- # c\n-\n---- x\n", "# c\n\n---\n# d\n", "{a: 1}\n...\n...\n{b: 2}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.ContainsAny(bytes.ReplaceAll(text, []byte("\r\n"), nil), "\r\u0085\u2028\u2029") {
			return // other line endings are not supported
		}
		chunks := split(text)
		if got := bytes.Join(chunks, nil); !bytes.Equal(got, text) {
			t.Fatalf("got %q, want %q", got, text)
		}
		var want []*yaml.Node
		for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var doc yaml.Node
			err := d.Decode(&doc)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return // invalid YAML, or consecutive JSON objects
			}
			want = append(want, doc.Content[0])
		}
		var got []*yaml.Node
		for _, chunk := range chunks {
			n, err := parse(chunk)
			harness.NoError(t, err, chunk, "of", text, "(a document)")
			got = append(got, n)
		}
		nothing := func(n *yaml.Node) bool { return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
		got, want = slices.DeleteFunc(got, nothing), slices.DeleteFunc(want, nothing)
		if !slices.EqualFunc(got, want, sameNode) {
			t.Errorf("%q: got %d documents, want %d with the same values", text, len(got), len(want))
		}
	})
}

// FuzzJSON writes documents as JSON and compares the result of encoding/json with the original
// values. An unsupported value must be an error.
func FuzzJSON(f *testing.F) {
	for _, text := range inputs(f) {
		if len(text) < 2<<10 {
			f.Add(text)
		}
	}
	f.Add([]byte("a: &a\n  b: [*a]\n"))
	f.Add([]byte("a: &a {x: 1, y: 0x1f}\nb:\n  <<: *a\n  x: yes\n--- 1e3\n--- ~\n--- [.5, 'y', \"\\x00\"]\n"))
	f.Add([]byte("a:\n  <<: &a [*a]\n"))
	f.Add([]byte("?"))
	f.Add([]byte("~: a\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file := Parse("fuzz", text)
		var want []any
		for _, d := range joinLists(file.documents) {
			d.decode()
			if d.err != nil {
				if out, err := file.JSON(); err == nil {
					t.Errorf("%q: got %q, want an error: %v", text, out, d.err)
				}
				return
			}
			if d.value != nil {
				want = append(want, d.value)
			}
		}
		out, err := file.JSON()
		harness.NoError(t, err, text, "(JSON)")
		var got []any
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			d.UseNumber()
			var v any
			if err := d.Decode(&v); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%q: got %q: %v", text, out, err)
			}
			got = append(got, v)
		}
		harness.Equal(t, got, want, text)
	})
}

// sameNode reports whether two nodes have the same content, ignoring their style.
func sameNode(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.ShortTag() == b.ShortTag() && a.Value == b.Value && a.Anchor == b.Anchor && slices.EqualFunc(a.Content, b.Content, sameNode)
}

func BenchmarkInject1000Documents(b *testing.B) {
	all := inputs(b)
	text := bytes.Repeat(append([]byte("---\n"), bytes.TrimPrefix(all["chart-nginx"], []byte("---\n"))...), 1000)
	for b.Loop() {
		f := Parse("stream", text)
		if refused(Inject([]*File{f}, nil, inject.Services)) {
			b.Fatal("got something refused, want none")
		}
	}
}

// If the sidecars increase the number of values in a list above the limit, the error must
// state this reason.
func TestTooLargeResultReturnsLimitError(t *testing.T) {
	if err := new(document).setText([]byte("a: "+strings.Repeat("[", maxDepth)+strings.Repeat("]", maxDepth)+"\n"), nil); !errors.Is(err, errTooLarge) {
		t.Errorf("got %v, want %v", err, errTooLarge)
	}
}

func TestRepeatedKeyErrorNamesTheObject(t *testing.T) {
	text := "kind: Pod\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n  namespace: shop\n  labels: {a: b, a: c}\nspec: {template: {spec: {containers: [{name: web, image: w}]}}}\n"
	results := Inject([]*File{Parse("f", []byte(text))}, nil, inject.Workloads)
	harness.Equal(t, results[1].Object(), "Deployment shop/web")
	harness.Equal(t, results[1].Text, `the key "a" is repeated; the document is not changed`)
	harness.Equal(t, results[1].Line, 8)
}

func TestErrorWithoutPodsIsIgnored(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web, image: w, ports: [{name: http, containerPort: 8080}]}]}\n---\n"
	const template = "{template: {spec: {containers: [{name: web, image: w}]}}}"
	for _, c := range []struct {
		name, document string
		want           inject.Verdict
	}{
		{"ConfigMap with a repeated key", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: x\n  a: z\n", inject.Skipped},
		{"ConfigMap with repeated data", "apiVersion: v1\nkind: ConfigMap\ndata: {a: x}\ndata: {b: z}\n", inject.Skipped},
		{"custom resource with a repeated key", "apiVersion: example.com/v1\nkind: Rule\nspec: {a: x, a: z}\n", inject.Skipped},
		{"custom resource with an infinite number", "apiVersion: example.com/v1\nkind: Rule\nspec: {a: .inf}\n", inject.Skipped},
		{"custom resource with a list as a key", "apiVersion: example.com/v1\nkind: Rule\nspec: {? [a] : b}\n", inject.Skipped},
		{"map without a kind and with a repeated key", "a: x\na: z\n", inject.Skipped},
		{"workload with a repeated key", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {labels: {a: x, a: z}}\nspec: " + template + "\n", inject.Refused},
		{"workload without a template", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {labels: {a: x, a: z}}\n", inject.Skipped},
		{"Service with a repeated key", "apiVersion: v1\nkind: Service\nspec: {selector: {a: x, a: z}}\n", inject.Refused},
		{"list with a repeated key", "apiVersion: v1\nkind: List\nitems: [{kind: ConfigMap, data: {a: x, a: z}}]\n", inject.Refused},
		{"custom resource with pods and a repeated key", "apiVersion: example.com/v1\nkind: App\nspec: " + template + "\na: x\na: z\n", inject.Refused},
		{"repeated kind", "apiVersion: v1\nkind: Pod\nkind: ConfigMap\n", inject.Refused},
		{"repeated kind in another order", "apiVersion: v1\nkind: ConfigMap\nkind: Pod\n", inject.Refused},
		{"repeated spec", "apiVersion: example.com/v1\nkind: App\nspec: " + template + "\nspec: {}\n", inject.Refused},
		{"Helm template", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Values.name }}}\n", inject.Refused},
		{"syntax error", "apiVersion: v1\nkind: ConfigMap\ndata: {a\n", inject.Refused},
		{"recursive alias", "apiVersion: v1\nkind: ConfigMap\ndata: &a {b: *a}\n", inject.Refused},
	} {
		f := Parse("f", []byte(pod+c.document))
		results := Inject([]*File{f}, nil, inject.Services)
		last := results[1]
		harness.Equal(t, results[0].Verdict, inject.Injected, c.name)
		harness.Equal(t, last.Verdict, c.want, c.name, last.Text)
		if !bytes.HasSuffix(f.Text(), []byte("---\n"+c.document)) {
			t.Errorf("%s: got the document modified:\n%s", c.name, f.Text())
		}
		if isSkipped := len(last.Warnings) == 1 && strings.HasSuffix(last.Warnings[0], "; the document is not changed"); isSkipped != (c.want == inject.Skipped) || isSkipped == strings.HasSuffix(last.Text, "; the document is not changed") {
			t.Errorf("%s: got text %q and warnings %q, want one of them to state that the document is not changed", c.name, last.Text, last.Warnings)
		}
		f = Parse("f", f.Text())
		again := Uninject([]*File{f})
		harness.Equal(t, again[1].Verdict, c.want, c.name, "uninject")
		harness.Equal(t, string(f.Text()), pod+c.document, c.name, "uninject")
	}
}

func TestJSONContainsRepeatedKeysOfOtherObjects(t *testing.T) {
	for text, want := range map[string]string{
		"kind: ConfigMap\ndata: {a: x, a: z}\n":         "{\n  \"kind\": \"ConfigMap\",\n  \"data\": {\n    \"a\": \"x\",\n    \"a\": \"z\"\n  }\n}\n",
		"kind: Rule\nspec: {a: .inf}\n":                 "f:2: number .inf is not supported by JSON; with --output=yaml, the document is written unchanged",
		"kind: Rule\nspec: {a: x, a: .inf}\n":           `f:2: the key "a" is repeated; with --output=yaml, the document is written unchanged`,
		"apiVersion: v1\nkind: Pod\nspec: {a: x, a: z}": `f:3: the key "a" is repeated; with --output=yaml, the document is written unchanged`,
	} {
		got, err := Parse("f", []byte(text)).JSON()
		if err != nil {
			got = []byte(err.Error())
		}
		harness.Equal(t, string(got), want, text)
	}
}

// A Service in another directory is used if no nearer Service selects the pods.
func TestNearestServiceSelectsThePort(t *testing.T) {
	const workload = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: web}}\nspec: {containers: [{name: web, image: w, ports: [{containerPort: 7000}, {containerPort: 7001}, {containerPort: 7002}]}]}\n"
	service := func(port int32) []byte {
		return fmt.Appendf(nil, "apiVersion: v1\nkind: Service\nmetadata: {name: s%[1]d}\nspec: {selector: {app: web}, ports: [{port: %[1]d}]}\n", port)
	}
	for _, c := range []struct {
		fact  string
		files map[string]int32 // target ports of Services by file
		want  int32
	}{
		{"the same directory", map[string]int32{"a/x/s.yaml": 7000, "a/y/s.yaml": 7001}, 7000},
		{"another directory", map[string]int32{"a/y/s.yaml": 7001}, 7001},
		{"a nearer directory", map[string]int32{"b/s.yaml": 7000, "a/y/s.yaml": 7001, "a/x/z/s.yaml": 7002}, 7002},
		{"none", nil, 0},
	} {
		files := []*File{Parse("a/x/web.yaml", []byte(workload))}
		for name, port := range c.files {
			files = append(files, Parse(name, service(port)))
		}
		results := Inject(files, nil, inject.Workloads)
		harness.Equal(t, results[0].AppPort, c.want, c.fact, results[0].Text)
	}
}

func TestErrorOfDocumentIsReportedForFirstObject(t *testing.T) {
	const pod = "{apiVersion: v1, kind: Pod}"
	f := Parse("f.yaml", []byte("{apiVersion: v1, kind: List, items: ["+pod+", "+pod+", "+pod+"]}"))
	results := list([]*File{f}, (*document).listFacts)
	for _, r := range results {
		r.Changes = []inject.Change{{Path: "/metadata/name", Value: []byte(`"x"`)}}
	}
	writeRest(results, func(*document, []inject.Change) error { return errTooLarge })
	for i, r := range results {
		wantMore := 0
		if i == 0 {
			wantMore = 2
		}
		if r.Verdict != inject.Refused || r.Text != errTooLarge.Error() || r.SameErrors != wantMore || r.HasSameError != (i > 0) {
			t.Errorf("object %d: got %s %q, %d same errors, same error %t; want refused, %d, %t", i, r.Verdict, r.Text, r.SameErrors, r.HasSameError, wantMore, i > 0)
		}
	}
}

func TestUnreadableFileErrorStatesItsFormat(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web, ports: [{containerPort: 8080}]}]}\n"
	var little, big, little32, big32 []byte
	for _, b := range []byte(pod) {
		little, big = append(little, b, 0), append(big, 0, b)
		little32, big32 = append(little32, b, 0, 0, 0), append(big32, 0, 0, 0, b)
	}
	for name, c := range map[string]struct{ text, want string }{
		"UTF-16 with a byte order mark":    {"\xff\xfe" + string(little), "UTF-16"},
		"UTF-16 with the other byte order": {"\xfe\xff" + string(big), "UTF-16"},
		"UTF-16 without a byte order mark": {string(little), "iconv"},
		"UTF-32 with a byte order mark":    {"\xff\xfe\x00\x00" + string(little32), "UTF-32 -t"},
		"UTF-32 with the other byte order": {"\x00\x00\xfe\xff" + string(big32), "UTF-32 -t"},
		"UTF-32 without a byte order mark": {string(little32), "UTF-32 -t"},
		"UTF-32 with big-endian bytes":     {string(big32), "UTF-32 -t"},
		"a key after a tab":                {strings.Replace(pod, "metadata: {name: web}", "metadata:\n\tname: web", 1), "replace the tabs"},
		"a tab on a line after spaces":     {strings.Replace(pod, "metadata: {name: web}", "metadata:\n  name: web\n\tlabels: {a: b}", 1), "replace the tabs"},
		"a tab in a value and a bad token": {strings.Replace(pod, "metadata: {name: web}", "a: |\n  x\n  \ty\nmetadata: @", 1), "reserved character"},
		"a Helm template":                  {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Release.Name }}\nspec:\n  {{- toYaml .Values.spec | nindent 2 }}\n", "helm template"},
		"a program that contains braces":   {"\x7fELF\x02\x00{{ x }}\x00", "control character"},
		"a gzip file":                      {"\x1f\x8b\x08\x00\x00\x00\x00\x00", "decompress"},
		"a ZIP file":                       {"PK\x03\x04\x14\x00", "decompress"},
		"an HTML page":                     {"<html>\n<head><title>502 Bad Gateway</title></head>\n</html>\n", "HTML"},
		"an HTML page with a colon":        {"\ufeff\n<!DOCTYPE html>\n<p>nginx: error</p>\n", "HTML"},
		"an HTML page after a mark":        {"---\n<p>error</p>\n", "HTML"},
		"a message":                        {"The connection to the server localhost:8080 was refused\n", "message of a program"},
		"a message of Helm":                {"Error: INSTALLATION FAILED: chart not found\n", "message of a program"},
		"a message of Helm with one colon": {"Error: chart not found\n", "message of a program"},
		"a message of kubectl":             {"Error from server (NotFound): deployments.apps \"web\" not found\n", "message of a program"},
		"a warning of Helm":                {"WARNING: file is group-readable. Location: /config\n", "message of a program"},
		"a Helm expression as a value":     {strings.Replace(pod, "name: web}\n", "name: {{ .Values.name }}}\n", 1), "helm template"},
	} {
		results := Inject([]*File{Parse("f.yaml", []byte(c.text))}, nil, inject.Services)
		if len(results) != 1 || results[0].Verdict != inject.Refused || results[0].Reason != inject.Unreadable || !strings.Contains(results[0].Text, c.want) {
			t.Errorf("%s: got %+v, want one unreadable document with %q", name, results[0].Outcome, c.want)
		}
	}
}

// A file of values can contain the words of a message, and a manifest can begin with a merge key.
func TestMapIsNoMessage(t *testing.T) {
	for _, text := range []string{"error: x\nname: web\n", "error:\n  page: x\n", "<<: {a: b}\n", "<html>: x\n"} {
		results := Inject([]*File{Parse("f.yaml", []byte(text))}, nil, inject.Services)
		harness.Equal(t, results[0].Text, "not a Kubernetes object", text)
	}
}

func TestSimpleTextMatchesLibrary(t *testing.T) {
	for _, value := range []string{
		"queue-proxy", "registry.example:5000/a/web-1:v1.2", "/ko-app/queue", "queue-proxy.dev/status", "SERVING_PORT", "containerPort", "httpGet", "n-o", "y:1", "e1.5", "x_1", "/a", "/a/b", "http", "TCP", "32Mi", "25m", "e", "inf", "nan", "Infinity", "none",
		"8080", "0", "08", "0777", "123456789012345678901234567890", "true", "false",
		`{"format":1,"undo":[]}`, `["it's", "a: b # c"]`, "{}", "[]", "{ }", `{"a":"\\n"}`,
	} {
		want, err := yaml.Marshal(value)
		harness.NoError(t, err)
		got, ok := simpleText(value)
		if !ok {
			t.Errorf("%q: got no text", value)
		}
		harness.Equal(t, got+"\n", string(want), value)
	}
	for _, value := range []string{"no", "On", "y", "null", "TRUE", "", " ", "a b", "1:20", "0x1f", "1e3", "2001-01-01", "a: b", "-a", "{\n}", "{é}", "{}\t", "a-", ".5", "~"} {
		if got, ok := simpleText(value); ok {
			t.Errorf("%q: got %q, want no text", value, got)
		}
	}
}

func TestBlankFileIsEmpty(t *testing.T) {
	for _, text := range []string{"", "\t", "\t\n", " \n\t\n"} {
		f := Parse("f", []byte(text))
		harness.Equal(t, len(Inject([]*File{f}, nil, inject.Workloads)), 0, text)
		harness.Equal(t, string(f.Text()), text)
	}
}

func TestByteOrderMarkBeforeJSONIsKept(t *testing.T) {
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}`
	for _, text := range []string{pod, pod + "\n" + pod + "\n", "\n" + pod + pod} {
		f := Parse("f", []byte("\ufeff"+text))
		results := Inject([]*File{f}, nil, inject.Workloads)
		harness.Equal(t, len(results), strings.Count(text, "Pod"), text)
		for _, r := range results {
			harness.Equal(t, r.Verdict, inject.Injected, text)
		}
		harness.Equal(t, string(f.Text()), "\ufeff"+injectText(t, text), text)
		harness.Equal(t, string(uninjectedText(Parse("f", f.Text()))), "\ufeff"+text)
	}
}
