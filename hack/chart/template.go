package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// An object is a Kubernetes object.
type object struct {
	kind, name string
	node       *yaml.Node // the mapping of the object
}

func parse(text []byte) ([]object, error) {
	var all []object
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var document yaml.Node
		if err := d.Decode(&document); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		node := document.Content[0]
		kind, metadata := field(node, "kind"), field(node, "metadata")
		if kind == nil || metadata == nil || field(metadata, "name") == nil {
			return nil, errors.New("the object does not have a kind or a name")
		}
		all = append(all, object{kind.Value, field(metadata, "name").Value, node})
	}
}

// field returns the value of a key in a mapping, or nil.
func field(node *yaml.Node, key string) *yaml.Node {
	if node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	return nil
}

func scalar(value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
}

// A template is YAML with placeholders for the parts that Helm executes. A placeholder is a scalar
// that represents a value, or a key or an item that represents whole lines. The YAML library writes
// everything else.
type template struct {
	texts []string // text of each placeholder by its number
}

// value returns a placeholder for a value. The word NESTED in text is replaced with the indentation
// of a block below the key.
func (t *template) value(text string) *yaml.Node {
	t.texts = append(t.texts, text)
	return scalar(fmt.Sprintf("VALUE%d", len(t.texts)-1))
}

// lines returns a placeholder for whole lines as an item of a sequence. In text, the word INDENT is
// replaced with the indentation of these lines, and NESTED with the indentation of a block below
// one of their keys.
func (t *template) lines(text string) *yaml.Node {
	t.texts = append(t.texts, text)
	return scalar(fmt.Sprintf("LINES%d", len(t.texts)-1))
}

// entry is like lines, but returns an entry of a mapping.
func (t *template) entry(text string) []*yaml.Node {
	return []*yaml.Node{t.lines(text), {Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}}
}

var (
	valuePattern = regexp.MustCompile(`VALUE(\d+)\b`)
	linesPattern = regexp.MustCompile(`^( *)(- )?LINES(\d+)(?:: null)?$`)
)

// text encodes a node and replaces all placeholders.
func (t *template) text(node *yaml.Node) (string, error) {
	var encoded bytes.Buffer
	e := yaml.NewEncoder(&encoded)
	e.SetIndent(2)
	if err := e.Encode(node); err != nil {
		return "", err
	}
	var b strings.Builder
	for line := range strings.Lines(encoded.String()) {
		line = strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "{{", `{{ "{{" }}`)
		if m := linesPattern.FindStringSubmatch(line); m != nil {
			for l := range strings.Lines(t.expand(m[3], len(m[1]))) {
				b.WriteString(m[1] + strings.TrimSuffix(l, "\n") + "\n")
			}
			continue
		}
		indent := len(line) - len(strings.TrimLeft(line, " -"))
		line = valuePattern.ReplaceAllStringFunc(line, func(placeholder string) string { return t.expand(placeholder[len("VALUE"):], indent) })
		b.WriteString(line + "\n")
	}
	return b.String(), nil
}

// expand returns the text of the placeholder with a number.
func (t *template) expand(number string, indent int) string {
	n, err := strconv.Atoi(number)
	if err != nil || n >= len(t.texts) {
		return number // number is not the number of a placeholder
	}
	return strings.NewReplacer("INDENT", strconv.Itoa(indent), "NESTED", strconv.Itoa(indent+2)).Replace(t.texts[n])
}

// merge merges two variants of a node. holds is the Helm condition for parts that exist only in a,
// and fails is the condition for parts that exist only in b.
func (t *template) merge(a, b *yaml.Node, holds, fails string) (*yaml.Node, error) {
	switch {
	case equal(a, b):
		return a, nil
	case a.Kind == yaml.ScalarNode && b.Kind == yaml.ScalarNode:
		return t.value(fmt.Sprintf("{{ if %s }}%s{{ else }}%s{{ end }}", holds, a.Value, b.Value)), nil
	case a.Kind == yaml.MappingNode && b.Kind == yaml.MappingNode:
		return t.mergeMappings(a, b, holds, fails)
	case a.Kind == yaml.SequenceNode && b.Kind == yaml.SequenceNode:
		return t.mergeSequences(a, b, holds, fails)
	}
	return nil, fmt.Errorf("line %d and line %d have different kinds", a.Line, b.Line)
}

func (t *template) mergeMappings(a, b *yaml.Node, holds, fails string) (*yaml.Node, error) {
	merged := &yaml.Node{Kind: yaml.MappingNode}
	add := func(of *yaml.Node, i int, condition string) {
		merged.Content = append(merged.Content, t.entry("{{- if "+condition+" }}")...)
		merged.Content = append(merged.Content, of.Content[i], of.Content[i+1])
		merged.Content = append(merged.Content, t.entry("{{- end }}")...)
	}
	for i := 0; i < len(a.Content); i += 2 {
		other := field(b, a.Content[i].Value)
		if other == nil {
			add(a, i, holds)
			continue
		}
		both, err := t.merge(a.Content[i+1], other, holds, fails)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.Content[i].Value, err)
		}
		merged.Content = append(merged.Content, a.Content[i], both)
	}
	for i := 0; i < len(b.Content); i += 2 {
		if field(a, b.Content[i].Value) == nil {
			add(b, i, fails)
		}
	}
	return merged, nil
}

// mergeSequences merges two sequences item by item. Additional items of the longer sequence are appended.
func (t *template) mergeSequences(a, b *yaml.Node, holds, fails string) (*yaml.Node, error) {
	merged := &yaml.Node{Kind: yaml.SequenceNode}
	common := min(len(a.Content), len(b.Content))
	if a.Content[0].Kind == yaml.ScalarNode { // for sequences of scalars, only a common prefix is merged
		common = 0
		for common < min(len(a.Content), len(b.Content)) && equal(a.Content[common], b.Content[common]) {
			common++
		}
	}
	for i := range common {
		both, err := t.merge(a.Content[i], b.Content[i], holds, fails)
		if err != nil {
			return nil, err
		}
		merged.Content = append(merged.Content, both)
	}
	for _, rest := range []struct {
		nodes     []*yaml.Node
		condition string
	}{{a.Content[common:], holds}, {b.Content[common:], fails}} {
		if len(rest.nodes) > 0 {
			merged.Content = append(merged.Content, t.lines("{{- if "+rest.condition+" }}"))
			merged.Content = append(merged.Content, rest.nodes...)
			merged.Content = append(merged.Content, t.lines("{{- end }}"))
		}
	}
	return merged, nil
}

func equal(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Value == b.Value && slices.EqualFunc(a.Content, b.Content, equal)
}
