package manifest

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// A style is how a document is written, so that what is added looks like the rest.
type style struct {
	step   int    // blanks by which a map is further in than its key
	list   int    // blanks by which a list is further in than its key: 0 or step
	ending string // of lines
}

// block writes a map or a list as lines, all of them at an indentation. Nodes with
// nothing in them, and scalars, are no block.
func (s style) block(n *yaml.Node, indent int) string {
	var b strings.Builder
	if n.Kind == yaml.SequenceNode {
		for _, item := range n.Content {
			b.WriteString(s.item(item, indent))
		}
		return b.String()
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		b.WriteString(s.entry(n.Content[i], n.Content[i+1], indent))
	}
	return b.String()
}

// entry writes a key and its value.
func (s style) entry(key, value *yaml.Node, indent int) string {
	return strings.Repeat(" ", indent) + scalarText(key) + ":" + s.after(value, indent)
}

// after writes what comes after the colon of a key at an indentation, to the line's end.
func (s style) after(value *yaml.Node, indent int) string {
	if !isBlock(value) {
		return " " + flow(value) + s.ending
	}
	further := s.step
	if value.Kind == yaml.SequenceNode {
		further = s.list
	}
	return s.ending + s.block(value, indent+further)
}

// item writes an item of a list: its first line begins with a dash.
func (s style) item(value *yaml.Node, indent int) string {
	if !isBlock(value) {
		return strings.Repeat(" ", indent) + "- " + flow(value) + s.ending
	}
	lines := s.block(value, indent+2)
	return lines[:indent] + "- " + lines[indent+2:]
}

func isBlock(n *yaml.Node) bool { return n.Kind != yaml.ScalarNode && len(n.Content) > 0 }

// flow writes a node on one line.
func flow(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		var items []string
		for _, item := range n.Content {
			items = append(items, flowScalar(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case yaml.MappingNode:
		var entries []string
		for i := 0; i+1 < len(n.Content); i += 2 {
			entries = append(entries, flowScalar(n.Content[i])+": "+flowScalar(n.Content[i+1]))
		}
		return "{" + strings.Join(entries, ", ") + "}"
	}
	return scalarText(n)
}

// flowScalar is flow inside a map or a list, where more letters have a meaning.
func flowScalar(n *yaml.Node) string {
	n = target(n)
	if n.Kind != yaml.ScalarNode {
		return flow(n)
	}
	text := scalarText(n)
	if n.ShortTag() == "!!str" && strings.ContainsAny(text, ",[]{}") && !strings.HasPrefix(text, "'") {
		return quoted(n.Value)
	}
	return text
}

// scalarText writes a scalar so that every reader of YAML, 1.1 and 1.2, reads the same.
func scalarText(n *yaml.Node) string {
	if isNull(n) {
		return "null"
	}
	if n.ShortTag() != "!!str" || n.Line > 0 && n.Style == 0 {
		return n.Value
	}
	if plainWord.MatchString(n.Value) {
		return n.Value
	}
	if strings.ContainsFunc(n.Value, func(r rune) bool {
		return r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 || r == 0xfeff
	}) {
		return quoted(n.Value)
	}
	text, err := yaml.Marshal(n.Value)
	if err != nil || bytes.ContainsRune(bytes.TrimSuffix(text, []byte("\n")), '\n') {
		return quoted(n.Value)
	}
	return strings.TrimSuffix(string(text), "\n")
}

// plainWord matches most of what needs no quotes, without asking the library: a word of
// at least two letters with a capital inside, or one of those that pods are made of.
var plainWord = regexp.MustCompile(`^(name|image|ports|env|value|resources|requests|limits|cpu|memory|path|port|protocol|[a-z]+[A-Z][A-Za-z]+|[A-Z]+(_[A-Z]+)+)$`)

// quoted writes a text in double quotes, as JSON, which is YAML as well.
func quoted(text string) string {
	return strings.NewReplacer("\u007f", `\u007f`, "\u0085", `\u0085`, "\ufeff", `\ufeff`).Replace(printable.CompactJSON(text))
}

// jsonText writes a node as JSON in its order, with an indentation for each level, or on
// one line without any. What a node means must have been read before: the errors are found
// there.
func jsonText(n *yaml.Node, indent string) []byte {
	var b, pretty bytes.Buffer
	writeJSON(&b, n)
	if indent == "" {
		return b.Bytes()
	}
	_ = json.Indent(&pretty, b.Bytes(), "", indent)
	return pretty.Bytes()
}

func writeJSON(b *bytes.Buffer, n *yaml.Node) {
	n = target(n)
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(quoted(target(n.Content[i]).Value) + ":")
			writeJSON(b, n.Content[i+1])
		}
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			writeJSON(b, item)
		}
		b.WriteByte(']')
	default:
		value, _ := decodeScalar(n)
		if text, ok := value.(string); ok {
			b.WriteString(quoted(text))
			return
		}
		text, _ := json.Marshal(value)
		b.Write(text)
	}
}
