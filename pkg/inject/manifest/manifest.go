// Package manifest injects the sidecar into the objects of YAML and JSON files.
//
// [Parse] splits a file into documents, [Inject] and [Uninject] change the documents, and
// [File.Text] returns the new content of the file. Documents without changes keep their bytes. In
// documents with changes, only the bytes of the changes are replaced, so comments, order, white
// space and quotes are preserved. The result of every change is parsed and compared with the
// expected value. A document that cannot be edited in place is encoded again, and its result
// contains a warning.
package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// A File is a sequence of YAML or JSON documents.
type File struct {
	Name      string // name of the file in messages
	documents []*document
}

// A document is one document of a file, including the preceding --- line. The nodes and the value
// need about 50 times the memory of the text. Therefore, they are not kept: each goroutine decodes
// one document at a time.
type document struct {
	file  string     // name of the file
	order int        // number of the document in the file, counted from 1; 0 if the file has one document
	line  int        // first line in the file, counted from 1
	text  []byte     // current content
	node  *yaml.Node // nil except while the document is decoded; an edit of the document changes the nodes
	value any        // nil except while the document is decoded; must not be modified
	empty bool       // the document has no value
	marks bool       // the text contains only --- lines or a byte order mark; it is not decoded, and can contain several documents

	in     *itemList // List that contains the document; nil if there is none
	isItem bool      // the document is an item of the List; false for the text between two items
	indent string    // indentation of a JSON item in the file; text does not contain it

	retained bool  // release has no effect
	err      error // the document is invalid
	other    bool  // err has no effect on the injection: see isOther

	results     []*Result // one result for each object, in the order of the objects
	statusHunks []string  // hunks in the status annotations of the document: see restore
	reformatted bool      // the document was encoded again
	lost        bool      // Uninject restores the values but not the layout: see keep
}

// A Result is the outcome for one object. The JSON names are stable.
type Result struct {
	File      string `json:"file"`
	Line      int    `json:"line"` // counted from 1
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	*inject.Outcome
	Rejected bool     `json:"rejected,omitempty"` // the API server would reject the pods because of a quota in the input
	Advice   []string `json:"advice,omitempty"`   // a sentence for each common mistake in the probes; only set by [Inject]

	// Document is the number of the object's document in the file, counted from 1. It is 0 if the file
	// has one document.
	Document int `json:"-"`

	// SameErrors is the number of further objects in the document that have the same error as this
	// object. In the results of these objects, HasSameError is set.
	SameErrors   int  `json:"-"`
	HasSameError bool `json:"-"`

	from  *document
	path  string // JSON pointer of the object in its document
	facts facts
}

// facts are the parts of an object that are required to find its related objects.
type facts struct {
	apiVersion string
	isObject   bool     // the value is a Kubernetes object
	hasPods    bool     // the object has a pod template
	template   []string // path of the pod template
	labels     map[string]string
	service    *inject.Service // nil if the object is not a Service
	selector   map[string]any  // selector of a Service
	quota      *inject.Quota   // nil if the object is not a quota
}

// HasPods reports whether the object is a pod or has a pod template.
func (r *Result) HasPods() bool { return r.facts.hasPods }

// Object returns the kind, namespace and name of the object, for example "Deployment shop/web".
func (r *Result) Object() string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + name
	}
	return strings.TrimSpace(r.Kind + " " + name)
}

