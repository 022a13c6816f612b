package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// A splice replaces the bytes of a document in the range from:to with text.
type splice struct {
	from, to int
	text     string
}

// errLayout indicates that a change cannot be made in place, so the document must be
// encoded again. Methods of splicer panic with errLayout, and [splicer.run] recovers and
// returns it. Otherwise, nearly every statement of these methods would have to check for
// it.
var errLayout = errors.New("a layout that cannot be edited in place")

// A splicer converts modified nodes into splices of the text. All other bytes are preserved,
// including comments, white space and quotes.
type splicer struct {
	text     []byte
	lines    []int // offset of each line
	style    style
	original edit
	splices  []splice
	last     position // most recent position that start returned
}

// A position is the position of a character in a text. A search begins at the last position instead
// of the beginning of the line, because a line can contain all items of a List.
type position struct {
	line, column int // counted from 1; 0 if there is no position
	offset       int // in bytes
}

func newSplicer(text []byte, root *yaml.Node, e edit) *splicer {
	s := &splicer{text: text, lines: make([]int, 1, 1+bytes.Count(text, []byte("\n"))), original: e}
	for i, b := range text {
		if b == '\n' {
			s.lines = append(s.lines, i+1)
		}
	}
	s.style = style{step: 2, list: 0, ending: lineEnding(text)}
	s.learn(root, map[yaml.Kind]bool{})
	return s
}

// learn sets the indentation of maps and lists from the first map and the first list below a key.
func (s *splicer) learn(n *yaml.Node, seen map[yaml.Kind]bool) {
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && isBlockStyle(n) && isBlockStyle(child) && len(child.Content) > 0 && child.Line > n.Content[i-1].Line && !seen[child.Kind] {
			in := child.Column - n.Content[i-1].Column
			switch {
			case child.Kind == yaml.SequenceNode:
				s.style.list = in
			case in > 0:
				s.style.step = in
			}
			seen[child.Kind] = true
		}
		if seen[yaml.MappingNode] && seen[yaml.SequenceNode] {
			return
		}
		s.learn(child, seen)
	}
}

func isBlockStyle(n *yaml.Node) bool { return n.Style&yaml.FlowStyle == 0 }

// run returns the text with all splices applied.
func (s *splicer) run(root *yaml.Node) (text []byte, err error) {
	defer func() {
		found := recover()
		if failed, ok := found.(error); ok && errors.Is(failed, errLayout) {
			text, err = nil, errLayout
		} else if found != nil {
			panic(found)
		}
	}()
	s.walk(root)
	// Splices of inner nodes were added before those of outer nodes. If they have the same offset,
	// the text of the inner node comes first.
	slices.SortStableFunc(s.splices, func(a, b splice) int { return cmp.Compare(a.from, b.from) })
	var b bytes.Buffer
	size := len(s.text)
	for _, p := range s.splices {
		size += len(p.text) + len(s.style.ending)
	}
	b.Grow(size)
	done := 0
	for _, p := range s.splices {
		if p.from < done || p.to < p.from {
			return nil, errLayout
		}
		b.Write(s.text[done:p.from])
		if p.from == len(s.text) && b.Len() > 0 && !bytes.HasSuffix(b.Bytes(), []byte("\n")) {
			b.WriteString(s.style.ending) // the last line had no line ending
		}
		b.WriteString(p.text)
		done = p.to
	}
	b.Write(s.text[done:])
	return b.Bytes(), nil
}

func (s *splicer) splice(from, to int, text string) {
	s.splices = append(s.splices, splice{from, to, text})
}

func (s *splicer) walk(n *yaml.Node) {
	if n.Line == 0 || n.Kind == yaml.ScalarNode || n.Kind == yaml.AliasNode {
		return
	}
	was, changed := s.original[n]
	if changed && (!isBlockStyle(n) || len(n.Content) == 0) {
		from, to := s.start(n), s.end(n)
		if bytes.ContainsRune(s.text[from:to], '\n') { // the range could contain a comment
			panic(errLayout)
		}
		s.splice(from, to, flow(n))
		return
	}
	for _, child := range n.Content {
		s.walk(child)
	}
	switch {
	case !changed:
	case n.Kind == yaml.MappingNode:
		s.mapping(n, was)
	default:
		s.sequence(n, was)
	}
}

