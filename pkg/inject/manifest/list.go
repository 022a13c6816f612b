package manifest

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// An itemList is a List whose items are separate documents, because a decoded document needs about 50 times the memory
// of its text. The text between two items is also a document, but it is not decoded.
type itemList struct {
	kind, apiVersion string
	isJSON           bool
	column           int       // in YAML, the number of spaces before the dash of each item
	flow             *flowList // set if the items are in YAML flow style; column is not used
}

// A span is a range of bytes in a text.
type span struct{ begin, end int }

// splitList divides a List that begins at the given line of a file into documents. It returns nil if the text is
// not a List, or if its layout is not supported. The items of a supported List are JSON objects, or maps in block
// style without aliases, or maps in flow style: see splitFlowList.
func splitList(file string, line int, text []byte) (documents []*document) {
	l, items := readJSONList(text)
	if l == nil {
		l, items = readBlockList(text)
	}
	switch {
	case l == nil && len(text) < minFlowList:
		return nil
	case l == nil:
		return splitFlowList(file, line, text)
	}
	return l.divide(file, line, text, items)
}

// divide splits a List that begins at the given line of a file into documents: the given items and the
// texts between them.
func (l *itemList) divide(file string, line int, text []byte, items []span) (documents []*document) {
	end := 0
	add := func(s span, isItem bool) {
		d := &document{file: file, line: line, text: text[s.begin:s.end], in: l, isItem: isItem}
		if isItem {
			d.extract(text[end:s.begin])
		}
		documents = append(documents, d)
		line += bytes.Count(text[s.begin:s.end], []byte("\n"))
	}
	for _, item := range items {
		if end < item.begin {
			add(span{end, item.begin}, false)
		}
		add(item, true)
		end = item.end
	}
	add(span{end, len(text)}, false)
	return documents
}

// extract changes the text of an item so that it is a document: it removes the dash of a YAML item, and the
// indentation of a JSON item. before is the text between the previous item and this item, or between the start
// of the List and the first item. It does not contain the previous items, because they can be on the same line.
func (d *document) extract(before []byte) {
	if d.isInPlaceFlow() {
		return
	}
	if !d.in.isJSON {
		d.text = bytes.Clone(d.text)
		d.text[d.in.column] = ' '
		return
	}
	indent := before[bytes.LastIndexByte(before, '\n')+1:]
	lines := bytes.Count(d.text, []byte("\n"))
	if isBlank(indent) && bytes.Count(d.text, slices.Concat([]byte("\n"), indent)) == lines {
		d.indent = string(indent)
		d.text = bytes.ReplaceAll(d.text, []byte("\n"+d.indent), []byte("\n"))
	}
}

// fileText returns the text of the document in its file. For an item, it reverts extract.
func (d *document) fileText() []byte {
	switch {
	case !d.isItem || d.isInPlaceFlow():
		return d.text
	case d.in.isJSON:
		return bytes.ReplaceAll(d.text, []byte("\n"), []byte("\n"+d.indent))
	}
	text, at := bytes.Clone(d.text), 0
	for line := range bytes.Lines(d.text) {
		if !isBlankOrComment(line) {
			text[at+d.in.column] = '-'
			break
		}
		at += len(line)
	}
	return text
}

// joinLists returns the documents of a file. The items of a List and the texts between them
// are joined into a single document.
func joinLists(documents []*document) (joined []*document) {
	var in *itemList // List that contains the previous document; nil if there is none
	for _, d := range documents {
		if d.in != nil && d.in == in {
			whole := joined[len(joined)-1]
			whole.text = append(whole.text, d.fileText()...)
			continue
		}
		if in = d.in; in != nil {
			d = &document{file: d.file, line: d.line, text: bytes.Clone(d.text)}
		}
		joined = append(joined, d)
	}
	return joined
}

// indentItem indents the lines of a YAML item that was encoded again.
func (d *document) indentItem(text []byte) []byte {
	indent := strings.Repeat(" ", d.in.column+len("- "))
	var b bytes.Buffer
	for line := range bytes.Lines(text) {
		if !isBlank(line) {
			b.WriteString(indent)
		}
		b.Write(line)
	}
	return b.Bytes()
}

func isBlankOrComment(line []byte) bool {
	trimmed := bytes.TrimLeft(line, spaces)
	return len(trimmed) == 0 || trimmed[0] == '#'
}