// Parse splits a file into its documents. It returns no error, because the results of Inject
// and Uninject contain the errors of the documents.
func Parse(name string, text []byte) *File {
	f := &File{Name: name}
	if err := checkEncoding(text); err != nil {
		f.documents = []*document{{file: name, line: 1, text: text, err: err}}
		return f
	}
	if rest, ok := bytes.CutPrefix(text, []byte(byteOrderMark)); ok && startsObject(rest) { // JSON has no byte order mark (RFC 8259 section 8.1)
		f.documents = []*document{{file: name, line: 1, text: text[:len(byteOrderMark)], marks: true}}
		text = rest
	}
	line, offset := 1, 0
	chunks := split(text)
	for i, chunk := range chunks {
		first := line
		line += bytes.Count(chunk, []byte("\n"))
		offset += len(chunk)
		marks := string(bytes.Trim(chunk, " \r\n")) == "---"
		if last := len(f.documents) - 1; marks && last >= 0 && f.documents[last].marks {
			d := f.documents[last] // a separate document would need 300 bytes
			d.text = text[offset-len(chunk)-len(d.text) : offset]
			continue
		}
		documents := splitList(name, first, chunk)
		if documents == nil {
			documents = []*document{{file: name, line: first, text: chunk, marks: marks}}
		}
		for _, d := range documents {
			if len(chunks) > 1 {
				d.order = i + 1
			}
		}
		f.documents = append(f.documents, documents...)
	}
	return f
}

// byteOrderMark is the byte order mark in UTF-8.
const byteOrderMark = "\ufeff"

// startsObject reports whether the first character of a text, apart from white space, is an opening brace.
func startsObject(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, spaces), []byte("{"))
}

// decode sets the node and the value of the document. It sets err if the document is invalid. The
// caller calls release after use.
func (d *document) decode() {
	if d.node != nil || d.marks || d.in != nil && !d.isItem || isFormatError(d.err) {
		return
	}
	d.node, d.value, d.err = d.read(d.text)
	d.empty = d.node == nil && d.err == nil
	if format := d.format(); format != nil {
		d.err = format
	}
	d.other = d.err != nil && d.isOther()
}

// release releases the memory that decode allocated, unless the document is retained.
func (d *document) release() {
	if !d.retained {
		d.node, d.value = nil, nil
	}
}

// maxRetained is the maximum total length in bytes of documents that remain decoded between the steps
// of [Inject]. A decoded document needs about 50 times the memory of its text.
const maxRetained = 256 << 10

// retain keeps the documents decoded until the returned function is called, if they are small.
func retain(files []*File) (release func()) {
	size := 0
	var all []*document
	for _, f := range files {
		for _, d := range f.documents {
			size += len(d.text)
			all = append(all, d)
		}
	}
	for _, d := range all {
		d.retained = size <= maxRetained
	}
	return func() {
		for _, d := range all {
			d.retained = false
			d.release()
		}
	}
}

// split splits a file into documents. A document begins at a --- line, after a ... line, or at a
// JSON object after another JSON object.
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