// mapping adds splices for the changes in a map in block style.
func (s *splicer) mapping(n *yaml.Node, was []*yaml.Node) {
	values := map[*yaml.Node]*yaml.Node{} // current values by key
	for i := 0; i+1 < len(n.Content); i += 2 {
		values[n.Content[i]] = n.Content[i+1]
	}
	for i := 0; i+1 < len(was); i += 2 {
		key, old := was[i], was[i+1]
		now := values[key]
		switch {
		case now == nil:
			var next *yaml.Node
			if i+2 < len(was) {
				next = was[i+2]
			}
			s.removeEntry(key, old, next)
		case now != old:
			s.replaceValue(key, old, now)
		}
	}
	var added strings.Builder
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Line == 0 {
			added.WriteString(s.style.entry(n.Content[i], n.Content[i+1], n.Column-1))
		}
	}
	if added.Len() > 0 {
		after := s.nextLine(s.endOfEntry(was[len(was)-2], was[len(was)-1]))
		s.splice(after, after, added.String())
	}
}

func (s *splicer) removeEntry(key, value, next *yaml.Node) {
	from := s.start(key)
	line := s.lines[key.Line-1]
	if !isBlank(s.text[line:from]) { // the first key of an item is on the line of the dash
		if next == nil {
			panic(errLayout)
		}
		to := s.start(next)
		end := s.endOfEntry(key, value)
		if bytes.ContainsRune(s.text[end:to], '#') {
			to = end // keep the comments before the next key
		}
		s.splice(from, to, "")
		return
	}
	s.splice(line, s.nextLine(s.endOfEntry(key, value)), "")
}

func (s *splicer) replaceValue(key, old, now *yaml.Node) {
	colon := s.afterColon(key)
	end := s.endOfEntry(key, old)
	if old.Kind == yaml.ScalarNode && !isNull(old) && old.Anchor == "" && now.Kind == yaml.ScalarNode {
		s.splice(s.start(old), end, scalarText(now))
		return
	}
	s.splice(colon, end, strings.TrimSuffix(s.style.after(now, key.Column-1), s.style.ending))
}

// sequence adds splices for the changes in a list in block style: removed items, and new items at
// the end.
func (s *splicer) sequence(n *yaml.Node, was []*yaml.Node) {
	kept := 0
	for _, item := range was {
		if kept < len(n.Content) && n.Content[kept] == item {
			kept++
			continue
		}
		dash, to := s.dash(item), s.nextLine(s.end(item))
		line := bytes.LastIndexByte(s.text[:dash], '\n') + 1
		if !isBlank(s.text[line:dash]) {
			panic(errLayout)
		}
		s.splice(line, to, "")
	}
	var added strings.Builder
	for _, item := range n.Content[kept:] {
		if item.Line != 0 { // the new item replaced an earlier item
			panic(errLayout)
		}
		added.WriteString(s.style.item(item, n.Column-1))
	}
	if added.Len() > 0 {
		after := s.nextLine(s.end(was[len(was)-1]))
		s.splice(after, after, added.String())
	}
}

// dash returns the offset of the dash before an item.
func (s *splicer) dash(item *yaml.Node) int {
	before := bytes.TrimRight(s.text[:s.start(item)], spaces)
	if !bytes.HasSuffix(before, []byte("-")) {
		panic(errLayout)
	}
	return len(before) - 1
}

// start returns the offset of a node. The columns of the parser count characters, not bytes.
func (s *splicer) start(n *yaml.Node) int {
	if n.Line < 1 || n.Line > len(s.lines) {
		panic(errLayout)
	}
	p := s.last
	if p.line != n.Line {
		p = position{n.Line, 1, s.lines[n.Line-1]}
	}
	for ; p.column < n.Column; p.column++ {
		if p.offset >= len(s.text) {
			panic(errLayout)
		}
		_, size := utf8.DecodeRune(s.text[p.offset:])
		p.offset += size
	}
	for ; p.column > n.Column; p.column-- {
		_, size := utf8.DecodeLastRune(s.text[:p.offset])
		p.offset -= size
	}
	s.last = p
	return p.offset
}

// endOfEntry returns the offset after a value, or after the colon of its key if the value is empty.
func (s *splicer) endOfEntry(key, value *yaml.Node) int {
	if value.Kind == yaml.ScalarNode && value.Value == "" && value.Style == 0 {
		return s.afterColon(key)
	}
	return s.end(value)
}

func (s *splicer) afterColon(key *yaml.Node) int {
	i := s.skip(s.end(key), " \t")
	if i == len(s.text) || s.text[i] != ':' {
		panic(errLayout)
	}
	return i + 1
}

