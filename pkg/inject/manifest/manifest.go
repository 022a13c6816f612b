// Package manifest injects the objects of files of YAML or JSON.
//
// [Parse] splits a file into documents, [Inject] and [Uninject] change them, and
// [File.Text] is the file again. A document that is not changed keeps its bytes. In one
// that is changed, the bytes of the changes alone are others: comments, order, blanks
// and quotes stay. Every change is read again and compared with what it should mean; a
// document whose layout cannot be edited in place is written anew, and its result says
// so.
package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// A File is a stream of documents.
type File struct {
	Name      string // for people
	documents []*document
}

// A document is one YAML document of a file, with the --- before it.
type document struct {
	line  int    // of the file, where it begins
	text  []byte // as it is now
	node  *yaml.Node
	value any   // of the node
	err   error // it cannot be read
	other bool  // err has no effect on the injection: see isOther

	inStatus string // of its objects' statuses: how it was written
}

// A Result is what became of one object.
type Result struct {
	File      string
	Line      int // of the file
	Kind      string
	Namespace string
	Name      string
	inject.Outcome

	object map[string]any // as it was
	from   *document
	path   string // of the object in its document
}

// Advice says what people often get wrong in the probes of such pods, a sentence each.
func (r *Result) Advice() []string {
	path, ok := inject.Template(r.object)
	if !ok {
		return nil
	}
	return inject.Advise(dig(r.object, path...))
}

// Object is what the result speaks of, as in "Deployment shop/web".
func (r *Result) Object() string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + name
	}
	return strings.TrimSpace(r.Kind + " " + name)
}

// Parse splits a file into its documents. What is wrong with one of them is found by
// Inject and Uninject, and is their result.
func Parse(name string, text []byte) *File {
	f := &File{Name: name}
	if isUTF16(text) { // the editor of the text only supports UTF-8
		f.documents = []*document{{line: 1, text: text, err: errUTF16}}
		return f
	}
	line := 1
	for _, chunk := range split(text) {
		f.documents = append(f.documents, &document{line: line, text: chunk})
		line += bytes.Count(chunk, []byte("\n"))
	}
	each(len(f.documents), func(i int) {
		d := f.documents[i]
		d.node, d.value, d.err = read(d.text)
		if d.err != nil && (d.node == nil || errors.Is(d.err, errKey)) && isHelmTemplate(d.text) {
			d.err = errHelmTemplate
		}
		d.other = d.err != nil && d.isOther()
	})
	return f
}

// Errors for files that are not manifests.
var (
	errUTF16        = errors.New("the file is encoded in UTF-16; convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8")
	errHelmTemplate = errors.New("the document is a Helm template ({{ ... }}); inject the output of helm template instead, or use the injector as a post-renderer")
)

// isUTF16 reports whether a file begins with a UTF-16 byte order mark or with a UTF-16 encoded ASCII
// character.
func isUTF16(text []byte) bool {
	if len(text) < 2 {
		return false
	}
	a, b := text[0], text[1]
	return a == 0xFE && b == 0xFF || a == 0xFF && b == 0xFE || (a == 0) != (b == 0)
}

// isHelmTemplate reports whether a text contains an action of a Go template.
func isHelmTemplate(text []byte) bool {
	_, rest, found := bytes.Cut(text, []byte("{{"))
	return found && bytes.Contains(rest, []byte("}}"))
}

// split cuts a stream where a line begins with ---, behind a line of ..., and between
// objects of JSON that follow one another.
func split(text []byte) [][]byte {
	var chunks [][]byte
	for _, chunk := range splitMarks(text) {
		for n := lengthOfJSON(chunk); n > 0; n = lengthOfJSON(chunk) {
			chunks = append(chunks, chunk[:n])
			chunk = chunk[n:]
		}
		chunks = append(chunks, chunk)
	}
	return chunks
}

