package manifest

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// This file divides Lists whose items are maps in YAML flow style, such as items: [{...}, {...}]. The
// result of an injection is the same as for the undivided List:
//
//   - If the List itself is in flow style, a change encodes the whole List as JSON. Therefore, the List is
//     converted to JSON before it is divided.
//   - If the List is in block style, the items are edited in place. This is only possible if each item
//     is on one line.
//   - The hunks restore the layout of the whole List.

// minFlowList is the minimum length in bytes of a List in flow style that is divided. A shorter List
// needs little memory.
const minFlowList = 64 << 10

// placeholder replaces the items of a List in flow style.
const placeholder = inject.Prefix + "items"

// Patterns of Lists with items in flow style.
var (
	itemsBracket = regexp.MustCompile(`(?m)(?:^|[{,\s])["']?items["']?:\s*\[`)
	dashOfItem   = regexp.MustCompile(`^ *- +$`)
)

// A flowList is the text of a List in flow style.
type flowList struct {
	original []byte
	divided  []byte // original, or original converted to JSON
}

// splitFlowList divides a List whose items are maps in flow style without anchors, aliases or tags. It returns
// nil if the text is not such a List, or if the injector changed it before.
func splitFlowList(file string, line int, text []byte) []*document {
	l, items, divided := readFlowList(text)
	if l == nil {
		return nil
	}
	documents := l.divide(file, line, l.flow.divided, divided)
	end := 0
	for _, d := range documents {
		if d.isItem { // use the line number in the original text
			line += bytes.Count(text[end:items[0].begin], []byte("\n"))
			d.line, end, items = line, items[0].begin, items[1:]
		}
	}
	return documents
}

// readFlowList returns the List in a YAML text, and the ranges of its items in l.flow.original and
// in l.flow.divided. It returns nil if there is no List or if the List is not supported.
func readFlowList(text []byte) (l *itemList, items, divided []span) {
	for _, unsupported := range []string{"\r", inject.StatusAnnotation, keptMark, placeholder} {
		if bytes.Contains(text, []byte(unsupported)) {
			return nil, nil, nil
		}
	}
	if items = findFlowItems(text); len(items) == 0 {
		return nil, nil, nil
	}
	root, value, err := read(slices.Concat(text[:items[0].begin], []byte(placeholder), text[items[len(items)-1].end:]))
	only, _ := inject.At(value, "items").([]any)
	l = &itemList{kind: inject.Text(value, "kind"), apiVersion: inject.Text(value, "apiVersion"), flow: &flowList{text, text}}
	if err != nil || !strings.HasSuffix(l.kind, "List") || len(only) != 1 || only[0] != placeholder {
		return nil, nil, nil
	}
	isFlow := !isBlockStyle(root)
	converted := jsonItems{style: styleOf(text)}
	for _, i := range items {
		n, value, err := (&document{in: l, isItem: true}).read(text[i.begin:i.end])
		isList := strings.HasSuffix(inject.Text(value, "kind"), "List")
		if err != nil || isList || !isPlain(n) || !isFlow && bytes.ContainsRune(text[i.begin:i.end], '\n') {
			return nil, nil, nil
		}
		if isFlow {
			converted.add(n)
		}
	}
	if !isFlow {
		return l, items, items
	}
	l.isJSON = true
	l.flow.divided, divided = converted.list(text, root)
	return l, items, divided
}

// isInPlaceFlow reports whether the document is an item in flow style that is edited in place.
func (d *document) isInPlaceFlow() bool { return d.in != nil && d.in.flow != nil && !d.in.isJSON }

// becomesJSON reports whether a change encodes the whole document as JSON.
func (d *document) becomesJSON() bool { return !isBlockStyle(d.node) && !d.isInPlaceFlow() }

// isPlain reports whether a node contains no anchors, aliases or tags.
func isPlain(n *yaml.Node) bool {
	return n.Kind != yaml.AliasNode && n.Anchor == "" && n.Style&yaml.TaggedStyle == 0 &&
		!slices.ContainsFunc(n.Content, func(child *yaml.Node) bool { return !isPlain(child) })
}

// findFlowItems returns the items of a List if they seem to be maps in flow style.
func findFlowItems(text []byte) (items []span) {
	s := &splicer{text: text}
	defer func() {
		if recover() != nil { // see errLayout
			items = nil
		}
	}()
	if found := itemsLine.FindIndex(text); found != nil {
		items = s.dashedItems(found[1])
	}
	if found := itemsBracket.FindIndex(text); found != nil && len(items) == 0 {
		items = s.bracketedItems(found[1])
	}
	return items
}