// end returns the offset of the end of a node in the original text.
func (s *splicer) end(n *yaml.Node) int {
	if n.Line == 0 {
		panic(errLayout)
	}
	content, changed := s.original[n]
	if !changed {
		content = n.Content
	}
	if n.Kind != yaml.ScalarNode && n.Kind != yaml.AliasNode && isBlockStyle(n) {
		switch {
		case len(content) == 0:
			panic(errLayout)
		case n.Kind == yaml.MappingNode:
			return s.endOfEntry(content[len(content)-2], content[len(content)-1])
		}
		return s.end(content[len(content)-1])
	}
	i := s.skipProperties(s.start(n))
	if i >= len(s.text) {
		panic(errLayout)
	}
	switch {
	case n.Kind == yaml.AliasNode:
		return s.until(i, " \t\r\n,]}")
	case n.Kind != yaml.ScalarNode:
		return s.endOfFlow(i)
	case n.Style&yaml.DoubleQuotedStyle != 0, n.Style&yaml.SingleQuotedStyle != 0:
		return s.endOfQuoted(i)
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return s.endOfLiteral(i, n.Value)
	}
	return s.endOfPlain(i, n.Value)
}

// skipProperties returns the offset after the anchor and the tag of a node.
func (s *splicer) skipProperties(i int) int {
	for i < len(s.text) && (s.text[i] == '&' || s.text[i] == '!') {
		i = s.skip(s.until(i, spaces), " \t")
	}
	return i
}

// endOfPlain returns the offset after a plain scalar. In the text, the words of the value can be
// separated by any white space.
func (s *splicer) endOfPlain(i int, value string) int {
	for n, word := range strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(spaces, r) }) {
		if n > 0 {
			i = s.skip(i, spaces)
		}
		if !bytes.HasPrefix(s.text[i:], []byte(word)) || n > 0 && !isSpace(s.text[i-1]) {
			panic(errLayout)
		}
		i += len(word)
	}
	return i
}

func (s *splicer) endOfQuoted(i int) int {
	mark := s.text[i]
	if mark != '"' && mark != '\'' {
		panic(errLayout)
	}
	for i++; i < len(s.text); i++ {
		switch {
		case s.text[i] == '\\' && mark == '"':
			i++
		case s.text[i] == mark && mark == '\'' && i+1 < len(s.text) && s.text[i+1] == mark:
			i++
		case s.text[i] == mark:
			return i + 1
		}
	}
	panic(errLayout)
}

// endOfLiteral returns the offset after a block scalar (| or >). The scalar includes the lines with
// at least the indentation of its first line, and blank lines.
func (s *splicer) endOfLiteral(i int, value string) int {
	header := s.text[i:s.until(i, " \t#\n")]
	i = s.until(i, "\n")
	if bytes.ContainsAny(header, "123456789") {
		panic(errLayout) // the header contains an indentation indicator, so the lines do not determine the indentation
	}
	keepsBlanks := bytes.Contains(header, []byte("+"))
	end := i
	if strings.Trim(value, "\n") == "" {
		return end
	}
	indent := -1
	for i < len(s.text) {
		line, _, _ := bytes.Cut(s.text[i+1:], []byte("\n"))
		i += 1 + len(line)
		switch in := len(line) - len(bytes.TrimLeft(line, " ")); {
		case isBlank(line):
			if keepsBlanks {
				end = i
			}
		case indent < 0:
			indent, end = in, i
		case in >= indent:
			end = i
		default:
			return end
		}
	}
	return min(end, len(s.text))
}

// endOfFlow returns the offset after the bracket that closes the bracket at i.
func (s *splicer) endOfFlow(i int) int {
	depth := 0
	for ; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case c == '"' || c == '\'' && (isSpace(s.text[i-1]) || bytes.ContainsRune([]byte("[{,:"), rune(s.text[i-1]))):
			i = s.endOfQuoted(i) - 1
		case c == '#' && isSpace(s.text[i-1]):
			i = s.until(i, "\n")
		}
	}
	panic(errLayout)
}

// nextLine returns the offset of the line after i. Only a comment is permitted between i and the
// end of the line.
func (s *splicer) nextLine(i int) int {
	rest, _, _ := bytes.Cut(s.text[i:], []byte("\n"))
	if trimmed := bytes.TrimLeft(rest, " \t\r"); len(trimmed) > 0 && trimmed[0] != '#' {
		panic(errLayout)
	}
	return min(i+len(rest)+1, len(s.text))
}

const spaces = " \t\r\n"

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\n' || b == '\r' }

func isBlank(text []byte) bool { return len(bytes.TrimSpace(text)) == 0 }

// skip returns the offset of the first byte at or after i that is not in the set chars.
func (s *splicer) skip(i int, chars string) int {
	return len(s.text) - len(bytes.TrimLeft(s.text[i:], chars))
}

// until returns the offset of the first byte at or after i that is in the set chars. It returns the
// length of the text if there is no such byte.
func (s *splicer) until(i int, chars string) int {
	if n := bytes.IndexAny(s.text[i:], chars); n >= 0 {
		return i + n
	}
	return len(s.text)
}