// lengthOfJSON is where the first object of JSON ends, with its line, if another one
// follows; else 0.
func lengthOfJSON(text []byte) int {
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return 0
	}
	d := json.NewDecoder(bytes.NewReader(text))
	var value json.RawMessage
	if d.Decode(&value) != nil {
		return 0
	}
	n := int(d.InputOffset())
	if rest := bytes.TrimLeft(text[n:], " \t\r\n"); len(rest) == 0 || rest[0] != '{' {
		return 0
	}
	if end := bytes.IndexByte(text[n:], '\n'); end >= 0 && isBlank(text[n:n+end]) {
		n += end + 1
	}
	return n
}

func splitMarks(text []byte) [][]byte {
	var chunks [][]byte
	begin, content, i := 0, false, 0
	for line := range bytes.Lines(text) {
		marks := bytes.HasPrefix(line, []byte("---")) && (len(line) == 3 || isSpace(line[3]))
		if marks && content {
			chunks = append(chunks, text[begin:i])
			begin = i
		}
		ends := bytes.HasPrefix(line, []byte("...")) && (len(line) == 3 || isSpace(line[3]))
		i += len(line)
		if last := len(chunks) - 1; ends && !content && last >= 0 { // once more what has ended
			chunks[last] = text[begin-len(chunks[last]) : i]
			begin = i
			continue
		}
		// What stands before the first mark belongs to it while it is a comment, a
		// directive or nothing.
		if trimmed := bytes.TrimSpace(line); marks || len(trimmed) > 0 && trimmed[0] != '#' && trimmed[0] != '%' {
			content = true
		}
		if ends {
			chunks = append(chunks, text[begin:i])
			begin, content = i, false
		}
	}
	if begin < len(text) {
		chunks = append(chunks, text[begin:])
	}
	return chunks
}

// parse reads the content of one document; nil is an empty one. The YAML library does not
// know all escapes of JSON: the slash, and letters beyond U+FFFF as pairs of surrogates
// (RFC 8259 section 7).
func parse(text []byte) (*yaml.Node, error) {
	if json.Valid(text) && utf8.Valid(text) {
		return nodeOfJSON(text), nil
	}
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		return nil, nil
	case err != nil:
		return nil, err
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the document without --- before it")
	}
	return doc.Content[0], nil
}

// read is a text's content, and what it means.
func read(text []byte) (n *yaml.Node, value any, err error) {
	if n, err = parse(text); err == nil && n != nil {
		value, err = valueOf(n)
	}
	return n, value, err
}

// Text is the file as it is now.
func (f *File) Text() []byte {
	var b bytes.Buffer
	for _, d := range f.documents {
		b.Write(d.text)
	}
	return b.Bytes()
}

// Documents is how many documents with something in them the file has.
func (f *File) Documents() int {
	return len(slices.DeleteFunc(slices.Clone(f.documents), func(d *document) bool { return d.node == nil && d.err == nil }))
}

