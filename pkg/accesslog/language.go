package accesslog

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	gotemplate "text/template"
	"text/template/parse"
)

// The language of templates is text/template's, read by its parser. It is spoken here,
// because text/template finds methods by their names at run time: a program that links
// that keeps every exported method of every type, a tenth of our binary. So what
// methods a template may call is a closed list, [method], and one that calls another
// is refused when it is parsed.

// parseTrees parses a template and those that it defines, and refuses what calls a
// method that we do not know.
func parseTrees(text string) (map[string]*parse.Tree, error) {
	trees, err := parse.Parse("", text, "", "", functions)
	if err != nil {
		return nil, err
	}
	for _, tree := range trees {
		inspect(tree.Root, func(n parse.Node, names []string) {
			for _, name := range names {
				if err == nil && slices.Contains(unknownMethods, name) {
					err = located(tree, n, fmt.Errorf("%s cannot be called here", name))
				}
			}
		})
	}
	return trees, err
}

// inspect calls f for every node that asks for fields or methods, with their names.
func inspect(node parse.Node, f func(n parse.Node, names []string)) {
	branch := func(b *parse.BranchNode) {
		inspect(b.Pipe, f)
		inspect(b.List, f)
		if b.ElseList != nil {
			inspect(b.ElseList, f)
		}
	}
	switch n := node.(type) {
	case *parse.ListNode:
		for _, n := range n.Nodes {
			inspect(n, f)
		}
	case *parse.IfNode:
		branch(&n.BranchNode)
	case *parse.WithNode:
		branch(&n.BranchNode)
	case *parse.RangeNode:
		branch(&n.BranchNode)
	case *parse.ActionNode:
		inspect(n.Pipe, f)
	case *parse.TemplateNode:
		if n.Pipe != nil {
			inspect(n.Pipe, f)
		}
	case *parse.PipeNode:
		for _, command := range n.Cmds {
			for _, arg := range command.Args {
				inspect(arg, f)
			}
		}
	case *parse.ChainNode:
		f(n, n.Field)
		inspect(n.Node, f)
	case *parse.FieldNode:
		f(n, n.Ident)
	case *parse.VariableNode:
		f(n, n.Ident[1:])
	}
}

// located says where an error is.
func located(tree *parse.Tree, n parse.Node, err error) error {
	place, context := tree.ErrorContext(n)
	return fmt.Errorf("template: %s: at <%s>: %w", place, context, err)
}

// maxDepth is how deep templates may call each other.
const maxDepth = 1000

// A run is a template at work.
type run struct {
	out       *bounded
	trees     map[string]*parse.Tree
	tree      *parse.Tree // the one that runs
	variables []variable  // the innermost last
	depth     int
}

type variable struct {
	name  string
	value any
}

// What leaves the body of a range.
var (
	errBreak    = errors.New("break outside of a range")
	errContinue = errors.New("continue outside of a range")
)

// run runs one tree.
func (r *run) run(tree *parse.Tree, dot any) error {
	if r.depth++; r.depth > maxDepth {
		return errors.New("templates call each other without an end")
	}
	outer, variables := r.tree, r.variables
	r.tree, r.variables = tree, []variable{{"$", dot}}
	err := r.walk(dot, tree.Root)
	r.tree, r.variables = outer, variables
	r.depth--
	return err
}

// walk writes what a node makes.
func (r *run) walk(dot any, node parse.Node) error {
	switch n := node.(type) {
	case *parse.ListNode:
		for _, n := range n.Nodes {
			if err := r.walk(dot, n); err != nil {
				return err
			}
		}
	case *parse.TextNode:
		_, err := r.out.Write(n.Text)
		return err
	case *parse.ActionNode:
		v, err := r.pipe(dot, n.Pipe)
		if err == nil && len(n.Pipe.Decl) == 0 {
			err = r.print(v)
		}
		return r.at(n, err)
	case *parse.IfNode:
		return r.choose(dot, &n.BranchNode, false)
	case *parse.WithNode:
		return r.choose(dot, &n.BranchNode, true)
	case *parse.RangeNode:
		return r.loop(dot, n)
	case *parse.BreakNode:
		return errBreak
	case *parse.ContinueNode:
		return errContinue
	case *parse.TemplateNode:
		tree := r.trees[n.Name]
		if tree == nil {
			return r.at(n, fmt.Errorf("template %q not defined", n.Name))
		}
		v, err := r.pipe(dot, n.Pipe)
		if err != nil {
			return r.at(n, err)
		}
		return r.run(tree, v)
	}
	return nil
}

