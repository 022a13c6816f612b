package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// Limits for a document after the expansion of its aliases. The limits are far above the size and the
// depth of any Kubernetes object.
const (
	maxNodes = 1_000_000
	maxDepth = 1_000

	// maxAliased is the maximum number of values that the aliases expand to. A short text can expand to
	// many values, and a value needs up to 2.4 KB while a document is encoded again.
	maxAliased = 50_000
)

// errTooLarge is the error for a document that exceeds these limits.
var errTooLarge = fmt.Errorf("the document exceeds the limit of %d values or %d levels of nesting; split it or use fewer aliases", maxNodes, maxDepth)

// errAliases is the error for a document that exceeds maxAliased.
var errAliases = fmt.Errorf("the aliases of the document expand to more than %d values; use fewer aliases, or split the document", maxAliased)

// errKey is the error for a key that is a map, a list or null.
var errKey = errors.New("the key is not a string")

// errCycle is the error for an alias in the value of its anchor.
var errCycle = errors.New("is part of the value of its anchor, so the value is infinite; remove the alias")

// errRepeated is the error for a repeated key.
var errRepeated = errors.New("is repeated")

// valueOf returns the JSON value of a node in the form that [inject.Decode] returns.
func valueOf(n *yaml.Node) (any, error) {
	d := decoder{nodes: maxNodes, depth: maxDepth, aliased: maxAliased}
	return d.decode(n)
}

// A decoder expands the aliases of one document within the limits.
type decoder struct {
	nodes, depth int // remaining values and levels of nesting
	aliased      int // remaining values in aliases

	lenient bool // invalid values are null, invalid keys are ignored, and repeated keys are allowed
	first   bool // if lenient is set, the first value of a repeated key is used instead of the last one
	invalid bool // lenient is set, and the document contains an error other than a repeated key

	expanding map[*yaml.Node]bool // targets of the aliases that are being expanded
}

// readLeniently decodes a document with errors. invalid reports whether there is an error other
// than a repeated key.
func readLeniently(n *yaml.Node, first bool) (value any, invalid bool, err error) {
	d := decoder{nodes: maxNodes, depth: maxDepth, aliased: maxAliased, lenient: true, first: first}
	value, err = d.decode(n)
	return value, d.invalid, err
}

// enter counts a node and increases the nesting depth. leave decreases the depth.
func (d *decoder) enter(n *yaml.Node) error {
	if d.nodes--; d.nodes < 0 || d.depth == 0 {
		return fmt.Errorf("line %d: %w", n.Line, errTooLarge)
	}
	if len(d.expanding) > 0 {
		if d.aliased--; d.aliased < 0 {
			return fmt.Errorf("line %d: %w", n.Line, errAliases)
		}
	}
	d.depth--
	return nil
}

func (d *decoder) leave() { d.depth++ }