// readJSONList returns the List in a JSON text and its items, or nil.
func readJSONList(text []byte) (l *itemList, items []span) {
	if !bytes.HasPrefix(bytes.TrimLeft(text, spaces), []byte("{")) || !bytes.Contains(text, []byte(`List"`)) || !json.Valid(text) || !utf8.Valid(text) {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	_, _ = d.Token() // the opening brace
	values := map[string]json.RawMessage{}
	for d.More() {
		key, _ := d.Token()
		name := key.(string)
		if _, repeated := values[name]; repeated {
			return nil, nil
		}
		var value json.RawMessage
		if name == "items" {
			if items = readJSONItems(d); items == nil {
				return nil, nil
			}
		} else {
			_ = d.Decode(&value)
		}
		values[name] = value
	}
	l = &itemList{isJSON: true}
	_, _ = json.Unmarshal(values["kind"], &l.kind), json.Unmarshal(values["apiVersion"], &l.apiVersion)
	if !strings.HasSuffix(l.kind, "List") || items == nil {
		return nil, nil
	}
	return l, items
}

// readJSONItems reads an array of objects. It returns nil if the array is empty or if the value is not an array of
// objects.
func readJSONItems(d *json.Decoder) (items []span) {
	if token, _ := d.Token(); token != json.Delim('[') {
		return nil
	}
	for d.More() {
		var value json.RawMessage
		_ = d.Decode(&value)
		if value[0] != '{' {
			return nil
		}
		end := int(d.InputOffset())
		items = append(items, span{end - len(value), end})
	}
	_, _ = d.Token() // the closing bracket
	return items
}

// Patterns of lines in a List in block style. A List with an alias is not divided, because the alias can
// refer to an anchor in another item.
var (
	itemsLine        = regexp.MustCompile(`(?m)^items:[ \t]*\r?$`)
	listLine         = regexp.MustCompile(`(?m)^kind:[ \t]*["']?\w*List\b`)
	aliasOrDirective = regexp.MustCompile(`(?m)(^|[\s,:\[{-])\*[^\s*/]|^%`)
)

// readBlockList returns the List in a YAML text and its items, or nil.
func readBlockList(text []byte) (*itemList, []span) {
	if len(itemsLine.FindAllIndex(text, 2)) != 1 || !listLine.Match(text) || aliasOrDirective.Match(text) {
		return nil, nil
	}
	l := &itemList{column: -1}
	var items []span
	end := itemsLine.FindIndex(text)[1]
	for line := range bytes.Lines(text[end:]) {
		key := bytes.TrimLeft(line, " ")
		indent := len(line) - len(key)
		key, begins := bytes.CutPrefix(key, []byte("- "))
		switch {
		case isBlankOrComment(line) || len(items) > 0 && indent > l.column:
		case begins && startsKey(key) && (len(items) == 0 || indent == l.column):
			l.column = indent
			items = append(items, span{begin: end})
		default:
			return l.verify(text, items)
		}
		end += len(line)
		if len(items) > 0 {
			items[len(items)-1].end = end
		}
	}
	return l.verify(text, items)
}

// startsKey reports whether the text after a dash begins with the key of a map.
func startsKey(text []byte) bool {
	return len(text) > 0 && (text[0] == '"' || text[0] == '\'' || 'A' <= text[0] && text[0] <= 'Z' || 'a' <= text[0] && text[0] <= 'z')
}

// verify returns l and its items if each item is a map and if the text around the items is a List.
func (l *itemList) verify(text []byte, items []span) (*itemList, []span) {
	if len(items) == 0 {
		return nil, nil
	}
	rest := slices.Concat(text[:items[0].begin], bytes.Repeat([]byte(" "), l.column), []byte("- item\n"), text[items[len(items)-1].end:])
	_, value, err := read(rest)
	l.kind, l.apiVersion = inject.Text(value, "kind"), inject.Text(value, "apiVersion")
	only, _ := inject.At(value, "items").([]any)
	if err != nil || !strings.HasSuffix(l.kind, "List") || len(only) != 1 {
		return nil, nil
	}
	for _, i := range items {
		d := &document{text: text[i.begin:i.end], in: l, isItem: true}
		d.extract(nil)
		if n, err := parse(d.text); err != nil || n == nil || n.Kind != yaml.MappingNode {
			return nil, nil
		}
	}
	return l, items
}