// at says where an error is.
func (r *run) at(n parse.Node, err error) error {
	if err == nil {
		return nil
	}
	return located(r.tree, n, err)
}

// choose is if and with.
func (r *run) choose(dot any, b *parse.BranchNode, with bool) error {
	outer := len(r.variables)
	defer func() { r.variables = r.variables[:outer] }()
	v, err := r.pipe(dot, b.Pipe)
	if err != nil {
		return r.at(b, err)
	}
	switch truth, _ := gotemplate.IsTrue(v); {
	case truth && with:
		return r.walk(v, b.List)
	case truth:
		return r.walk(dot, b.List)
	case b.ElseList != nil:
		return r.walk(dot, b.ElseList)
	}
	return nil
}

// loop is range.
func (r *run) loop(dot any, n *parse.RangeNode) error {
	outer := len(r.variables)
	defer func() { r.variables = r.variables[:outer] }()
	over, err := r.commands(dot, n.Pipe)
	if err != nil {
		return r.at(n, err)
	}
	found := false
	// each runs the body once; false ends the loop.
	each := func(index, element any) bool {
		found = true
		r.variables = r.variables[:outer]
		switch decl := n.Pipe.Decl; len(decl) {
		case 1:
			r.set(n.Pipe, decl[0], element)
		case 2:
			r.set(n.Pipe, decl[0], index)
			r.set(n.Pipe, decl[1], element)
		}
		if err = r.walk(element, n.List); errors.Is(err, errContinue) {
			err = nil
		}
		return err == nil
	}
	switch v := behind(reflect.ValueOf(over)); {
	case !v.IsValid():
	case v.CanInt():
		for i := range v.Int() {
			if e := reflect.ValueOf(i).Convert(v.Type()).Interface(); !each(e, e) {
				break
			}
		}
	case v.CanUint():
		for i := range v.Uint() {
			if e := reflect.ValueOf(i).Convert(v.Type()).Interface(); !each(e, e) {
				break
			}
		}
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		for i := range v.Len() {
			if !each(i, v.Index(i).Interface()) {
				break
			}
		}
	case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			if !each(key.Interface(), v.MapIndex(key).Interface()) {
				break
			}
		}
	default:
		return r.at(n, fmt.Errorf("nothing to range over in %T", over))
	}
	if errors.Is(err, errBreak) {
		err = nil
	}
	if err == nil && !found && n.ElseList != nil {
		err = r.walk(dot, n.ElseList)
	}
	return err
}

// pipe is the value of a pipeline, which its variables get too.
func (r *run) pipe(dot any, p *parse.PipeNode) (any, error) {
	if p == nil {
		return nil, nil
	}
	v, err := r.commands(dot, p)
	if err != nil {
		return nil, err
	}
	for _, d := range p.Decl {
		r.set(p, d, v)
	}
	return v, nil
}

// set gives a variable of a pipeline its value. The parser has seen to it that one
// that gets another value is there.
func (r *run) set(p *parse.PipeNode, d *parse.VariableNode, v any) {
	if p.IsAssign {
		r.variable(d.Ident[0]).value = v
		return
	}
	r.variables = append(r.variables, variable{d.Ident[0], v})
}

func (r *run) variable(name string) *variable {
	for i := range slices.Backward(r.variables) {
		if v := &r.variables[i]; v.name == name {
			return v
		}
	}
	return &variable{} // the parser refuses such a template
}

// commands is the value of the last command. Each gets the value of the one before
// it as its last argument.
func (r *run) commands(dot any, p *parse.PipeNode) (v any, err error) {
	var last []any
	for _, c := range p.Cmds {
		if v, err = r.command(dot, c.Args[0], c.Args[1:], last); err != nil {
			return nil, err
		}
		last = []any{v}
	}
	return v, nil
}

