package accesslog

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	gotemplate "text/template"
	"text/template/parse"
)

// functions are those of text/template, without call: nothing that a template sees is
// a function.
var functions = map[string]any{
	"and": true, "eq": true, "ge": true, "gt": true, "html": true, "index": true, "js": true, "le": true, "len": true, "lt": true,
	"ne": true, "not": true, "or": true, "print": true, "printf": true, "println": true, "slice": true, "urlquery": true,
}

// function is the value of a function.
func (r *run) function(dot any, name string, written []parse.Node, last []any) (v any, err error) {
	if name == "and" || name == "or" { // which look no further than they must
		if len(written)+len(last) == 0 {
			return nil, fmt.Errorf("%s: no arguments", name)
		}
		for _, n := range written {
			if v, err = r.value(dot, n); err != nil {
				return nil, err
			}
			if truth, _ := gotemplate.IsTrue(v); truth == (name == "or") {
				return v, nil
			}
		}
		if len(last) > 0 {
			v = last[0]
		}
		return v, nil
	}

	args, err := r.values(dot, written, last)
	if err != nil {
		return nil, err
	}
	least, most := 0, len(args)
	switch name {
	case "not", "len":
		least, most = 1, 1
	case "ne", "lt", "le", "gt", "ge":
		least, most = 2, 2
	case "eq":
		least = 2
	case "index", "slice", "printf":
		least = 1
	}
	if len(args) < least || len(args) > most {
		return nil, fmt.Errorf("%s: got %d arguments, want %d", name, len(args), least)
	}
	switch name {
	case "html":
		v = gotemplate.HTMLEscaper(args...)
	case "urlquery":
		v = gotemplate.URLQueryEscaper(args...)
	case "js":
		v = js(args...)
	case "print":
		v = fmt.Sprint(args...)
	case "println":
		v = fmt.Sprintln(args...)
	case "printf":
		format, ok := args[0].(string)
		if !ok {
			return nil, fmt.Errorf("printf: the format is no text: %v", args[0])
		}
		v = fmt.Sprintf(format, args[1:]...)
	case "not":
		truth, _ := gotemplate.IsTrue(args[0])
		v = !truth
	case "index":
		v, err = index(args[0], args[1:]...)
	case "slice":
		v, err = slice(args[0], args[1:])
	case "len":
		v, err = length(args[0])
	case "eq":
		v, err = equalsOne(args[0], args[1:])
	default:
		v, err = compared(name, args[0], args[1])
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

func length(v any) (int, error) {
	switch b := behind(reflect.ValueOf(v)); b.Kind() {
	case reflect.String, reflect.Slice, reflect.Array, reflect.Map, reflect.Chan:
		return b.Len(), nil
	}
	return 0, fmt.Errorf("%s has no length", typeName(v))
}

// slice is item[a:b:c]; what is not said is as in Go.
func slice(item any, at []any) (any, error) {
	v := behind(reflect.ValueOf(item))
	isText := v.Kind() == reflect.String
	if !isText && v.Kind() != reflect.Slice || len(at) > 3 || isText && len(at) > 2 {
		return nil, fmt.Errorf("%s cannot be sliced so", typeName(item))
	}
	bounds := []int{0, v.Len(), v.Len()}
	if !isText {
		bounds[2] = v.Cap()
	}
	for i, a := range at {
		n := reflect.ValueOf(a)
		if !n.CanInt() {
			return nil, fmt.Errorf("%v cannot be an index", a)
		}
		bounds[i] = int(n.Int())
	}
	if bounds[0] < 0 || bounds[0] > bounds[1] || bounds[1] > bounds[2] || !isText && bounds[2] > v.Cap() {
		return nil, fmt.Errorf("%v is out of range", at)
	}
	if isText {
		return v.Slice(bounds[0], bounds[1]).Interface(), nil
	}
	return v.Slice3(bounds[0], bounds[1], bounds[2]).Interface(), nil
}

// equalsOne reports whether one of the others equals v.
func equalsOne(v any, others []any) (bool, error) {
	for _, other := range others {
		if is, err := equal(v, other); is || err != nil {
			return is, err
		}
	}
	return false, nil
}

// equal compares numbers by what they are worth, of any type, and everything else of
// equal types as Go does. What is nil equals nil.
func equal(a, b any) (bool, error) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	if order, ok := compare(x, y); ok {
		return order == 0, nil
	}
	switch {
	case isNil(x) || isNil(y):
		return isNil(x) == isNil(y), nil
	case x.Type() != y.Type() || !x.Comparable():
		return false, fmt.Errorf("%T and %T cannot be compared", a, b)
	}
	return a == b, nil
}

func isNil(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan, reflect.Interface:
		return v.IsNil()
	}
	return false
}

// compare orders numbers and texts; false: they are neither.
func compare(x, y reflect.Value) (order int, ok bool) {
	switch {
	case x.Kind() == reflect.String && y.Kind() == reflect.String:
		return strings.Compare(x.String(), y.String()), true
	case x.CanInt() && y.CanInt():
		return cmp.Compare(x.Int(), y.Int()), true
	case x.CanUint() && y.CanUint():
		return cmp.Compare(x.Uint(), y.Uint()), true
	case x.CanInt() && y.CanUint():
		if x.Int() < 0 {
			return -1, true
		}
		return cmp.Compare(uint64(x.Int()), y.Uint()), true
	case x.CanUint() && y.CanInt():
		order, ok = compare(y, x)
		return -order, ok
	case isNumber(x) && isNumber(y):
		a, b := float(x), float(y)
		return cmp.Compare(a, b), a == a && b == b
	}
	return 0, false
}

func isNumber(v reflect.Value) bool { return v.CanInt() || v.CanUint() || v.CanFloat() }

func float(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}

// compared is ne, lt, le, gt and ge.
func compared(name string, a, b any) (bool, error) {
	if name == "ne" {
		is, err := equal(a, b)
		return !is, err
	}
	order, ok := compare(reflect.ValueOf(a), reflect.ValueOf(b))
	if !ok {
		return false, fmt.Errorf("%T and %T have no order", a, b)
	}
	switch name {
	case "lt":
		return order < 0, nil
	case "le":
		return order <= 0, nil
	case "gt":
		return order > 0, nil
	}
	return order >= 0, nil
}