// lengthOfJSON returns the total length of the first JSON object and the rest of its line if
// another JSON object follows. Otherwise, it returns 0.
func lengthOfJSON(text []byte) int {
	if !startsObject(text) {
		return 0
	}
	d := json.NewDecoder(bytes.NewReader(text))
	var value json.RawMessage
	if d.Decode(&value) != nil {
		return 0
	}
	n := int(d.InputOffset())
	if !startsObject(text[n:]) {
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
		if last := len(chunks) - 1; ends && !content && last >= 0 { // a further end mark of the same document
			chunks[last] = text[begin-len(chunks[last]) : i]
			begin = i
			continue
		}
		// Comments, directives and blank lines before the first --- line belong to the document after
		// this line.
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

// parse returns the syntax tree of one document, or nil if the document is empty. It does not use
// the YAML library for JSON, because the library does not support escaped slashes and surrogate
// pairs (RFC 8259 section 7).
func parse(text []byte) (*yaml.Node, error) {
	if isBlank(text) { // the YAML library returns an error for a tab
		return nil, nil
	}
	if json.Valid(text) && utf8.Valid(text) {
		return nodeOfJSON(text), nil
	}
	return parseYAML(text)
}

// parseYAML is like parse, but always uses the YAML library.
func parseYAML(text []byte) (*yaml.Node, error) {
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		return nil, nil
	case err != nil:
		return nil, err
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errNoMark
	}
	return doc.Content[0], nil
}

// read returns the syntax tree and the value of a document.
func read(text []byte) (n *yaml.Node, value any, err error) { return new(document).read(text) }

// read is like the function read, but parses the text with d.parse.
func (d *document) read(text []byte) (n *yaml.Node, value any, err error) {
	if n, err = d.parse(text); err == nil && n != nil {
		value, err = valueOf(n)
	}
	return n, value, err
}

// parse is like the function parse, but always uses the YAML library for an item that is edited in
// place, because such an edit requires the columns of the nodes.
func (d *document) parse(text []byte) (*yaml.Node, error) {
	if d.isInPlaceFlow() {
		return parseYAML(text)
	}
	return parse(text)
}

// Text returns the current content of the file.
func (f *File) Text() []byte {
	var b bytes.Buffer
	_, _ = f.WriteTo(&b) // Write of a bytes.Buffer returns no error
	return b.Bytes()
}

// WriteTo writes the current content of the file.
func (f *File) WriteTo(w io.Writer) (written int64, err error) {
	for _, d := range f.documents {
		n, err := w.Write(d.fileText())
		if written += int64(n); err != nil {
			return written, err
		}
	}
	return written, nil
}

// HasMark reports whether the file begins with a --- line.
func (f *File) HasMark() bool {
	return len(f.documents) > 0 && bytes.HasPrefix(f.documents[0].text, []byte("---"))
}

// LargestDocument returns the length in bytes of the longest document that is decoded as a whole.
func (f *File) LargestDocument() (size int) {
	for _, d := range f.documents {
		if !d.marks && (d.in == nil || d.isItem) {
			size = max(size, len(d.text))
		}
	}
	return size
}

// IsEmpty reports whether the file contains only empty documents. It must be called after [Inject]
// or [Uninject].
func (f *File) IsEmpty() bool {
	return !slices.ContainsFunc(f.documents, func(d *document) bool { return !d.empty })
}

// JSON returns the current content of the file. Each document is written as a JSON object that
// starts on a new line. A document with an error is omitted, unless the error is a repeated key in
// a document that is never modified.
func (f *File) JSON() ([]byte, error) {
	var b bytes.Buffer
	for _, d := range joinLists(f.documents) {
		d.decode() // decode limits the expansion of aliases
		root, value, err := d.node, d.value, d.err
		d.release()
		if errors.Is(err, errRepeated) && d.other {
			var invalid bool
			if value, invalid, _ = readLeniently(root, false); !invalid {
				err = nil
			}
		}
		if err != nil {
			line, text := d.position(err)
			return nil, fmt.Errorf("%s:%d: %s; with --output=yaml, the document is written unchanged", f.Name, line, text)
		}
		if value != nil {
			b.Write(append(jsonText(expand(root), jsonStyle{indent: "  "}), '\n'))
		}
	}
	return b.Bytes(), nil
}

// Inject processes all objects in the given files, and stops after the given step. It examines
// Services and NetworkPolicies together with the pods of all files. The results are in the order of
// the objects. A document that cannot be parsed has a single result with the verdict refused.
func Inject(files []*File, opts inject.Options, step inject.Step) []*Result {
	change := func(d *document, changes []inject.Change) error {
		was := parsed{d.text, d.value}
		reformatted, err := d.change(changes)
		if d.reformatted = d.reformatted || reformatted; err == nil {
			d.keep(was, changes)
		}
		return err
	}
	defer retain(files)()
	results := list(files, (*document).listFacts)
	f := findRelated(results)
	ports := f.ports()
	all := make([]inject.Pods, len(f.owners))
	visit(results, func(r *Result) bool { return r.facts.hasPods }, func(r *Result, object map[string]any) {
		i := f.places[r]
		path := r.facts.template
		template := inject.At(object, path...)
		out := inject.Inject(template, opts, ports[i]...)
		r.Outcome, r.Advice = &out, inject.Advise(template)
		warnOfIgnoredOptions(r, object)
		pods := inject.Pods{Owner: r.Object(), Namespace: r.Namespace, Labels: r.facts.labels, Outcome: out}
		if r.Verdict == inject.Injected {
			warnings := inject.Unadmitted(pods, template, f.quotasIn(r.Namespace))
			r.Rejected = len(warnings) > 0
			r.Warnings = append(r.Warnings, warnings...)
			r.Outcome.ReleaseResources()
		}
		all[i] = pods.Compact()
		r.Changes = inject.Below(prefix(path), r.Changes)
	}, change)
	pods := newPodIndex(all)
	isRelated := func(r *Result) bool { return isService(r) || isNetworkPolicy(r) }
	visit(results, isRelated, func(r *Result, object map[string]any) {
		var out inject.Outcome
		if isService(r) {
			out = pods.follow(r, object, step)
		} else {
			out = inject.WatchPolicy(object, all)
		}
		r.Outcome = &out
	}, change)
	for i, r := range f.owners {
		if r.Verdict == inject.Injected && !pods.isServed(i) {
			r.Warnings = append(r.Warnings, inject.Unserved(*r.Outcome))
		}
	}
	writeRest(results, change)
	finish(files, results)
	return results
}

// Uninject reverts the changes of [Inject].
func Uninject(files []*File) []*Result {
	results := list(files, func(d *document) {
		d.list(readStatus)
		d.write((*document).revert)
	})
	finish(files, results)
	return results
}

// readStatus sets the outcome of the removal for an object.
func readStatus(r *Result, object map[string]any) {
	path, ok := inject.Template(object)
	r.facts.apiVersion = inject.Text(object, "apiVersion")
	var out inject.Outcome
	switch {
	case ok:
		template := inject.At(object, path...)
		r.from.readHunks(template)
		out = inject.Uninject(template)
		out.Changes = inject.Below(prefix(path), out.Changes)
	case isService(r):
		r.from.readHunks(object)
		out = inject.UninjectService(object)
	default:
		out = inject.Leave(object)
	}
	r.Outcome = &out
}

func isService(r *Result) bool { return r.facts.apiVersion == "v1" && r.Kind == "Service" }

func isNetworkPolicy(r *Result) bool {
	return strings.HasPrefix(r.facts.apiVersion, "networking.k8s.io/") && r.Kind == "NetworkPolicy"
}

// list decodes the documents of the files, calls read with each document, and returns the results of
// all documents. The calls are concurrent.
func list(files []*File, read func(d *document)) []*Result {
	var documents []*document
	for _, f := range files {
		documents = append(documents, f.documents...)
	}
	// Skipped objects without pods share an outcome if its text is the same, because a file can
	// contain a million of these objects, and an outcome needs about 300 bytes. Shared outcomes are
	// not modified.
	var shared sync.Map
	each(len(documents), func(i int) {
		d := documents[i]
		d.decode()
		read(d)
		for _, r := range d.results {
			if r.Reason == inject.NoPods && len(r.Warnings) == 0 {
				first, _ := shared.LoadOrStore(r.Text, r.Outcome)
				r.Outcome = first.(*inject.Outcome)
			}
		}
		d.release()
	})
	var results []*Result
	for _, d := range documents {
		results = append(results, d.results...)
	}
	return results
}

// list sets the results of a decoded document, one for each object, including the items of Lists. It
// calls read with each Kubernetes object.
func (d *document) list(read func(r *Result, object map[string]any)) {
	d.results = nil
	switch {
	case d.err != nil:
		line, text := d.position(d.err)
		text += "; the document is not changed"
		kind, namespace, name := d.identity()
		out := inject.Outcome{Verdict: inject.Refused, Reason: inject.Unreadable, Text: text}
		if d.other {
			out = inject.Outcome{Verdict: inject.Skipped, Reason: inject.NoPods, Text: "the document contains no object with pods", Warnings: []string{text}}
		}
		d.results = []*Result{{File: d.file, Line: line, Document: d.order, Kind: kind, Namespace: namespace, Name: name, from: d, Outcome: &out}}
	case d.value != nil && d.hasInvalidItems():
		root := target(d.node)
		line := root.Line
		if i := place(root, "items"); i > 0 {
			line = root.Content[i-1].Line
		}
		out := inject.Outcome{Verdict: inject.Refused, Reason: inject.Unreadable, Text: "items: must be a list; the document is not changed"}
		d.results = []*Result{{File: d.file, Line: d.line + line - 1, Document: d.order, Kind: inject.Text(d.value, "kind"), from: d, Outcome: &out}}
	case d.value != nil:
		d.objects(func(n *yaml.Node, object map[string]any, path string) {
			r := &Result{File: d.file, Line: d.line + target(n).Line - 1, Document: d.order, from: d, path: path}
			d.results = append(d.results, r)
			if inject.Text(object, "kind") == "" {
				r.Outcome = &inject.Outcome{Verdict: inject.Skipped, Reason: inject.NoPods, Text: "not a Kubernetes object"}
				return
			}
			metadata := object["metadata"]
			r.Kind, r.Namespace = inject.Text(object, "kind"), inject.Text(metadata, "namespace")
			r.Name = cmp.Or(inject.Text(metadata, "name"), inject.Text(metadata, "generateName"))
			r.facts.isObject = true
			read(r, object)
		})
	}
}

// hasInvalidItems reports whether the document is a Kubernetes List (v1) whose items are not a list.
func (d *document) hasInvalidItems() bool {
	object, _ := d.value.(map[string]any)
	if object["items"] == nil || inject.Text(object, "apiVersion") != "v1" || !strings.HasSuffix(inject.Text(object, "kind"), "List") {
		return false
	}
	_, isList := object["items"].([]any)
	return !isList
}

// listFacts sets the results and their facts.
func (d *document) listFacts() { d.list(readFacts) }

// readFacts sets the facts of an object, and the outcome of an object without pods.
func readFacts(r *Result, object map[string]any) {
	r.facts.apiVersion = inject.Text(object, "apiVersion")
	if isService(r) {
		r.facts.service, _ = inject.ReadService(object)
		r.facts.selector = selectorOf(object)
	}
	if quota, ok := inject.ReadQuota(object); ok {
		r.facts.quota = &quota
	}
	r.facts.template, r.facts.hasPods = inject.Template(object)
	if r.facts.hasPods {
		r.Outcome = new(inject.Outcome) // set by Inject
		r.facts.labels = labelsOf(inject.At(object, r.facts.template...))
	} else {
		out := inject.Leave(object)
		r.Outcome = &out
	}
}

// documentsOf returns the documents that have a selected result. The results of a document are
// adjacent.
func documentsOf(results []*Result, selected func(*Result) bool) (documents []*document) {
	for _, r := range results {
		if selected(r) && (len(documents) == 0 || documents[len(documents)-1] != r.from) {
			documents = append(documents, r.from)
		}
	}
	return documents
}

// visit decodes each document with wanted results a second time, and calls f concurrently with each
// wanted result and its object. It then applies the changes to documents with a single object. writeRest
// applies the changes to other documents, because a Service depends on all pods.
func visit(results []*Result, wanted func(*Result) bool, f func(r *Result, object map[string]any), change func(*document, []inject.Change) error) {
	selected := func(r *Result) bool { return r.facts.isObject && wanted(r) }
	documents := documentsOf(results, selected)
	each(len(documents), func(i int) {
		d := documents[i]
		var objects []map[string]any
		d.decode()
		d.objects(func(_ *yaml.Node, object map[string]any, _ string) { objects = append(objects, object) })
		each(len(objects), func(k int) {
			if r := d.results[k]; selected(r) {
				f(r, objects[k])
			}
		})
		if len(objects) == 1 && change != nil {
			d.write(change)
		}
		d.release()
	})
}

// writeRest applies the changes that are not applied yet.
func writeRest(results []*Result, change func(*document, []inject.Change) error) {
	documents := documentsOf(results, func(r *Result) bool { return len(r.Changes) > 0 })
	each(len(documents), func(i int) {
		d := documents[i]
		d.decode()
		d.write(change)
		d.release()
	})
}

// finish completes the files after all changes: see [File.joinFlowLists] and warnOfFormat.
func finish(files []*File, results []*Result) {
	for _, f := range files {
		f.joinFlowLists()
	}
	warnOfFormat(results)
}

// warnOfFormat adds a warning to the first changed object of each document that was encoded again or that
// cannot be restored byte for byte.
func warnOfFormat(results []*Result) {
	var warned any // *document or *flowList with the last warning
	for _, r := range results {
		if !slices.Contains([]inject.Verdict{inject.Injected, inject.Uninjected, inject.Rewritten}, r.Verdict) {
			continue
		}
		var whole any = r.from
		if in := r.from.in; in != nil && in.flow != nil {
			whole = in.flow
		}
		if whole == warned {
			continue
		}
		if r.from.lost {
			r.Warnings = append(r.Warnings, fmt.Sprintf("uninject will restore the values of the document but not its layout (anchors, quotes, order of keys, white space), because the difference exceeds %d bytes", maxHunkBytes))
		}
		if r.from.reformatted {
			r.Warnings = append(r.Warnings, "the document contains anchors or lists on one line, so it cannot be edited in place; comments are kept, but white space may change")
		}
		if r.from.lost || r.from.reformatted {
			warned = whole
		}
	}
}

// write applies the changes in the document's results, and removes the changes from the results.
// The document must be decoded.
func (d *document) write(change func(*document, []inject.Change) error) {
	changes, changed := d.takeChanges()
	if len(changes) == 0 {
		return
	}
	err := change(d, changes)
	d.node, d.value = nil, nil
	if err != nil {
		for _, r := range changed {
			r.Outcome = &inject.Outcome{Verdict: inject.Refused, Reason: inject.Unreadable, Text: err.Error()}
			r.HasSameError = r != changed[0]
		}
		changed[0].SameErrors = len(changed) - 1
	}
	d.text = bytes.Clone(d.text) // copy without the unused capacity of the buffer
}

// takeChanges removes the changes from the results of the document, and returns them with the changed
// results.
func (d *document) takeChanges() (changes []inject.Change, changed []*Result) {
	for _, r := range d.results {
		if len(r.Changes) > 0 {
			changes = append(changes, inject.Below(r.path, r.Changes)...)
			changed = append(changed, r)
			r.Changes = nil
		}
	}
	return changes, changed
}

// isOther reports whether a document with an error has no effect on the injection, because it is
// not a workload, a Service or a List. If a key is repeated, both values are examined.
func (d *document) isOther() bool {
	if d.node == nil || isFormatError(d.err) {
		return false
	}
	for _, first := range []bool{true, false} {
		value, _, err := readLeniently(d.node, first)
		if err != nil {
			return false
		}
		object, _ := value.(map[string]any)
		kind, version := inject.Text(object, "kind"), inject.Text(object, "apiVersion")
		if _, isWorkload := inject.Template(value); isWorkload || strings.HasSuffix(kind, "List") || kind == "Service" && !strings.Contains(version, "/") {
			return false
		}
	}
	return true
}

// identity returns the kind, namespace and name of a document that has a syntax tree but no value,
// for example because a key is repeated. The first value of a repeated key is used.
func (d *document) identity() (kind, namespace, name string) {
	if d.node == nil {
		return "", "", ""
	}
	object, _, _ := readLeniently(d.node, true)
	metadata := inject.At(object, "metadata")
	return inject.Text(object, "kind"), inject.Text(metadata, "namespace"), inject.Text(metadata, "name")
}

// objects calls f for the value of the decoded document, or for each item if the value is a List.
// path is the JSON pointer of the object. object is nil if the value is not a map.
func (d *document) objects(f func(n *yaml.Node, object map[string]any, path string)) {
	var walk func(n *yaml.Node, value any, path string)
	walk = func(n *yaml.Node, value any, path string) {
		object, _ := value.(map[string]any)
		if items, ok := object["items"].([]any); ok && strings.HasSuffix(inject.Text(object, "kind"), "List") {
			if at := place(target(n), "items"); at >= 0 {
				nodes := target(target(n).Content[at]).Content
				for i, item := range items {
					walk(nodes[i], withType(item, object), fmt.Sprintf("%s/items/#%d", path, i))
				}
				return
			}
		}
		f(n, object, path)
	}
	value := d.value
	if d.in != nil {
		value = withType(value, map[string]any{"kind": d.in.kind, "apiVersion": d.in.apiVersion})
	}
	walk(d.node, value, "")
}

// withType sets the kind and the apiVersion of an item in a typed list such as a PodList. The items
// of such a list can omit these fields.
func withType(item any, list map[string]any) any {
	m, ok := item.(map[string]any)
	kind := strings.TrimSuffix(inject.Text(list, "kind"), "List")
	if !ok || m["kind"] != nil || kind == "" {
		return item
	}
	typed := map[string]any{"kind": kind, "apiVersion": list["apiVersion"]}
	maps.Copy(typed, m)
	return typed
}

// each calls f concurrently for each number from 0 to n-1. It returns after all calls have
// returned.
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

// change applies changes to the decoded document, in place if possible. reformatted reports whether
// the document was encoded again. If change returns no error, the document remains decoded.
func (d *document) change(changes []inject.Change) (reformatted bool, err error) {
	want, err := inject.Apply(d.value, changes)
	if err != nil {
		return false, err
	}
	isJSON := d.becomesJSON()
	if !isJSON {
		text, err := d.editText(changes)
		d.node = nil // reduces the peak memory usage, because setText decodes the new text
		if err == nil {
			err = d.setText(text, want)
		}
		if err == nil || errors.Is(err, errTooLarge) || errors.Is(err, errAliases) {
			return false, err
		}
		if d.node, err = d.parse(d.text); err != nil { // the nodes were changed
			return false, err
		}
	}
	text, err := d.encode(changes)
	if err != nil {
		return false, err
	}
	d.node = nil // reduces the peak memory usage as well
	if err := d.setText(text, want); err != nil {
		return false, fmt.Errorf("encode document: %w", err)
	}
	return !isJSON, nil
}

// setText replaces the text of the document. It returns an error if the value of the new text is
// not equal to want.
func (d *document) setText(text []byte, want any) error {
	n, got, err := d.read(text)
	if err == nil && !equal(got, want) {
		err = errors.New("the result does not have the expected value")
	}
	if err == nil {
		d.text, d.node, d.value = text, n, got
	}
	return err
}

// equal reports whether two values of the form that [inject.Decode] returns are equal. It is much
// faster than reflect.DeepEqual.
func equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for key, value := range a {
			if other, has := b[key]; !has || !equal(value, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	}
	switch b.(type) {
	case map[string]any, []any: // not comparable
		return false
	}
	return a == b
}

// editText makes the changes in place and returns the new text of the document. It changes the nodes
// of the document.
func (d *document) editText(changes []inject.Change) ([]byte, error) {
	e := edit{}
	for _, c := range changes {
		e.apply(d.node, c)
	}
	return newSplicer(d.text, d.node, e).run(d.node)
}

// encode applies the changes and returns the new text of the document. It modifies the nodes of a
// JSON document in place, because a copy would increase the peak memory usage.
func (d *document) encode(changes []inject.Change) ([]byte, error) {
	isJSON := d.becomesJSON()
	doc := &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{d.node}}
	if !isJSON {
		_ = yaml.Unmarshal(d.text, doc) // parse again with the comments, because the nodes may be partially changed
	}
	if !json.Valid(d.text) {
		doc = expand(doc)
	}
	for _, c := range changes {
		edit{}.apply(doc.Content[0], c)
	}
	text, err := d.encodeDocument(doc, isJSON)
	switch {
	case d.isInPlaceFlow():
		text = bytes.TrimSuffix(text, []byte("\n"))
	case d.isItem && !d.in.isJSON:
		text = d.indentItem(text)
	}
	if err == nil && lineEnding(d.text) == "\r\n" {
		text = bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
	}
	return text, err
}

