package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// A Change is one edit of an object. It sets the value at Path to Value.
type Change struct {
	// Path is a JSON pointer (RFC 6901) with one extension. In a list, a token is the name of an
	// item, so that the change remains valid if another item is inserted before it. The token of an
	// item without a name is the number of its TCP port, or its index in the form #0.
	Path string `json:"path"`

	// Value is a JSON value, or nil to remove the value at Path. Missing maps on the path,
	// and missing lists with the names initContainers and containers, are created. New items
	// are appended to their list. The JSON key is "was", because the status annotation
	// contains changes that restore earlier values.
	Value json.RawMessage `json:"was,omitempty"`

	// IfEmpty restricts the change to paths without a value, or with an empty map or list. It is
	// used to remove the maps and lists that an earlier change created.
	IfEmpty bool `json:"ifEmpty,omitempty"`
}

// Apply makes the changes in order, and returns the changed object. object must have the form that
// [Decode] returns. It is not modified, but the result shares all unchanged values with it. If a
// path is invalid, Apply returns an error that contains the path.
func Apply(object any, changes []Change) (any, error) {
	copied := copies{}
	for _, c := range changes {
		var err error
		if object, err = copied.apply(object, c); err != nil {
			return nil, err
		}
	}
	return object, nil
}

// copies contains the addresses of the maps and lists that were copied and can be modified. Only the maps and
// lists on the paths of changes are copied, because a deep copy of a large object would need too much memory.
type copies map[uintptr]bool

// apply makes a change and returns the changed object. It copies the maps and lists on the path
// before it modifies them.
func (copied copies) apply(object any, c Change) (any, error) {
	return apply(copied.copyPath(object, Tokens(c.Path)), c)
}

// copyPath returns node with copies of the maps and lists on a path.
func (copied copies) copyPath(node any, tokens []string) any {
	if len(tokens) == 0 {
		return node
	}
	switch n := node.(type) {
	case map[string]any:
		if !copied[reflect.ValueOf(n).Pointer()] {
			n = maps.Clone(n)
			copied[reflect.ValueOf(n).Pointer()] = true
		}
		if child, has := n[tokens[0]]; has {
			n[tokens[0]] = copied.copyPath(child, tokens[1:])
		}
		return n
	case []any:
		if !copied[reflect.ValueOf(n).Pointer()] {
			n = slices.Clone(n)
			copied[reflect.ValueOf(n).Pointer()] = len(n) > 0 // all empty lists can have the same address
		}
		if i := Find(n, tokens[0]); i >= 0 {
			n[i] = copied.copyPath(n[i], tokens[1:])
		}
		return n
	}
	return node
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

// put makes one change below a node that is not nil, and returns the new node.
func put(node any, tokens []string, c Change, value any) (any, error) {
	token, last := tokens[0], len(tokens) == 1
	object, isMap := node.(map[string]any)
	list, isList := node.([]any)
	if !isMap && !isList {
		return nil, fmt.Errorf("%q: parent is not a map or a list", token)
	}
	child, i := object[token], Find(list, token)
	if i >= 0 {
		child = list[i]
	}
	there := child != nil || i >= 0
	switch {
	case last && c.IfEmpty && !isEmpty(child), !last && !there && c.Value == nil:
		return node, nil // do not create missing parents only to remove a value
	case !last && !there && isList:
		return nil, fmt.Errorf("%q not found", token)
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

// Missing returns the empty map or list that is created if there is no value for a token on a path.
func Missing(token string) any {
	if token == "containers" || token == "initContainers" {
		return []any{}
	}
	return map[string]any{}
}

// isEmpty reports whether a decoded value is nil, an empty map or an empty list.
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

// Find returns the index of the item that a token refers to, or -1. The token is part of the path
// of a [Change].
func Find(list []any, token string) int {
	if i, is := Place(token, len(list)); is {
		return i
	}
	if i := slices.IndexFunc(list, func(item any) bool { return Text(item, "name") == token }); i >= 0 {
		return i
	}
	return slices.IndexFunc(list, func(item any) bool {
		if p := Text(item, "protocol"); p != "" && p != "TCP" {
			return false
		}
		return Text(item, "containerPort") == token || Text(item, "port") == token
	})
}

// Place returns the index that a token such as #0 contains, or -1 if the index is not in a list of
// the given length. ok reports whether the token has this form.
func Place(token string, length int) (i int, ok bool) {
	place, ok := strings.CutPrefix(token, "#")
	if !ok {
		return -1, false
	}
	if i, err := strconv.Atoi(place); err == nil && i >= 0 && i < length {
		return i, true
	}
	return -1, true
}

// Tokens splits a JSON pointer into its unescaped tokens.
func Tokens(path string) []string {
	tokens := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, t := range tokens {
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(t, "~1", "/"), "~0", "~")
	}
	return tokens
}

// pointer returns the JSON pointer of tokens. It is the inverse of Tokens.
func pointer(tokens ...string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString("/" + strings.ReplaceAll(strings.ReplaceAll(t, "~", "~0"), "/", "~1"))
	}
	return b.String()
}

// Below returns a copy of the changes for a larger object that contains the changed object at path.
func Below(path string, changes []Change) []Change {
	moved := slices.Clone(changes)
	for i := range moved {
		moved[i].Path = path + moved[i].Path
	}
	return moved
}

// JSONPatch returns the changes as a JSON patch (RFC 6902). object must have the form that [Decode]
// returns. It is not modified.
func JSONPatch(object any, changes []Change) ([]byte, error) {
	type operation struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value,omitempty"`
	}
	patch := []operation{}
	copied := copies{}
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
		if object, err = copied.apply(object, c); err != nil {
			return nil, err
		}
	}
	return encode(patch), nil
}

