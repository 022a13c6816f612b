package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// A style describes the layout of a document, so that added lines have the same layout.
type style struct {
	step   int    // indentation of a map relative to its key
	list   int    // indentation of a list relative to its key: 0 or step
	ending string // line ending
}

// block returns a map or a list in block style. Each line has the given indentation. The node must
// not be a scalar or empty.
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

// entry returns the lines for a key and its value.
func (s style) entry(key, value *yaml.Node, indent int) string {
	return strings.Repeat(" ", indent) + scalarText(key) + ":" + s.after(value, indent)
}

// after returns the text after the colon of a key, including the line ending. indent is the
// indentation of the key.
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

// item returns the lines for an item of a list.
func (s style) item(value *yaml.Node, indent int) string {
	if !isBlock(value) {
		return strings.Repeat(" ", indent) + "- " + flow(value) + s.ending
	}
	lines := s.block(value, indent+2)
	return lines[:indent] + "- " + lines[indent+2:]
}

func isBlock(n *yaml.Node) bool { return n.Kind != yaml.ScalarNode && len(n.Content) > 0 }

// flow returns a node in flow style on one line.
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

// flowScalar returns the text of a node inside a map or a list in flow style, where more characters
// require quotes.
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

// scalarText returns a scalar that YAML 1.1 and YAML 1.2 parsers decode identically.
func scalarText(n *yaml.Node) string {
	if isNull(n) {
		return "null"
	}
	if n.ShortTag() != "!!str" || n.Line > 0 && n.Style == 0 {
		return n.Value
	}
	if text, ok := simpleText(n.Value); ok {
		return text
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

// simpleText returns the text of common strings: words, names of images, paths, numbers, booleans and
// JSON in ASCII. The text is the same as the output of the YAML library, which allocates a buffer of
// 128 KiB for each string.
func simpleText(value string) (text string, ok bool) {
	switch {
	case isJSONWord(value):
		return "'" + strings.ReplaceAll(value, "'", "''") + "'", true
	case plainWord.MatchString(value) && !otherWord.MatchString(value):
		return value, true
	case numberWord.MatchString(value):
		return `"` + value + `"`, true
	}
	return "", false
}

// Patterns of the strings that simpleText supports. A word can be null or a boolean in
// YAML 1.1.
var (
	plainWord  = regexp.MustCompile(`^(/?[A-Za-z][A-Za-z0-9]*([-_./:][A-Za-z0-9]+)*|[1-9][0-9]*(m|s|k|M|G|Ki|Mi|Gi))$`)
	otherWord  = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null)$`)
	numberWord = regexp.MustCompile(`^([0-9]+|true|false)$`)
)

// isJSONWord reports whether a string contains only printable ASCII characters and is in braces or brackets.
func isJSONWord(value string) bool {
	n := len(value)
	return n > 1 && (value[0] == '{' || value[0] == '[') && (value[n-1] == '}' || value[n-1] == ']') &&
		!strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' })
}

// quoted returns a string in double quotes. The result is valid JSON and YAML.
func quoted(text string) string {
	text = message.CompactJSON(text)
	for _, r := range []string{"\u007f", "\u0085", "\ufeff"} {
		if strings.Contains(text, r) {
			text = strings.ReplaceAll(text, r, fmt.Sprintf(`\u%04x`, []rune(r)[0]))
		}
	}
	return text
}

// A jsonStyle is the white space in a JSON object.
type jsonStyle struct {
	indent string // indentation of each level; "" for an object on one line
	space  string // white space after each separator of an object on one line
}

// jsonText returns a node as JSON. The order of keys is preserved. The node must have been decoded
// without an error.
func jsonText(n *yaml.Node, style jsonStyle) []byte {
	var b, pretty bytes.Buffer
	writeJSON(&b, n, style.space)
	if style.indent == "" {
		return b.Bytes()
	}
	_ = json.Indent(&pretty, b.Bytes(), "", style.indent)
	return pretty.Bytes()
}

// writeJSON writes a node as JSON on one line. It writes the string space after each comma and
// each colon.
func writeJSON(b *bytes.Buffer, n *yaml.Node, space string) {
	n = target(n)
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				b.WriteString("," + space)
			}
			b.WriteString(quoted(target(n.Content[i]).Value) + ":" + space)
			writeJSON(b, n.Content[i+1], space)
		}
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				b.WriteString("," + space)
			}
			writeJSON(b, item, space)
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