// encodeDocument encodes a document. It keeps the --- line of the original text, and the white
// space around a JSON object.
func (d *document) encodeDocument(doc *yaml.Node, isJSON bool) ([]byte, error) {
	head := d.head()
	if isJSON {
		begin, end := head, []byte("\n")
		if left := bytes.TrimLeft(d.text, spaces); bytes.HasPrefix(left, []byte("{")) {
			begin = d.text[:len(d.text)-len(left)]
		}
		if right := bytes.TrimRight(d.text, spaces); bytes.HasSuffix(right, []byte("}")) {
			end = d.text[len(right):]
		}
		return slices.Concat(begin, jsonText(doc.Content[0], styleOf(d.text)), end), nil
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(doc); err != nil {
		return nil, err
	}
	return slices.Concat(head, b.Bytes()), e.Close()
}

// head returns the --- line of a document, or only the beginning of the line if it also contains
// the value.
func (d *document) head() []byte {
	line, _, ok := bytes.Cut(d.text, []byte("\n"))
	after, isMarked := bytes.CutPrefix(line, []byte("---"))
	switch value := bytes.IndexAny(after, "{["); {
	case !isMarked:
		return nil
	case value < 0 && ok:
		return append(slices.Clone(line), '\n')
	case value >= 0 && isBlank(after[:value]):
		return line[:len("---")+value]
	}
	return []byte("---\n") // omit the tag, the anchor and the comment of the value
}

// styleOf returns the style of a JSON object.
func styleOf(text []byte) jsonStyle {
	if indent := indentOf(text); indent != "" {
		return jsonStyle{indent: indent}
	}
	if _, after, _ := bytes.Cut(text, []byte(`":`)); bytes.HasPrefix(after, []byte(" ")) {
		return jsonStyle{space: " "}
	}
	return jsonStyle{}
}

// indentOf returns the indentation of the first member in a JSON object, or "" if this member is on
// the first line.
func indentOf(text []byte) string {
	_, rest, _ := bytes.Cut(text, []byte("{"))
	line, rest, ok := bytes.Cut(rest, []byte("\n"))
	if !ok || !isBlank(line) {
		return ""
	}
	return string(rest[:len(rest)-len(bytes.TrimLeft(rest, " \t"))])
}

// warnOfIgnoredOptions adds a warning for annotations and labels with options that are set on a
// workload instead of its pod template.
func warnOfIgnoredOptions(r *Result, object map[string]any) {
	path := r.facts.template
	if len(path) == 0 {
		return
	}
	for _, group := range []string{"annotations", "labels"} {
		entries, _ := inject.At(object, "metadata", group).(map[string]any)
		for key := range entries {
			if strings.HasPrefix(key, inject.Prefix) {
				r.Warnings = append(r.Warnings, fmt.Sprintf("%s of the %s are ignored; move them to %s/metadata/%s", inject.Prefix+" "+group, r.Kind, strings.Join(path, "/"), group))
				return
			}
		}
	}
}

func labelsOf(template any) map[string]string {
	labels := map[string]string{}
	m, _ := inject.At(template, "metadata", "labels").(map[string]any)
	for key := range m {
		labels[key] = inject.Text(m, key)
	}
	return labels
}

func prefix(path []string) string {
	return strings.Join(append([]string{""}, path...), "/")
}