// bracketedItems returns the items of a list in flow style. i is the offset after the opening bracket.
func (s *splicer) bracketedItems(i int) (items []span) {
	for separated := true; ; {
		i = s.skipComments(i)
		switch {
		case i == len(s.text):
			return nil
		case s.text[i] == '{' && separated:
			end := s.endOfFlow(i)
			items = append(items, span{i, end})
			i, separated = end, false
		case s.text[i] == ',' && !separated:
			i, separated = i+1, true
		case s.text[i] == ']':
			return items
		default:
			return nil
		}
	}
}

// skipComments returns the offset of the first byte at or after i that is not white space or part of a
// comment.
func (s *splicer) skipComments(i int) int {
	for i = s.skip(i, spaces); i < len(s.text) && s.text[i] == '#' && isSpace(s.text[i-1]); i = s.skip(i, spaces) {
		i = s.until(i, "\n")
	}
	return i
}

// dashedItems returns the items of a list in block style. Each item is on one line. i is the offset after
// the key of the list.
func (s *splicer) dashedItems(i int) (items []span) {
	var dash []byte // text before each item
	for i < len(s.text) {
		begin := s.until(i, "\n") + 1
		if begin > len(s.text) {
			break
		}
		line, _, _ := bytes.Cut(s.text[begin:], []byte("\n"))
		i = begin + len(line)
		brace := bytes.IndexByte(line, '{')
		switch {
		case isBlankOrComment(line):
			continue
		case brace < 0 || !dashOfItem.Match(line[:brace]) || dash != nil && !bytes.Equal(dash, line[:brace]):
			return items
		}
		dash = line[:brace]
		end := s.endOfFlow(begin + brace)
		if end > i || s.skipComments(end) < i {
			return nil
		}
		items = append(items, span{begin + brace, end})
	}
	return items
}

// jsonItems are the items of a List, encoded as JSON.
type jsonItems struct {
	style jsonStyle
	text  bytes.Buffer
	items []span // ranges of the items in text
}

// add adds an item.
func (j *jsonItems) add(n *yaml.Node) {
	newline := "\n" + strings.Repeat(j.style.indent, len("{["))
	if len(j.items) > 0 {
		j.text.WriteString("," + j.style.space)
		if j.style.indent != "" {
			j.text.WriteString(newline)
		}
	}
	begin := j.text.Len()
	j.text.Write(bytes.ReplaceAll(jsonText(expand(n), j.style), []byte("\n"), []byte(newline)))
	j.items = append(j.items, span{begin, j.text.Len()})
}

// list returns a List with the items as JSON, and the ranges of the items in it. text is the original
// text of the List. root is its syntax tree with the placeholder instead of the items.
func (j *jsonItems) list(text []byte, root *yaml.Node) ([]byte, []span) {
	doc := &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{expand(root)}}
	list, _ := (&document{text: text}).encodeDocument(doc, true) // the encoding of JSON returns no error
	before, after, _ := bytes.Cut(list, []byte(quoted(placeholder)))
	for i := range j.items {
		j.items[i].begin += len(before)
		j.items[i].end += len(before)
	}
	return slices.Concat(before, j.text.Bytes(), after), j.items
}

// joinFlowLists joins the documents of each List in flow style into one document. It must be called after
// all changes to the items.
func (f *File) joinFlowLists() {
	var joined []*document
	for documents := f.documents; len(documents) > 0; {
		d, n := documents[0], 1
		if l := d.in; l != nil && l.flow != nil {
			n = len(documents)
			if other := slices.IndexFunc(documents, func(d *document) bool { return d.in != l }); other >= 0 {
				n = other
			}
			d = l.flow.join(documents[:n])
		}
		joined = append(joined, d)
		documents = documents[n:]
	}
	f.documents = joined
}

// join joins the documents of a List into one document. If an item was changed, it adds the hunks that
// restore the original text.
func (l *flowList) join(parts []*document) *document {
	var text []byte
	for _, d := range parts {
		text = append(text, d.fileText()...)
	}
	first := parts[0]
	whole := &document{file: first.file, order: first.order, line: first.line, text: text}
	isRestored := bytes.Equal(l.divided, l.original) && !slices.ContainsFunc(parts, func(d *document) bool { return d.lost })
	switch {
	case bytes.Equal(text, l.divided):
		whole.text = l.original
		return whole
	case isRestored:
		return whole
	}
	items := text[len(first.text) : len(text)-len(parts[len(parts)-1].text)]
	outline := func(text []byte) (value any, err error) { // the value of the List without the items
		_, value, err = read(bytes.Replace(text, items, []byte(placeholder), 1))
		return value, err
	}
	want, _ := outline(text)
	lost := !whole.keepInComment(l.original, func(text []byte) error {
		got, err := outline(text)
		if err == nil && !equal(got, want) {
			err = errors.New("the List does not have the expected value")
		}
		if err == nil {
			whole.text = text
		}
		return err
	})
	for _, d := range parts {
		d.lost = lost
	}
	return whole
}
