package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// A Change is one edit of an object: after it, Value stands at Path.
type Change struct {
	// Path is a JSON pointer (RFC 6901), with one difference: below a list a token
	// is the name of an item, so that the change means the same after somebody has
	// put another item before it. An item without a name is called by the number of
	// its TCP port, or by its place, as in #0.
	Path string `json:"path"`

	// Value is any JSON; nil takes away what stands at Path. Maps, and the lists
	// initContainers and containers, are made where they are missing on the way; a
	// new item goes to the end of its list. Its key is that of a status, where a change
	// brings back what was there.
	Value json.RawMessage `json:"was,omitempty"`

	// IfEmpty makes the change only if nothing, or an empty map or list, stands at
	// Path. That is how what was made on the way to a Path is taken away again.
	IfEmpty bool `json:"ifEmpty,omitempty"`
}

// Apply makes the changes, in their order, in an object of JSON as [Decode] returns
// it, and returns the object. It works in place: after an error, which names the path
// that leads nowhere, the object is half changed.
func Apply(object any, changes []Change) (any, error) {
	for _, c := range changes {
		var err error
		if object, err = apply(object, c); err != nil {
			return nil, err
		}
	}
	return object, nil
}

func apply(object any, c Change) (any, error) {
	var value any
	if c.Value != nil {
		var err error
		if value, err = Decode(c.Value); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Path, err)
		}
	}
	object, err := put(object, Tokens(c.Path), c, value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Path, err)
	}
	return object, nil
}

// put makes one change below a node, which is not nil, and returns what then stands
// in the node's place.
func put(node any, tokens []string, c Change, value any) (any, error) {
	token, last := tokens[0], len(tokens) == 1
	object, isMap := node.(map[string]any)
	list, isList := node.([]any)
	if !isMap && !isList {
		return nil, fmt.Errorf("%q is looked for in something that is neither a map nor a list", token)
	}
	child, i := object[token], Find(list, token)
	if i >= 0 {
		child = list[i]
	}
	there := child != nil || i >= 0
	switch {
	case last && c.IfEmpty && !isEmpty(child), !last && !there && c.Value == nil:
		return node, nil // nothing is made on the way to what is taken away
	case !last && !there && isList:
		return nil, fmt.Errorf("nothing is called %q", token)
	case !last:
		if !there {
			child = Missing(token)
		}
		var err error
		if value, err = put(child, tokens[1:], c, value); err != nil {
			return nil, err
		}
	}
	remove := last && c.Value == nil
	switch {
	case isMap && remove:
		delete(object, token)
	case isMap:
		object[token] = value
	case i >= 0 && remove:
		list = slices.Delete(list, i, i+1)
	case i >= 0:
		list[i] = value
	case !remove:
		list = append(list, value)
	}
	if isMap {
		return object, nil
	}
	return list, nil
}

// Missing is what is made where a token leads to nothing.
func Missing(token string) any {
	if token == "containers" || token == "initContainers" {
		return []any{}
	}
	return map[string]any{}
}

// isEmpty reports whether a value of [Decode] is nothing, or a map or list with
// nothing in it.
func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// Find is the place of the item that a token of a [Change]'s path calls, -1 for none.
func Find(list []any, token string) int {
	if i, is := Place(token, len(list)); is {
		return i
	}
	if i := slices.IndexFunc(list, func(item any) bool { return text(item, "name") == token }); i >= 0 {
		return i
	}
	return slices.IndexFunc(list, func(item any) bool {
		if p := text(item, "protocol"); p != "" && p != "TCP" {
			return false
		}
		return text(item, "containerPort") == token || text(item, "port") == token
	})
}

// Place is the place that a token such as #0 calls in a list of a length, -1 for none. is
// is false for tokens that call an item otherwise.
func Place(token string, length int) (i int, is bool) {
	place, is := strings.CutPrefix(token, "#")
	if !is {
		return -1, false
	}
	if i, err := strconv.Atoi(place); err == nil && i >= 0 && i < length {
		return i, true
	}
	return -1, true
}

// Tokens splits a pointer into its parts.
func Tokens(path string) []string {
	tokens := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, t := range tokens {
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(t, "~1", "/"), "~0", "~")
	}
	return tokens
}

// pointer is the way back from Tokens.
func pointer(tokens ...string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString("/" + strings.ReplaceAll(strings.ReplaceAll(t, "~", "~0"), "/", "~1"))
	}
	return b.String()
}

// Below moves changes down: what they edit lies at a pointer in a larger object.
func Below(path string, changes []Change) []Change {
	moved := slices.Clone(changes)
	for i := range moved {
		moved[i].Path = path + moved[i].Path
	}
	return moved
}

