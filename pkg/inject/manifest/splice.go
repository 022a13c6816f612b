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

// A splice puts other text in the place of some bytes.
type splice struct {
	from, to int
	text     string
}

// errLayout says that a change cannot be made in the text as it is written. Then the
// whole document is written anew.
var errLayout = errors.New("a layout that cannot be edited in place")

// A splicer turns the difference between nodes and text into splices. Whatever is not
// changed keeps its bytes: comments, order, blanks, quotes.
type splicer struct {
	text     []byte
	lines    []int // where each line begins
	style    style
	original map[*yaml.Node][]*yaml.Node // of edit
	splices  []splice
}

func newSplicer(text []byte, root *yaml.Node, e *edit) *splicer {
	s := &splicer{text: text, lines: []int{0}, original: e.original}
	for i, b := range text {
		if b == '\n' {
			s.lines = append(s.lines, i+1)
		}
	}
	s.style = style{step: 2, list: 0, ending: "\n"}
	if bytes.Contains(text, []byte("\r\n")) {
		s.style.ending = "\r\n"
	}
	s.learn(root)
	return s
}

// learn sees how far in the document writes its maps and lists: the first of each that
// stands below a key decides.
func (s *splicer) learn(root *yaml.Node) {
	seen := map[yaml.Kind]bool{}
	var look func(n *yaml.Node)
	look = func(n *yaml.Node) {
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
			look(child)
		}
	}
	look(root)
}

func isBlockStyle(n *yaml.Node) bool { return n.Style&yaml.FlowStyle == 0 }