func (d *decoder) decode(n *yaml.Node) (any, error) {
	if err := d.enter(n); err != nil {
		return nil, err
	}
	defer d.leave()
	switch n.Kind {
	case yaml.DocumentNode:
		return d.decode(n.Content[0])
	case yaml.AliasNode:
		return d.decodeAlias(n)
	case yaml.ScalarNode:
		v, err := decodeScalar(n)
		if err != nil && d.lenient {
			d.invalid = true
			return nil, nil
		}
		return v, err
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			v, err := d.decode(item)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	}
	m := map[string]any{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := target(n.Content[i])
		if isMerge(key) {
			merged = append(merged, n.Content[i+1])
			continue
		}
		_, twice := m[key.Value]
		switch isText := key.Kind == yaml.ScalarNode && !isNull(key); {
		case !isText && d.lenient:
			d.invalid = true
			continue
		case !isText:
			return nil, fmt.Errorf("line %d: %w", key.Line, errKey)
		case twice && !d.lenient:
			return nil, fmt.Errorf("line %d: the key %q %w", key.Line, key.Value, errRepeated)
		case twice && d.first:
			continue
		}
		v, err := d.decode(n.Content[i+1])
		if err != nil {
			return nil, err
		}
		m[key.Value] = v
	}
	for _, from := range merged {
		if err := d.merge(m, from); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// merge adds the entries that the value of a << key contains. The value is a map or a list of
// maps, and earlier maps take precedence.
func (d *decoder) merge(m map[string]any, from *yaml.Node) error {
	if from.Kind == yaml.AliasNode {
		return d.follow(from, func(target *yaml.Node) error { return d.merge(m, target) })
	}
	if err := d.enter(from); err != nil {
		return err
	}
	defer d.leave()
	switch from.Kind {
	case yaml.SequenceNode:
		for _, one := range from.Content {
			if err := d.merge(m, one); err != nil {
				return err
			}
		}
		return nil
	}
	v, err := d.decode(from)
	if err != nil {
		return err
	}
	more, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("line %d: << requires a map", from.Line)
	}
	for key, v := range more {
		if _, has := m[key]; !has {
			m[key] = v
		}
	}
	return nil
}

func isMerge(key *yaml.Node) bool {
	return key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge"
}

func (d *decoder) decodeAlias(n *yaml.Node) (value any, err error) {
	err = d.follow(n, func(target *yaml.Node) error {
		value, err = d.decode(target)
		return err
	})
	return value, err
}

// follow calls use with the node that an alias refers to. It returns an error if the alias is part of this node.
func (d *decoder) follow(alias *yaml.Node, use func(*yaml.Node) error) error {
	if d.expanding[alias.Alias] {
		return fmt.Errorf("line %d: the alias *%s %w", alias.Line, alias.Value, errCycle)
	}
	if d.expanding == nil {
		d.expanding = map[*yaml.Node]bool{}
	}
	d.expanding[alias.Alias] = true
	defer delete(d.expanding, alias.Alias)
	return use(alias.Alias)
}

// target returns the node that an alias refers to, or the node itself.
func target(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// decodeScalar decodes a scalar as kubectl does. kubectl uses YAML 1.1, in which yes, no, on and
// off are also booleans.
func decodeScalar(n *yaml.Node) (any, error) {
	switch n.ShortTag() {
	case "!!null":
		return nil, nil
	case "!!bool", "!!int", "!!float":
		var v any
		if n.Decode(&v) != nil {
			return nil, fmt.Errorf("line %d: the value %q does not match its tag %s", n.Line, n.Value, n.ShortTag())
		}
		switch v := v.(type) {
		case bool:
			return v, nil
		case float64:
			if math.IsInf(v, 0) || math.IsNaN(v) {
				return nil, fmt.Errorf("line %d: number %s is not supported by JSON", n.Line, n.Value)
			}
			text, err := json.Marshal(v)
			return json.Number(text), err
		}
		return json.Number(fmt.Sprint(v)), nil
	}
	const plain = 0
	if n.Line > 0 && n.Style == plain && n.Tag == "!!str" { // new nodes have line number 0 and no style
		switch n.Value {
		case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
			return true, nil
		case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
			return false, nil
		}
	}
	return n.Value, nil
}

// nodeOfJSON returns the nodes of a valid JSON text in the original order. The nodes have line
// numbers but no columns.
func nodeOfJSON(text []byte) *yaml.Node {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	line, counted := 1, 0 // line number of the last token, and the offset up to which newlines were counted
	var next func() *yaml.Node
	next = func() *yaml.Node {
		token, _ := d.Token()
		end := int(d.InputOffset())
		line += bytes.Count(text[counted:end], []byte("\n"))
		counted = end
		n := &yaml.Node{Kind: yaml.ScalarNode, Line: line}
		switch v := token.(type) {
		case nil:
			n.Value = "null"
		case string:
			n.Tag, n.Style, n.Value = "!!str", yaml.DoubleQuotedStyle, v
		case json.Delim:
			n.Kind, n.Tag, n.Style = yaml.MappingNode, "!!map", yaml.FlowStyle
			if v == '[' {
				n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
			}
			for d.More() {
				n.Content = append(n.Content, next()) // next returns a key, a value or an item
			}
			_, _ = d.Token() // the closing delimiter
		default: // v is a boolean or a number
			n.Value = fmt.Sprint(v)
		}
		return n
	}
	return next()
}

// newNode returns the nodes of a JSON value that is added to a document. They have no style, so that the
// value is written in the style of the document.
func newNode(text []byte) *yaml.Node {
	var value string
	if text[0] == '"' && json.Unmarshal(text, &value) == nil { // fast path, because most values are strings, and a decoder allocates a buffer
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
	}
	return copyOf(nodeOfJSON(text))
}

// An edit maps each modified node of a document to its Content before the modification. It
// does not contain new nodes, whose line number is 0.
type edit map[*yaml.Node][]*yaml.Node

// apply makes one change below a node. It cannot fail, because [inject.Apply] made the same change
// in the value. If the nodes have a different value, which is possible with a merge key, the caller
// detects that the result is wrong.
func (e edit) apply(root *yaml.Node, c inject.Change) {
	var value *yaml.Node
	if c.Value != nil {
		value = newNode(c.Value)
	}
	n := root
	tokens := inject.Tokens(c.Path)
	for i, token := range tokens {
		at := place(n, token)
		if i == len(tokens)-1 {
			e.put(n, at, token, c, value)
			return
		}
		var child *yaml.Node
		if at >= 0 {
			child = n.Content[at]
		}
		switch {
		case child == nil || isNull(child):
			if c.Value == nil {
				return
			}
			made := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			if _, list := inject.Missing(token).([]any); list {
				made = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
			}
			e.put(n, at, token, inject.Change{Value: c.Value}, made)
			child = made
		case child.Kind == yaml.AliasNode: // copy the value, because the change must not affect the anchor
			copied := copyOf(child)
			e.keep(n)
			n.Content[at] = copied
			child = copied
		}
		n = child
	}
}

// place returns the index in n.Content of the value or item that a token refers to, or -1.
func place(n *yaml.Node, token string) int {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if key := target(n.Content[i]); key.Kind == yaml.ScalarNode && key.Value == token {
				return i + 1
			}
		}
	case yaml.SequenceNode:
		if i, is := inject.Place(token, len(n.Content)); is {
			return i
		}
		called := make([]any, len(n.Content))
		for i, item := range n.Content {
			called[i] = findFields(item)
		}
		return inject.Find(called, token)
	}
	return -1
}

