package manifest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func injectText(t *testing.T, text string) string {
	t.Helper()
	f := Parse("f", []byte(text))
	if results := Inject([]*File{f}, nil, inject.Services); refused(results) {
		t.Fatalf("refused:\n%s", text)
	}
	return string(f.Text())
}

// uninjectedText returns the text of a file after [Uninject].
func uninjectedText(f *File) []byte {
	Uninject([]*File{f})
	return f.Text()
}

func TestUninjectRestoresEveryByte(t *testing.T) {
	for name, text := range inputs(t) {
		f := Parse(name, text)
		if refused(Inject([]*File{f}, nil, inject.Services)) || name == "already-injected" || name == "injected-by-newer" {
			continue
		}
		if got := uninjectedText(Parse(name, f.Text())); !bytes.Equal(got, text) {
			t.Errorf("%s: got\n%s\nwant\n%s\ninjected:\n%s", name, got, text, f.Text())
		}
	}
}

// Unlike Uninject, isRestored does not parse the document again. Both must have the same result,
// because no hunks are stored if isRestored returns true.
func TestIsRestoredMatchesUninject(t *testing.T) {
	results := map[bool]int{}
	for name, text := range inputs(t) {
		f := Parse(name, text)
		if refused(Inject([]*File{f}, nil, inject.Services)) || len(f.documents) > 1 || bytes.Equal(f.Text(), text) ||
			json.Valid(text) || bytes.Contains(text, []byte(inject.StatusAnnotation)) {
			continue
		}
		injected, was := f.documents[0], &document{text: text}
		injected.text, _ = injected.kept()
		want := bytes.Equal(uninjectedText(Parse(name, injected.text)), text)
		injected.decode()
		was.decode()
		harness.Equal(t, injected.isRestored(parsed{text, was.value}), want, name)
		results[want]++
	}
	if results[true] == 0 || results[false] == 0 {
		t.Errorf("got %v, want documents with both results", results)
	}
}