// run makes the splices and the new text.
func (s *splicer) run(root *yaml.Node) ([]byte, error) {
	if err := s.walk(root); err != nil {
		return nil, err
	}
	// Inner nodes come before outer ones, so where they end at the same place what
	// belongs to the inner one comes first.
	slices.SortStableFunc(s.splices, func(a, b splice) int { return cmp.Compare(a.from, b.from) })
	var b bytes.Buffer
	done := 0
	for _, p := range s.splices {
		if p.from < done || p.to < p.from {
			return nil, errLayout
		}
		b.Write(s.text[done:p.from])
		if p.from == len(s.text) && b.Len() > 0 && !bytes.HasSuffix(b.Bytes(), []byte("\n")) {
			b.WriteString(s.style.ending) // the last line had none
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

// before is the Content that a node had.
func (s *splicer) before(n *yaml.Node) []*yaml.Node {
	if was, changed := s.original[n]; changed {
		return was
	}
	return n.Content
}

func (s *splicer) walk(n *yaml.Node) error {
	if n.Line == 0 || n.Kind == yaml.ScalarNode || n.Kind == yaml.AliasNode {
		return nil
	}
	was, changed := s.original[n]
	if changed && (!isBlockStyle(n) || len(n.Content) == 0) {
		from, err := s.start(n)
		if err != nil {
			return err
		}
		to, err := s.end(n)
		if err != nil {
			return err
		}
		if !s.isOneLine(from, to) {
			return errLayout
		}
		s.splice(from, to, flow(n))
		return nil
	}
	old := map[*yaml.Node]bool{}
	for _, child := range was {
		old[child] = true
	}
	for _, child := range n.Content {
		if old[child] || !changed {
			if err := s.walk(child); err != nil {
				return err
			}
		}
	}
	switch {
	case !changed:
		return nil
	case n.Kind == yaml.MappingNode:
		return s.mapping(n, was)
	default:
		return s.sequence(n, was)
	}
}

// isOneLine reports whether some text has no line end and no comment that would be lost.
func (s *splicer) isOneLine(from, to int) bool {
	return !bytes.ContainsAny(s.text[from:to], "\n")
}

// mapping splices what has changed in a block map.
func (s *splicer) mapping(n *yaml.Node, was []*yaml.Node) error {
	values := map[*yaml.Node]*yaml.Node{} // by their keys, as they are now
	for i := 0; i+1 < len(n.Content); i += 2 {
		values[n.Content[i]] = n.Content[i+1]
	}
	for i := 0; i+1 < len(was); i += 2 {
		key, old := was[i], was[i+1]
		now := values[key]
		var err error
		switch {
		case now == nil:
			var next *yaml.Node
			if i+2 < len(was) {
				next = was[i+2]
			}
			err = s.removeEntry(key, old, next)
		case now != old:
			err = s.replaceValue(key, old, now)
		}
		if err != nil {
			return err
		}
	}
	added := ""
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Line == 0 {
			added += s.style.entry(n.Content[i], n.Content[i+1], n.Column-1)
		}
	}
	if added == "" {
		return nil
	}
	end, err := s.endOfEntry(was[len(was)-2], was[len(was)-1])
	if err != nil {
		return err
	}
	after, err := s.nextLine(end)
	if err != nil {
		return err
	}
	s.splice(after, after, added)
	return nil
}

func (s *splicer) removeEntry(key, value, next *yaml.Node) error {
	from, err := s.start(key)
	if err != nil {
		return err
	}
	line := s.lines[key.Line-1]
	if !isBlank(s.text[line:from]) { // the first key of an item stands behind its dash
		if next == nil {
			return errLayout
		}
		to, err := s.start(next)
		if err != nil {
			return err
		}
		end, err := s.endOfEntry(key, value)
		if err != nil {
			return err
		}
		if bytes.ContainsRune(s.text[end:to], '#') {
			to = end // the next key stays on its line, below its comments
		}
		s.splice(from, to, "")
		return nil
	}
	end, err := s.endOfEntry(key, value)
	if err != nil {
		return err
	}
	to, err := s.nextLine(end)
	if err != nil {
		return err
	}
	s.splice(line, to, "")
	return nil
}

func (s *splicer) replaceValue(key, old, now *yaml.Node) error {
	colon, err := s.afterColon(key)
	if err != nil {
		return err
	}
	end, err := s.endOfEntry(key, old)
	if err != nil {
		return err
	}
	if old.Kind == yaml.ScalarNode && !isNull(old) && old.Anchor == "" && now.Kind == yaml.ScalarNode {
		from, err := s.start(old)
		if err != nil {
			return err
		}
		s.splice(from, end, scalarText(now))
		return nil
	}
	s.splice(colon, end, strings.TrimSuffix(s.style.after(now, key.Column-1), s.style.ending))
	return nil
}

// sequence splices what has changed in a block list: items that went, and items that
// were added at its end.
func (s *splicer) sequence(n *yaml.Node, was []*yaml.Node) error {
	stays := map[*yaml.Node]bool{}
	for _, item := range n.Content {
		stays[item] = true
	}
	kept := 0
	for _, item := range was {
		if kept < len(n.Content) && n.Content[kept] == item {
			kept++
			continue
		}
		if stays[item] {
			return errLayout
		}
		dash, err := s.dash(item)
		if err != nil {
			return err
		}
		end, err := s.end(item)
		if err != nil {
			return err
		}
		to, err := s.nextLine(end)
		if err != nil {
			return err
		}
		line := bytes.LastIndexByte(s.text[:dash], '\n') + 1
		if !isBlank(s.text[line:dash]) {
			return errLayout
		}
		s.splice(line, to, "")
	}
	added := ""
	for _, item := range n.Content[kept:] {
		if item.Line != 0 {
			return errLayout
		}
		added += s.style.item(item, n.Column-1)
	}
	if added == "" {
		return nil
	}
	end, err := s.end(was[len(was)-1])
	if err != nil {
		return err
	}
	after, err := s.nextLine(end)
	if err != nil {
		return err
	}
	s.splice(after, after, added)
	return nil
}

// dash is where the dash of an item stands.
func (s *splicer) dash(item *yaml.Node) (int, error) {
	i, err := s.start(item)
	if err != nil {
		return 0, err
	}
	for i--; i >= 0; i-- {
		switch s.text[i] {
		case '-':
			return i, nil
		case ' ', '\t', '\n', '\r':
		default:
			return 0, errLayout
		}
	}
	return 0, errLayout
}

// start is where a node begins. The parser counts letters, not bytes.
func (s *splicer) start(n *yaml.Node) (int, error) {
	if n.Line < 1 || n.Line > len(s.lines) {
		return 0, errLayout
	}
	i := s.lines[n.Line-1]
	for range n.Column - 1 {
		if i >= len(s.text) {
			return 0, errLayout
		}
		_, size := utf8.DecodeRune(s.text[i:])
		i += size
	}
	return i, nil
}

// endOfEntry is where a value ends; nothing ends at its key's colon.
func (s *splicer) endOfEntry(key, value *yaml.Node) (int, error) {
	if value.Kind == yaml.ScalarNode && value.Value == "" && value.Style == 0 {
		return s.afterColon(key)
	}
	return s.end(value)
}

func (s *splicer) afterColon(key *yaml.Node) (int, error) {
	i, err := s.end(key)
	if err != nil {
		return 0, err
	}
	for ; i < len(s.text); i++ {
		switch s.text[i] {
		case ':':
			return i + 1, nil
		case ' ', '\t':
		default:
			return 0, errLayout
		}
	}
	return 0, errLayout
}

// end is where the text of a node ends, as it was before the changes.
func (s *splicer) end(n *yaml.Node) (int, error) {
	if n.Line == 0 {
		return 0, errLayout
	}
	content := s.before(n)
	if n.Kind != yaml.ScalarNode && n.Kind != yaml.AliasNode && isBlockStyle(n) {
		switch {
		case len(content) == 0:
			return 0, errLayout
		case n.Kind == yaml.MappingNode:
			return s.endOfEntry(content[len(content)-2], content[len(content)-1])
		}
		return s.end(content[len(content)-1])
	}
	i, err := s.start(n)
	if err != nil {
		return 0, err
	}
	i = s.skipProperties(i)
	if i >= len(s.text) {
		return 0, errLayout
	}
	switch {
	case n.Kind == yaml.AliasNode:
		for i < len(s.text) && !bytes.ContainsRune([]byte(" \t\r\n,]}"), rune(s.text[i])) {
			i++
		}
		return i, nil
	case n.Kind != yaml.ScalarNode:
		return s.endOfFlow(i)
	case n.Style&yaml.DoubleQuotedStyle != 0, n.Style&yaml.SingleQuotedStyle != 0:
		return s.endOfQuoted(i)
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return s.endOfLiteral(i, n.Value)
	}
	return s.endOfPlain(i, n.Value)
}

// skipProperties passes a node's anchor and tag.
func (s *splicer) skipProperties(i int) int {
	for i < len(s.text) && (s.text[i] == '&' || s.text[i] == '!') {
		for i < len(s.text) && !bytes.ContainsRune([]byte(" \t\r\n"), rune(s.text[i])) {
			i++
		}
		for i < len(s.text) && (s.text[i] == ' ' || s.text[i] == '\t') {
			i++
		}
	}
	return i
}

// endOfPlain follows the value through the text, where any run of blanks and line ends
// may stand for one of the value's.
func (s *splicer) endOfPlain(i int, value string) (int, error) {
	for j := 0; j < len(value); {
		if value[j] == ' ' || value[j] == '\n' || value[j] == '\t' {
			before := i
			for i < len(s.text) && isSpace(s.text[i]) {
				i++
			}
			for j < len(value) && isSpace(value[j]) {
				j++
			}
			if i == before {
				return 0, errLayout
			}
			continue
		}
		if i >= len(s.text) || s.text[i] != value[j] {
			return 0, errLayout
		}
		i++
		j++
	}
	return i, nil
}

func (s *splicer) endOfQuoted(i int) (int, error) {
	mark := s.text[i]
	if mark != '"' && mark != '\'' {
		return 0, errLayout
	}
	for i++; i < len(s.text); i++ {
		switch {
		case s.text[i] == '\\' && mark == '"':
			i++
		case s.text[i] == mark && mark == '\'' && i+1 < len(s.text) && s.text[i+1] == mark:
			i++
		case s.text[i] == mark:
			return i + 1, nil
		}
	}
	return 0, errLayout
}

// endOfLiteral is the end of a | or > text: the last of the lines that are as far in as
// its first one, or blank.
func (s *splicer) endOfLiteral(i int, value string) (int, error) {
	header := i
	for i < len(s.text) && s.text[i] != '\n' {
		i++
	}
	if bytes.ContainsAny(firstWord(s.text[header:i]), "123456789") {
		return 0, errLayout // its own indentation: how far in cannot be seen from its lines
	}
	keepsBlanks := bytes.Contains(firstWord(s.text[header:i]), []byte("+"))
	end := i
	if strings.Trim(value, "\n") == "" {
		return end, nil
	}
	indent := -1
	for i < len(s.text) {
		line := s.text[i+1:]
		if n := bytes.IndexByte(line, '\n'); n >= 0 {
			line = line[:n]
		}
		switch in := len(line) - len(bytes.TrimLeft(line, " ")); {
		case isBlank(line):
			if keepsBlanks {
				end = i + 1 + len(line)
			}
		case indent < 0 || in >= indent:
			if indent < 0 {
				indent = in
			}
			end = i + 1 + len(line)
		default:
			return end, nil
		}
		if i += 1 + len(line); i >= len(s.text) {
			break
		}
	}
	return min(end, len(s.text)), nil
}

// endOfFlow is behind the bracket that closes the one at i.
func (s *splicer) endOfFlow(i int) (int, error) {
	depth := 0
	for ; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1, nil
			}
		case c == '"' || c == '\'' && (isSpace(s.text[i-1]) || bytes.ContainsRune([]byte("[{,:"), rune(s.text[i-1]))):
			end, err := s.endOfQuoted(i)
			if err != nil {
				return 0, err
			}
			i = end - 1
		case c == '#' && isSpace(s.text[i-1]):
			for i+1 < len(s.text) && s.text[i+1] != '\n' {
				i++
			}
		}
	}
	return 0, errLayout
}

// nextLine is where the line after a place begins. Behind the place there may only be a
// comment.
func (s *splicer) nextLine(i int) (int, error) {
	rest := s.text[i:]
	if n := bytes.IndexByte(rest, '\n'); n >= 0 {
		rest = rest[:n]
	}
	if trimmed := bytes.TrimLeft(rest, " \t\r"); len(trimmed) > 0 && trimmed[0] != '#' {
		return 0, errLayout
	}
	return min(i+len(rest)+1, len(s.text)), nil
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\n' || b == '\r' }

func isBlank(text []byte) bool { return len(bytes.TrimSpace(text)) == 0 }

func firstWord(line []byte) []byte {
	if i := bytes.IndexAny(line, " \t#"); i >= 0 {
		return line[:i]
	}
	return line
}