// findFields returns only the fields of an item that [inject.Find] compares, because a
// whole item can be large. The item must be valid.
func findFields(item *yaml.Node) any {
	item = target(item)
	if item.Kind != yaml.MappingNode {
		return nil
	}
	calls := map[string]any{}
	for i := 0; i+1 < len(item.Content); i += 2 {
		switch key := target(item.Content[i]); {
		case isMerge(key):
			v, _ := valueOf(item)
			return v
		case slices.Contains([]string{"name", "protocol", "port", "containerPort"}, key.Value):
			calls[key.Value], _ = valueOf(item.Content[i+1])
		}
	}
	return calls
}

// put sets, adds or removes one child of a node.
func (e edit) put(n *yaml.Node, at int, token string, c inject.Change, value *yaml.Node) {
	var child *yaml.Node
	if at >= 0 {
		child = n.Content[at]
	}
	if child == nil && c.Value == nil || c.IfEmpty && child != nil && !isNull(child) && (target(child).Kind == yaml.ScalarNode || len(target(child).Content) > 0) {
		return
	}
	e.keep(n)
	isMap := n.Kind == yaml.MappingNode
	switch {
	case child == nil && isMap:
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: token}, value)
	case child == nil:
		n.Content = append(n.Content, value)
	case c.Value != nil:
		n.Content[at] = value
	case isMap:
		n.Content = slices.Delete(n.Content, at-1, at+1)
	default:
		n.Content = slices.Delete(n.Content, at, at+1)
	}
}

// keep records the Content of a node before its first modification.
func (e edit) keep(n *yaml.Node) {
	if _, kept := e[n]; !kept && n.Line > 0 {
		e[n] = slices.Clone(n.Content)
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// copyOf returns a deep copy of a node with expanded aliases. The copy is a new node without line
// numbers.
func copyOf(n *yaml.Node) *yaml.Node {
	n = target(n)
	copied := &yaml.Node{Kind: n.Kind, Tag: n.Tag, Value: n.Value}
	for _, child := range n.Content {
		copied.Content = append(copied.Content, copyOf(child))
	}
	return copied
}

// expand returns a deep copy of a node, including comments, with all aliases and merges expanded.
// It is used for documents that cannot be edited in place.
func expand(n *yaml.Node) *yaml.Node {
	n = target(n)
	copied := *n
	copied.Anchor = ""
	copied.Content = nil
	if isNull(n) { // in flow style, the library writes null as two single quotes
		copied.Value = "null"
	}
	has := map[string]bool{}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			has[target(n.Content[i]).Value] = true
		}
	}
	var mergeFrom func(from *yaml.Node)
	mergeFrom = func(from *yaml.Node) {
		from = target(from)
		if from.Kind == yaml.SequenceNode {
			for _, one := range from.Content {
				mergeFrom(one)
			}
			return
		}
		from = expand(from)
		for i := 0; i+1 < len(from.Content); i += 2 {
			if key := from.Content[i].Value; !has[key] {
				has[key] = true
				copied.Content = append(copied.Content, from.Content[i], from.Content[i+1])
			}
		}
	}
	for i, child := range n.Content {
		switch {
		case n.Kind == yaml.MappingNode && i%2 == 0 && isMerge(target(child)):
			mergeFrom(n.Content[i+1])
		case n.Kind == yaml.MappingNode && i%2 == 1 && isMerge(target(n.Content[i-1])):
		default:
			copied.Content = append(copied.Content, expand(child))
		}
	}
	return &copied
}