// Decode parses one JSON value. It returns numbers as [json.Number], so that they are not rounded.
func Decode(text []byte) (any, error) {
	if len(text) > 0 && text[0] == '"' { // most changes write strings, and a decoder allocates a buffer
		var value string
		err := json.Unmarshal(text, &value)
		return value, err
	}
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

// encode returns a value as JSON. The keys of maps are sorted.
func encode(value any) json.RawMessage { return json.RawMessage(message.CompactJSON(value)) }

// Text returns the string or number at a key of a map, or "".
func Text(node any, key string) string {
	m, _ := node.(map[string]any)
	switch v := m[key].(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

// At returns the value at a path in an object, or nil. A token for a list has the form described for
// [Change].
func At(node any, tokens ...string) any {
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

// listAt returns the list at a path in an object, or nil.
func listAt(node any, tokens ...string) []any {
	list, _ := At(node, tokens...).([]any)
	return list
}

// containersAtRuntime returns the containers of a pod that run at the same time as the sidecar: the
// regular containers, followed by the restartable init containers.
func containersAtRuntime(pod any) []any {
	inits := slices.DeleteFunc(slices.Clone(listAt(pod, "spec", "initContainers")), func(c any) bool { return At(c, "restartPolicy") == nil })
	return slices.Concat(listAt(pod, "spec", "containers"), inits)
}

// commandLine returns the strings in the command and the arguments of a container.
func commandLine(container any) []string {
	var all []string
	for _, word := range slices.Concat(listAt(container, "command"), listAt(container, "args")) {
		line, _ := word.(string)
		all = append(all, line)
	}
	return all
}

// numbersIn returns the sequences of digits in a string.
func numbersIn(text string) iter.Seq[string] {
	return strings.FieldsFuncSeq(text, func(r rune) bool { return r < '0' || r > '9' })
}

// An editor modifies an object. It records the changes and their inverses.
type editor struct {
	object   any
	copied   copies // the original object is not modified
	changes  []Change
	inverses [][]Change // for each change, the changes that revert it
	err      error      // the first error; later changes are ignored
}

// undoChanges returns the changes that revert all changes, in reverse order.
func (e *editor) undoChanges() []Change {
	var all []Change
	for _, b := range slices.Backward(e.inverses) {
		all = append(all, b...)
	}
	return all
}

// set sets the value at a path. value is encoded as JSON.
func (e *editor) set(value any, path ...string) { e.edit(encode(value), path) }

// remove removes the value at a path.
func (e *editor) remove(path ...string) { e.edit(nil, path) }

func (e *editor) edit(value json.RawMessage, path []string) {
	undoChanges := []Change{e.before(path)}
	if value != nil {
		// The inverse also removes the parents that this change creates, if nothing else
		// was added to them.
		for up := len(path) - 1; up > 0 && At(e.object, path[:up]...) == nil; up-- {
			made := e.before(path[:up])
			made.IfEmpty = true
			undoChanges = append(undoChanges, made)
		}
	}
	// If this change renames an item, the inverse must find the item by its new name.
	if n := len(path); n > 1 && path[n-1] == "name" && value != nil {
		var name string
		if _, inList := At(e.object, path[:n-2]...).([]any); inList && json.Unmarshal(value, &name) == nil {
			renamed := slices.Clone(path)
			renamed[n-2] = name
			undoChanges[0].Path = pointer(renamed...)
		}
	}
	c := Change{Path: pointer(path...), Value: value}
	if e.err != nil {
		return
	}
	if e.object, e.err = e.copied.apply(e.object, c); e.err != nil {
		return
	}
	e.changes = append(e.changes, c)
	e.inverses = append(e.inverses, undoChanges)
}

// before returns the change that restores the current value at a path.
func (e *editor) before(path []string) Change {
	c := Change{Path: pointer(path...)}
	n := len(path) - 1
	switch parent := At(e.object, path[:n]...).(type) {
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