// JSON returns the current content of the file. Each document is written as a JSON object that starts
// on a new line. A document with an error is omitted, unless the error is a repeated key and the
// document is never modified.
func (f *File) JSON() ([]byte, error) {
	var b bytes.Buffer
	for _, d := range f.documents {
		root, value, err := read(d.text) // which knows how far aliases may be followed
		if errors.Is(err, errRepeated) && d.other {
			var invalid bool
			if value, invalid, _ = readLeniently(root, false); !invalid {
				err = nil
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w; with --output=yaml, the document is written unchanged", f.Name, d.line, err)
		}
		if value != nil {
			b.Write(append(jsonText(expand(root), "  "), '\n'))
		}
	}
	return b.Bytes(), nil
}

// Inject processes all objects in the given files, and stops after the given step. It examines
// Services and NetworkPolicies together with the pods of all files. The results are in the order of
// the objects. A document that cannot be parsed has a single result with the verdict refused.
func Inject(files []*File, said inject.Options, step inject.Step) []*Result {
	results := list(files)
	f := lookAround(results)
	ports := f.ports()
	all := make([]inject.Pods, len(f.owners))
	each(len(f.owners), func(i int) {
		r, path := f.owners[i], f.templates[i]
		r.Outcome = inject.Inject(dig(r.object, path...), said, ports[i]...)
		warnOfLostOptions(r, path)
		all[i] = inject.Pods{Owner: r.Object(), Namespace: r.Namespace, Labels: f.labels[i], Outcome: r.Outcome}
		r.Changes = inject.Below(prefix(path), r.Changes)
	})
	pods := newPodIndex(all)
	for _, r := range results {
		switch {
		case isService(r):
			r.Outcome = pods.follow(r, step)
		case strings.HasPrefix(r.apiVersion(), "networking.k8s.io/") && r.Kind == "NetworkPolicy":
			r.Outcome = inject.WatchPolicy(r.object, all)
		}
	}
	for i, r := range f.owners {
		if r.Verdict == inject.Injected {
			r.Warnings = append(r.Warnings, inject.Unadmitted(all[i], f.quotasNear(r.Namespace))...)
		}
		if r.Verdict == inject.Injected && !pods.isServed(i) {
			r.Warnings = append(r.Warnings, inject.Unserved(r.Outcome))
		}
	}
	write(results, func(d *document, changes []inject.Change) (anew bool, err error) {
		was := d.text
		if anew, err = d.change(changes); err == nil {
			d.keep(was, changes)
		}
		return anew, err
	})
	return results
}

// Uninject takes back what [Inject] did.
func Uninject(files []*File) []*Result {
	results := list(files)
	for _, r := range results {
		if r.object == nil {
			continue
		}
		path, ok := inject.Template(r.object)
		switch {
		case ok:
			template := dig(r.object, path...)
			r.from.inStatus = cmp.Or(r.from.inStatus, inject.TextOf(template))
			r.Outcome = inject.Uninject(template)
			r.Changes = inject.Below(prefix(path), r.Changes)
		case isService(r):
			r.from.inStatus = cmp.Or(r.from.inStatus, inject.TextOf(r.object))
			r.Outcome = inject.UninjectService(r.object)
		default:
			r.Outcome = inject.Leave(r.object)
		}
	}
	write(results, func(d *document, changes []inject.Change) (anew bool, err error) {
		if d.restore(changes) {
			return false, nil
		}
		anew, err = d.change(changes)
		d.text, _ = d.kept()
		return anew, err
	})
	return results
}

func isService(r *Result) bool { return r.apiVersion() == "v1" && r.Kind == "Service" }

func (r *Result) apiVersion() string { return word(r.object["apiVersion"]) }

// list finds the objects of files, those in Lists as well.
func list(files []*File) []*Result {
	var results []*Result
	for _, f := range files {
		for _, d := range f.documents {
			if d.err != nil {
				line, text := d.whereabouts(d.err)
				kind, namespace, name := d.identity()
				out := inject.Outcome{Verdict: inject.Refused, Reason: inject.Unreadable, Text: text + "; with --on-refusal=skip, the document is not changed"}
				if d.other {
					out = inject.Outcome{Verdict: inject.Skipped, Reason: inject.NoPods, Text: "it makes no pods", Warnings: []string{text + "; the document is not changed"}}
				}
				results = append(results, &Result{File: f.Name, Line: line, Kind: kind, Namespace: namespace, Name: name, from: d, Outcome: out})
				continue
			}
			if d.value != nil {
				results = append(results, objects(f, d, d.node, d.value, "")...)
			}
		}
	}
	return results
}

// isOther reports whether a document with an error is neither a workload nor a Service, and contains none of them. Its
// content has no effect on the injection. A repeated key has two meanings, so both are examined.
func (d *document) isOther() bool {
	if d.node == nil || errors.Is(d.err, errTooLarge) || errors.Is(d.err, errHelmTemplate) {
		return false
	}
	for _, first := range []bool{true, false} {
		value, _, err := readLeniently(d.node, first)
		if err != nil {
			return false
		}
		object, _ := value.(map[string]any)
		kind, version := word(object["kind"]), word(object["apiVersion"])
		if _, isWorkload := inject.Template(value); isWorkload || strings.HasSuffix(kind, "List") || kind == "Service" && !strings.Contains(version, "/") {
			return false
		}
	}
	return true
}

// identity returns the kind, namespace and name of a document that has a syntax tree but no value, for example because
// a key is repeated. The first of several keys wins.
func (d *document) identity() (kind, namespace, name string) {
	if d.node == nil || target(d.node).Kind != yaml.MappingNode {
		return "", "", ""
	}
	scalar := func(n *yaml.Node, path ...string) string {
		for _, key := range path {
			i := -1
			if n = target(n); n.Kind == yaml.MappingNode {
				i = place(n, key)
			}
			if i < 0 {
				return ""
			}
			n = n.Content[i]
		}
		if n = target(n); n.Kind != yaml.ScalarNode {
			return ""
		}
		return n.Value
	}
	return scalar(d.node, "kind"), scalar(d.node, "metadata", "namespace"), scalar(d.node, "metadata", "name")
}

// whereabouts takes the line from an error of the parser, or of ours, which count from
// the beginning of the document.
func (d *document) whereabouts(err error) (line int, text string) {
	const mark = "line "
	text = strings.TrimPrefix(err.Error(), "yaml: ")
	at, rest, _ := strings.Cut(text, ": ")
	if n, err := strconv.Atoi(strings.TrimPrefix(at, mark)); err == nil {
		return d.line + n - 1, rest
	}
	return d.line, text
}

// objects is one object, or what a List holds.
func objects(f *File, d *document, n *yaml.Node, value any, path string) []*Result {
	line := d.line + target(n).Line - 1
	object, ok := value.(map[string]any)
	if !ok || word(object["kind"]) == "" {
		return []*Result{{File: f.Name, Line: line, from: d,
			Outcome: inject.Outcome{Verdict: inject.Skipped, Reason: inject.NoPods, Text: "it is no Kubernetes object"}}}
	}
	if items, ok := object["items"].([]any); ok && strings.HasSuffix(word(object["kind"]), "List") {
		if at := place(target(n), "items"); at >= 0 {
			var results []*Result
			nodes := target(target(n).Content[at]).Content
			for i, item := range items {
				item = withType(item, object)
				results = append(results, objects(f, d, nodes[i], item, fmt.Sprintf("%s/items/#%d", path, i))...)
			}
			return results
		}
	}
	metadata, _ := object["metadata"].(map[string]any)
	name := cmp.Or(word(metadata["name"]), word(metadata["generateName"]))
	return []*Result{{File: f.Name, Line: line, Kind: word(object["kind"]), Namespace: word(metadata["namespace"]), Name: name,
		object: object, from: d, path: path}}
}

// withType gives an item of a list of one kind, such as a PodList, the kind that it may
// leave out.
func withType(item any, list map[string]any) any {
	m, ok := item.(map[string]any)
	kind := strings.TrimSuffix(word(list["kind"]), "List")
	if !ok || m["kind"] != nil || kind == "" {
		return item
	}
	typed := map[string]any{"kind": kind, "apiVersion": list["apiVersion"]}
	maps.Copy(typed, m)
	return typed
}

// write makes the changes of the results in the text of their documents. change makes those
// of one document, and reports whether it had to be written anew.
func write(results []*Result, change func(*document, []inject.Change) (anew bool, err error)) {
	changed := map[*document][]*Result{}
	for _, r := range results {
		if len(r.Changes) > 0 {
			changed[r.from] = append(changed[r.from], r)
		}
	}
	documents := slices.Collect(maps.Keys(changed))
	each(len(documents), func(i int) {
		d := documents[i]
		var changes []inject.Change
		for _, r := range changed[d] {
			changes = append(changes, inject.Below(r.path, r.Changes)...)
		}
		anew, err := change(d, changes)
		for _, r := range changed[d] {
			switch {
			case err != nil:
				r.Outcome = inject.Outcome{Verdict: inject.Refused, Reason: inject.Unreadable, Text: err.Error()}
			case anew:
				r.Warnings = append(r.Warnings, "its text was written anew, because its layout (anchors, lists on one line) cannot be edited in place; comments are kept, blanks may differ")
			}
		}
	})
}

// each calls f for every number below n, on all processors, and returns when all
// calls have.
func each(n int, f func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	all.Wait()
}

// change edits the text of a document, in place if it can, and reports whether it had
// to be written anew. The nodes are of no use afterwards.
func (d *document) change(changes []inject.Change) (anew bool, err error) {
	want, err := d.after(changes)
	if err != nil {
		return false, err
	}
	isJSON := !isBlockStyle(d.node)
	doc := &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{d.node}}
	if !isJSON {
		if text, err := d.edited(changes); err == nil && means(text, want) == nil {
			d.text = text
			return false, nil
		}
		// The nodes may be half changed: begin again, with what has been read before.
		_ = yaml.Unmarshal(d.text, doc)
	}
	doc = expand(doc)
	for _, c := range changes {
		edit{}.apply(doc.Content[0], c)
	}
	text, err := d.written(doc, isJSON)
	if err != nil {
		return false, err
	}
	if lineEnding(d.text) == "\r\n" {
		text = bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
	}
	if err := means(text, want); err != nil {
		return false, fmt.Errorf("it cannot be written: %w", err)
	}
	d.text = text
	return !isJSON, nil
}