// compactPod is a pod in compact JSON.
const compactPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"web","image":"é\/x","ports":[{"containerPort":8080}]}]}}`

func TestUninjectRestoresJSONOnOneLine(t *testing.T) {
	spaced := strings.NewReplacer(":", ": ", ",", ", ").Replace(compactPod)
	wide := strings.NewReplacer(":", " :  ", ",", " , ").Replace(compactPod)
	for name, text := range map[string]string{
		"compact": compactPod, "spaced": spaced, "wide": wide, "escaped": strings.ReplaceAll(spaced, "é", `\u00e9`),
		"white space before": " \n " + spaced, "white space after": compactPod + " \n\n",
		"a stream": compactPod + "\n" + spaced + "\n" + wide, "a stream on one line": spaced + compactPod + " " + wide,
		"a list": `{"kind":"List", "apiVersion":"v1","items" : [` + spaced + "]}",
	} {
		for _, end := range []string{"", "\n", "\r\n"} {
			for _, steps := range [][]inject.Step{{inject.Workloads}, {inject.Services}, {inject.Workloads, inject.Services}} {
				got := text + end
				for _, step := range steps {
					got = injectStep(got, step)
				}
				if got == text+end {
					t.Errorf("%s: got no injection", name)
				}
				harness.Equal(t, string(uninjectedText(Parse("f", []byte(got)))), text+end, name, got)
			}
		}
	}
}

func TestWarningIfLayoutIsTooLong(t *testing.T) {
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","labels":{"app":"web"}},"spec" :{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}`
	const service = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec" :{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}}`
	for length, want := range map[int]bool{10: false, maxHunkBytes: true} {
		var files []*File
		for _, text := range []string{pod, service} {
			files = append(files, Parse("f", []byte(strings.Replace(text, `"spec" :`, `"spec" :`+strings.Repeat(" ", length), 1))))
		}
		for i, r := range Inject(files, nil, inject.Services) {
			harness.Equal(t, r.Verdict, []inject.Verdict{inject.Injected, inject.Rewritten}[i])
			harness.Equal(t, strings.Contains(strings.Join(r.Warnings, "\n"), "uninject will restore the values of the document but not its layout"), want, r.Kind, length)
		}
	}
}

func TestUninjectRestoresDocumentOnMarkerLine(t *testing.T) {
	const pod = `{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: web, ports: [{containerPort: 8080}]}]}}`
	for _, mark := range []string{"--- ", "---\t", "---  ", "--- !!map ", "--- # first\n"} {
		for _, end := range []string{"", "\n", "\n...\n"} {
			text := "a: b\n" + mark + pod + "\n" + mark + pod + end
			in := injectText(t, text)
			results := Inject([]*File{Parse("f", []byte(in))}, nil, inject.Workloads)
			harness.Equal(t, len(results), 3, mark, in)
			harness.Equal(t, string(uninjectedText(Parse("f", []byte(in)))), text, mark, in)
		}
	}
}

func TestUninjectRestoresMissingFinalNewline(t *testing.T) {
	for _, end := range []string{"", "\n", "\n\n", "\r\n", "\n...", "\n...\n", "\n# last", "\n---\n# empty",
		"\nx: |\n  a", "\nx: |+\n  a", "\nx: >-\n  a", "\nx: |\n  a\n...", "\nx: |\n  a\n\n", "\nx: |\r\n  a"} {
		text := strings.TrimSuffix(commented, "\n") + end
		in := injectText(t, text)
		if !strings.Contains(in, keptMark) {
			t.Errorf("%q: got no comment with the original text", end)
		}
		harness.Equal(t, string(uninjectedText(Parse("f", []byte(in)))), text, "end", end)
	}
}

func TestInjectionKeepsCRLFLineEndings(t *testing.T) {
	for name, text := range map[string]string{
		"a comment with the original text": commented,
		"no final newline":                 strings.TrimSuffix(commented, "\n"),
		"a final ... line":                 commented + "...\n",
		"a literal text":                   strings.Replace(commented, "    image:", "    args:\n    - |\n      a\n      b\n    image:", 1),
		"anchors":                          strings.NewReplacer("    ports:", "    env: &e [{name: A, value: b}]\n    ports: &p", "  - name: web\n", "  - name: web\n    x: &x {a: b}\n    <<: *x\n").Replace(commented),
		"a list on two lines":              strings.Replace(commented, "    ports:\n    - containerPort: 8080\n", "    ports: [{containerPort: 8080,\n      name: http}]\n", 1),
		"JSON":                             "{\n  \"kind\": \"Pod\", \"apiVersion\": \"v1\",\n  \"metadata\": {\"name\": \"web\"},\n  \"spec\": {\"containers\": [{\"name\": \"web\", \"ports\": [{\"containerPort\": 8080}]}]}\n}\n",
	} {
		text = strings.ReplaceAll(text, "\n", "\r\n")
		in := injectText(t, text)
		if bare := strings.Count(in, "\n") - strings.Count(in, "\r\n"); bare != 0 {
			t.Errorf("%s: got %d lines that end with LF only, want none:\n%q", name, bare, in)
		}
		harness.Equal(t, string(uninjectedText(Parse("f", []byte(in)))), text, name)
	}
}

// The original text can end with a comment that has the form of an injection's comment.
func TestUninjectRestoresCommentOfSameForm(t *testing.T) {
	text := commented + keptMark + "bogus\n"
	harness.Equal(t, string(uninjectedText(Parse("f", []byte(injectText(t, text))))), text)
}

const commented = `apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: web
    image: web:1   # the newest
    ports:
    - containerPort: 8080
    readinessProbe:   # is it there?
      periodSeconds:   3
      httpGet: {port:   8080}
`

func TestUninjectKeepsEditsAndRestoresComments(t *testing.T) {
	edit := func(s string) string { return strings.Replace(s, "web:1 ", "web:2 ", 1) }
	in := injectText(t, commented)
	harness.Equal(t, string(uninjectedText(Parse("f", []byte(edit(in))))), edit(commented))
}

// The hunks must only affect the layout. If the restored text does not have the value that results
// from the status, Uninject ignores the hunks.
func TestInvalidHunksAreIgnored(t *testing.T) {
	in := injectText(t, commented)
	for fact, change := range map[string]func(string) string{
		"another value": func(s string) string { return strings.Replace(s, `periodSeconds:   3\n`, `periodSeconds:   4\n`, 1) },
		"an additional field": func(s string) string {
			return strings.Replace(s, `periodSeconds:   3\n`, `periodSeconds:   3\n    securityContext: {privileged: true}\n`, 1)
		},
		"invalid JSON":         func(s string) string { return strings.Replace(s, keptMark+"[", keptMark+"{", 1) },
		"no numbers":           func(s string) string { return strings.Replace(s, keptMark+"[[", keptMark+`[["x",`, 1) },
		"a line after the end": func(s string) string { return strings.Replace(s, keptMark+"[[", keptMark+"[[9999999,", 1) },
		"a negative line":      func(s string) string { return strings.Replace(s, keptMark+"[[", keptMark+"[[-1,1,\"\"],[", 1) },
		"an additional line":   func(s string) string { return "# a line more\n" + s },
	} {
		text := change(in)
		if text == in {
			t.Fatalf("%s: the change does not apply to\n%s", fact, in)
		}
		got := uninjectedText(Parse("f", []byte(text)))
		if strings.Contains(string(got), "queue-proxy") || strings.Contains(string(got), "privileged") {
			t.Errorf("%s: got\n%s\nwant neither the sidecar nor new fields", fact, got)
		}
		if want := meaning(t, []byte(commented)); !bytes.Equal(encoded(t, meaning(t, got)), encoded(t, want)) {
			t.Errorf("%s: got\n%s\nwant the values of\n%s", fact, got, commented)
		}
	}
}

// In JSON, the status also contains the original layout. Uninject must accept such a status.
func TestJSONLayoutIsStoredInStatus(t *testing.T) {
	const text = "{\n   \"kind\": \"Pod\", \"apiVersion\": \"v1\",\n   \"metadata\": {\"name\": \"web\"},\n   \"spec\": {\"containers\": [\n      {\"name\": \"web\", \"image\": \"a\\/b\", \"ports\": [{\"containerPort\": 8080}]}\n   ]}\n}\n"
	in := injectText(t, text)
	harness.Contains(t, in, `\"text\":`)
	harness.Equal(t, string(uninjectedText(Parse("f", []byte(in)))), text)
	if r := Uninject([]*File{Parse("f", []byte(in))}); r[0].Verdict != inject.Uninjected {
		t.Errorf("got %s (%s), want uninjected", r[0].Verdict, r[0].Text)
	}
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	harness.NoError(t, err)
	return text
}

// Each step can change other objects of a List, which is one document.
func TestUninjectRestoresListsAfterAnySteps(t *testing.T) {
	changed := 0
	for name, text := range listsOfCorpus(t) {
		if injectStep(text, inject.Services) == text {
			continue
		}
		changed++
		for _, steps := range [][]inject.Step{{inject.Workloads}, {inject.Services}, {inject.Workloads, inject.Services}} {
			got := text
			for _, step := range steps {
				got = injectStep(got, step)
			}
			harness.Equal(t, injectStep(got, steps[len(steps)-1]), got, name, steps, "second injection")
			harness.Equal(t, string(uninjectedText(Parse("f", []byte(got)))), text, name, steps)
		}
	}
	if want := 100; changed < want {
		t.Errorf("got %d changed lists, want at least %d", changed, want)
	}
}

func injectStep(text string, step inject.Step) string {
	f := Parse("f", []byte(text))
	Inject([]*File{f}, nil, step)
	return string(f.Text())
}

// listsOfCorpus returns a List with the objects of each corpus file, as YAML and as JSON, with and
// without a newline at the end.
func listsOfCorpus(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../testdata/corpus/*.yaml")
	harness.NoError(t, err)
	all := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		harness.NoError(t, err)
		objects, err := Parse(file, text).JSON()
		harness.NoError(t, err)
		list := map[string]any{"apiVersion": "v1", "kind": "List"}
		var items []any
		for d := json.NewDecoder(bytes.NewReader(objects)); d.More(); {
			var item any
			harness.NoError(t, d.Decode(&item))
			items = append(items, item)
		}
		list["items"] = items
		asJSON, err := json.MarshalIndent(list, "", "    ")
		harness.NoError(t, err)
		asYAML, err := yaml.Marshal(list)
		harness.NoError(t, err)
		name := filepath.Base(file)
		all[name+" as JSON"], all[name+" as JSON with a newline"] = string(asJSON), string(asJSON)+"\n"
		all[name+" as YAML"], all[name+" as YAML with a newline"] = strings.TrimSpace(string(asYAML)), string(asYAML)
	}
	return all
}

// A List that contains a number is a document with several objects.
func TestWarningAboutDocumentIsReportedOnce(t *testing.T) {
	item := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec" :` + strings.Repeat(" ", maxHunkBytes) + `{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}`
	count, injected := 0, 0
	for _, r := range Inject([]*File{Parse("f.json", []byte(`{"apiVersion":"v1","kind":"List","items":[`+item+","+item+",3]}\n"))}, nil, inject.Services) {
		if r.Verdict == inject.Injected {
			injected++
		}
		count += strings.Count(strings.Join(r.Warnings, "\n"), "the document but not its layout")
	}
	harness.Equal(t, injected, 2)
	harness.Equal(t, count, 1)
}

func TestUninjectRestoresLongDocuments(t *testing.T) {
	long := strings.Repeat(`a \"b\", {c}: [d] `, maxHunkBytes/10)
	flow := `{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: web, env: [{name: A, value: "` + long + `"}], ports: [{containerPort: 8080}]}]}}`
	compact := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}],"env":[{"name":"A","value":"` + long + `"}]}]}}`
	short := strings.ReplaceAll(flow, long, "b")
	for name, text := range map[string]string{
		"flow style":                  flow + "\n",
		"containers in flow style":    "apiVersion: v1\nkind: Pod\nspec:\n  containers: [{name: web, env: [{name: A, value: \"" + long + "\"}], ports: [{containerPort: 8080}]}]\n",
		"divided list":                "{apiVersion: v1, kind: List, items: [" + strings.Repeat(short+", ", 600) + short + "]}\n",
		"undivided list":              "{apiVersion: v1, kind: List, items: [&a " + flow + ", " + flow + "]}\n",
		"list with a dash":            "apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("- "+short+"\n", 600),
		"JSON with additional spaces": strings.NewReplacer(`"ports":[`, `"ports" : [`, `"spec":`, `"spec" : `).Replace(compact) + "\n",
		"JSON with compact lists":     "{\n  " + strings.Replace(compact[1:len(compact)-1], `"spec":`, "\n  \"spec\": ", 1) + "\n}\n",
	} {
		f := Parse("f", []byte(text))
		for _, r := range Inject([]*File{f}, nil, inject.Services) {
			harness.Equal(t, r.Verdict, inject.Injected, name)
			harness.Equal(t, strings.Contains(strings.Join(r.Warnings, "\n"), "layout"), false, name)
		}
		if got := string(uninjectedText(Parse("f", f.Text()))); got != text {
			t.Errorf("%s: got %.500q, want %.500q", name, got, text)
		}
	}
}