// JSONPatch writes the changes as a patch of RFC 6902 for the object, which is as
// [Decode] returned it and is changed on the way.
func JSONPatch(object any, changes []Change) ([]byte, error) {
	type operation struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value,omitempty"`
	}
	patch := []operation{}
	for _, c := range changes {
		node, way := object, []string{}
		tokens := Tokens(c.Path)
		for i, token := range tokens {
			last := i == len(tokens)-1
			var child any
			var there bool
			place := token
			switch node := node.(type) {
			case map[string]any:
				child, there = node[token]
			case []any:
				place = "-"
				if j := Find(node, token); j >= 0 {
					child, there, place = node[j], true, strconv.Itoa(j)
				}
			}
			way = append(way, place)
			op := "add"
			if there {
				op = "replace"
			}
			switch {
			case !last && child == nil && c.Value != nil:
				child = Missing(token)
				patch = append(patch, operation{op, pointer(way...), encode(child)})
			case last && c.IfEmpty && !isEmpty(child):
			case last && c.Value != nil:
				patch = append(patch, operation{op, pointer(way...), c.Value})
			case last && there:
				patch = append(patch, operation{Op: "remove", Path: pointer(way...)})
			}
			node = child
		}
		var err error
		if object, err = apply(object, c); err != nil {
			return nil, err
		}
	}
	return encode(patch), nil
}

// Decode reads one JSON value. Its numbers are [json.Number]s, so that none changes
// on its way through.
func Decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return value, nil
}

// encode returns a value as JSON. Equal values have equal bytes.
func encode(value any) json.RawMessage { return json.RawMessage(printable.CompactJSON(value)) }

// text is a string or a number that stands in a map under a key, "" for none.
func text(node any, key string) string {
	m, _ := node.(map[string]any)
	switch v := m[key].(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

// at is what stands at a place in an object, nil for nothing.
func at(node any, tokens ...string) any {
	for _, token := range tokens {
		switch n := node.(type) {
		case map[string]any:
			node = n[token]
		case []any:
			i := Find(n, token)
			if i < 0 {
				return nil
			}
			node = n[i]
		default:
			return nil
		}
	}
	return node
}

// listAt is the list that stands at a place in an object, nil for none.
func listAt(node any, tokens ...string) []any {
	list, _ := at(node, tokens...).([]any)
	return list
}

// An editor changes an object and keeps the changes and the way back.
type editor struct {
	object  any
	changes []Change
	backs   [][]Change // for each change, what takes it back
	err     error      // a change led nowhere; then none is made any more
}

// back takes all changes back, the last one first.
func (e *editor) back() []Change {
	var all []Change
	for _, b := range slices.Backward(e.backs) {
		all = append(all, b...)
	}
	return all
}

// set puts a value, of which JSON is made, at a path.
func (e *editor) set(value any, path ...string) { e.edit(encode(value), path) }

// remove takes away what stands at a path.
func (e *editor) remove(path ...string) { e.edit(nil, path) }

func (e *editor) edit(value json.RawMessage, path []string) {
	back := []Change{e.before(path)}
	if value != nil {
		// What will be made on the way goes away again if nothing else has come into it.
		for up := len(path) - 1; up > 0 && at(e.object, path[:up]...) == nil; up-- {
			made := e.before(path[:up])
			made.IfEmpty = true
			back = append(back, made)
		}
	}
	// An item that changes its name is found again by the new one.
	if n := len(path); n > 1 && path[n-1] == "name" && value != nil {
		var name string
		if _, inList := at(e.object, path[:n-2]...).([]any); inList && json.Unmarshal(value, &name) == nil {
			renamed := slices.Clone(path)
			renamed[n-2] = name
			back[0].Path = pointer(renamed...)
		}
	}
	c := Change{Path: pointer(path...), Value: value}
	if e.err != nil {
		return
	}
	if e.object, e.err = apply(e.object, c); e.err != nil {
		return
	}
	e.changes = append(e.changes, c)
	e.backs = append(e.backs, back)
}

// before is the change that brings back what stands at a path now.
func (e *editor) before(path []string) Change {
	c := Change{Path: pointer(path...)}
	n := len(path) - 1
	switch parent := at(e.object, path[:n]...).(type) {
	case map[string]any:
		if was, there := parent[path[n]]; there {
			c.Value = encode(was)
		}
	case []any:
		if i := Find(parent, path[n]); i >= 0 {
			c.Value = encode(parent[i])
		}
	}
	return c
}