// after is what a document means after some changes.
func (d *document) after(changes []inject.Change) (any, error) {
	value, _ := valueOf(d.node) // once more: it has been read, and changes are made in place
	return inject.Apply(value, changes)
}

// edited is the text with the changes made in place.
func (d *document) edited(changes []inject.Change) ([]byte, error) {
	e := edit{}
	for _, c := range changes {
		e.apply(d.node, c)
	}
	return newSplicer(d.text, d.node, e).run(d.node)
}

// written is a document that is written anew, behind the same --- line.
func (d *document) written(doc *yaml.Node, isJSON bool) ([]byte, error) {
	head, _, ok := bytes.Cut(d.text, []byte("\n"))
	if !ok || !bytes.HasPrefix(head, []byte("---")) || bytes.ContainsAny(head, "{[") {
		head = nil
	} else {
		head = append(slices.Clone(head), '\n')
	}
	if isJSON {
		return slices.Concat(head, jsonText(doc.Content[0], indentOf(d.text)), []byte("\n")), nil
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(doc); err != nil {
		return nil, err
	}
	return slices.Concat(head, b.Bytes()), e.Close()
}

// indentOf is how far in the first member of an object of JSON stands; "" where it is
// on the same line.
func indentOf(text []byte) string {
	_, rest, _ := bytes.Cut(text, []byte("{"))
	line, rest, ok := bytes.Cut(rest, []byte("\n"))
	if !ok || !isBlank(line) {
		return ""
	}
	return string(rest[:len(rest)-len(bytes.TrimLeft(rest, " \t"))])
}

// means returns nil if a text says what it should, else what is wrong with it.
func means(text []byte, want any) error {
	_, got, err := read(text)
	if err == nil && !reflect.DeepEqual(got, want) {
		return errors.New("the result would mean something else")
	}
	return err
}

// warnOfLostOptions says where options stand on a workload instead of on its pods.
func warnOfLostOptions(r *Result, path []string) {
	if len(path) == 0 {
		return
	}
	for _, group := range []string{"annotations", "labels"} {
		entries, _ := dig(r.object, "metadata", group).(map[string]any)
		for key := range entries {
			if strings.HasPrefix(key, inject.Prefix) {
				r.Warnings = append(r.Warnings, fmt.Sprintf("%s of the %s are not read: put them under %s/metadata/%s", inject.Prefix+" "+group, r.Kind, strings.Join(path, "/"), group))
				return
			}
		}
	}
}

func dig(v any, path ...string) any {
	for _, token := range path {
		m, _ := v.(map[string]any)
		v = m[token]
	}
	return v
}

func labelsOf(template any) map[string]string {
	labels := map[string]string{}
	m, _ := dig(template, "metadata", "labels").(map[string]any)
	for key, v := range m {
		labels[key] = word(v)
	}
	return labels
}

func prefix(path []string) string {
	return strings.Join(append([]string{""}, path...), "/")
}

// word is a text that stands somewhere in an object, "" for anything else.
func word(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}