// command is the value of a node with arguments: those that are written, and last.
func (r *run) command(dot any, node parse.Node, written []parse.Node, last []any) (any, error) {
	if n, ok := node.(*parse.IdentifierNode); ok {
		return r.function(dot, n.Ident, written, last)
	}
	var of any
	var names []string
	var err error
	switch n := node.(type) {
	case *parse.FieldNode:
		of, names = dot, n.Ident
	case *parse.VariableNode:
		of, names = r.variable(n.Ident[0]).value, n.Ident[1:]
	case *parse.ChainNode:
		of, err = r.value(dot, n.Node)
		names = n.Field
	case *parse.NilNode:
		return nil, errors.New("nil is not a command")
	default:
		of, err = r.value(dot, node)
	}
	if err != nil {
		return nil, err
	}
	args, err := r.values(dot, written, last)
	switch {
	case err != nil:
		return nil, err
	case len(names) == 0 && len(args) > 0:
		return nil, fmt.Errorf("%s takes no arguments", node)
	}
	for i, name := range names {
		var own []any // only the last of a chain has any
		if i == len(names)-1 {
			own = args
		}
		if of, err = field(of, name, own); err != nil {
			return nil, err
		}
	}
	return of, nil
}

// values are the values of arguments.
func (r *run) values(dot any, written []parse.Node, last []any) ([]any, error) {
	if len(written) == 0 {
		return last, nil
	}
	args := make([]any, 0, len(written)+len(last))
	for _, n := range written {
		v, err := r.value(dot, n)
		if err != nil {
			return nil, err
		}
		args = append(args, v)
	}
	return append(args, last...), nil
}

// value is the value of one node.
func (r *run) value(dot any, node parse.Node) (any, error) {
	switch n := node.(type) {
	case *parse.DotNode:
		return dot, nil
	case *parse.NilNode:
		return nil, nil
	case *parse.BoolNode:
		return n.True, nil
	case *parse.StringNode:
		return n.Text, nil
	case *parse.NumberNode:
		return number(n)
	case *parse.PipeNode:
		return r.pipe(dot, n)
	}
	return r.command(dot, node, nil, nil)
}

// number is a constant, of the type that text/template gives one where any fits.
func number(n *parse.NumberNode) (any, error) {
	base := n.Text[0] == '\'' || len(n.Text) > 1 && strings.ContainsAny(n.Text[:2], "xX") && !strings.ContainsAny(n.Text, "pP")
	switch {
	case n.IsComplex:
		return n.Complex128, nil
	case n.IsFloat && !base && strings.ContainsAny(n.Text, ".eEpP"):
		return n.Float64, nil
	case n.IsInt:
		return int(n.Int64), nil
	}
	return nil, fmt.Errorf("%s overflows int", n.Text)
}

// behind is what stands behind pointers; invalid: nothing does.
func behind(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	return v
}

// field is a field, or what a method of that name returns. Of a map it is the value
// of that key, zero if there is none; of nothing, nothing.
func field(of any, name string, args []any) (any, error) {
	if of == nil { // as a template has that is called without a value
		return nil, nil
	}
	if f := method(of, name); f != nil {
		v, err := call(f, args)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return v, nil
	}
	v := behind(reflect.ValueOf(of))
	switch {
	case !v.IsValid():
		return nil, fmt.Errorf("%s: nothing there to have a field %s", typeName(of), name)
	case v.Kind() == reflect.Struct:
		if f, ok := v.Type().FieldByName(name); ok && f.IsExported() && len(args) == 0 {
			return v.FieldByIndex(f.Index).Interface(), nil
		}
	case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String && len(args) == 0:
		e := v.MapIndex(reflect.ValueOf(name).Convert(v.Type().Key()))
		if !e.IsValid() {
			e = reflect.Zero(v.Type().Elem())
		}
		return e.Interface(), nil
	}
	if len(args) > 0 {
		return nil, fmt.Errorf("%s has no method %s", typeName(of), name)
	}
	return nil, fmt.Errorf("%s has no field or method %s", typeName(of), name)
}

func typeName(v any) string { return strings.TrimPrefix(fmt.Sprintf("%T", v), "*accesslog.") }

// print writes a value as text/template does: what stands behind a pointer, unless the
// type says itself how it is written.
func (r *run) print(v any) error {
	switch s := v.(type) {
	case nil:
		v = "<no value>"
	case string:
		_, err := r.out.Write([]byte(s))
		return err
	case error, fmt.Stringer:
	default:
		b := behind(reflect.ValueOf(v))
		if !b.IsValid() {
			v = "<nil>"
			break
		}
		if b.Kind() == reflect.Func || b.Kind() == reflect.Chan {
			return fmt.Errorf("a %s cannot be printed", typeName(v))
		}
		v = b.Interface()
	}
	_, err := fmt.Fprint(r.out, v)
	return err
}
