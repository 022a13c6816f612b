package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// decodeInto decodes a value, as [Decode] returns it, into the Kubernetes type that object points to. If
// a field has a value of another kind, the error contains the path and the value of the field, and the
// expected kind.
func decodeInto(value, object any) error {
	err := kjson.UnmarshalCaseSensitivePreserveInts(encode(value), object)
	if err == nil {
		return nil
	}
	if found := findInvalid(nil, value, reflect.TypeOf(object).Elem()); found != nil {
		return found
	}
	return err
}

// checkLists validates the container fields that decodeTemplate does not decode. It returns an error if
// a field is not a list, or if an item, or the name or the value of a variable, has the wrong type.
func checkLists(template any) error {
	for _, list := range []string{"containers", "initContainers"} {
		for i, container := range listAt(template, "spec", list) {
			path := field.NewPath("spec", list).Index(i)
			for _, key := range []string{"command", "args", "env", "envFrom", "volumeMounts"} {
				t, _ := memberOf(nil, key, reflect.TypeFor[corev1.Container]())
				if err := checkList(path.Child(key), At(container, key), t); err != nil {
					return err
				}
			}
			for i, variable := range listAt(container, "env") {
				for _, key := range []string{"name", "value"} {
					value := At(variable, key)
					if _, isString := value.(string); value != nil && !isString {
						return invalidValue(path.Child("env").Index(i).Child(key), value, reflect.TypeFor[string]())
					}
				}
			}
		}
	}
	return nil
}

// checkList returns an error if value is not a list of strings or of maps, according to the type t.
func checkList(path *field.Path, value any, t reflect.Type) error {
	if value == nil {
		return nil
	}
	items, isList := value.([]any)
	if !isList {
		return invalidValue(path, value, t)
	}
	for i, item := range items {
		var isValid bool
		if t.Elem().Kind() == reflect.String {
			_, isValid = item.(string)
		} else {
			_, isValid = item.(map[string]any)
		}
		if item != nil && !isValid {
			return invalidValue(path.Index(i), item, t.Elem())
		}
	}
	return nil
}

// findInvalid returns an error for the first value below path that cannot be decoded into the type t.
// It returns nil if there is none. The error of the decoder is not sufficient, because it contains
// names of Go types, no list indexes, and no path for a quantity.
func findInvalid(path *field.Path, value any, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if value == nil {
		return nil
	}
	_, isSpecial := reflect.New(t).Interface().(json.Unmarshaler)
	switch members, isMap := value.(map[string]any); {
	case isSpecial:
	case isMap && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		for _, key := range slices.Sorted(maps.Keys(members)) {
			member, below := memberOf(path, key, t)
			if member == nil {
				continue
			}
			if err := findInvalid(below, members[key], member); err != nil {
				return err
			}
		}
		return nil
	case t.Kind() == reflect.Slice:
		items, isList := value.([]any)
		for i, item := range items {
			if err := findInvalid(path.Index(i), item, t.Elem()); err != nil {
				return err
			}
		}
		if isList {
			return nil
		}
	}
	if kjson.UnmarshalCaseSensitivePreserveInts(encode(value), reflect.New(t).Interface()) == nil {
		return nil
	}
	return invalidValue(path, value, t)
}

// invalidValue returns the error for a value that cannot be decoded into the type t.
func invalidValue(path *field.Path, value any, t reflect.Type) error {
	text := fmt.Sprintf("must be %s, but is %s", describeType(t), describeValue(value))
	content, isString := value.(string)
	_, isNumber := value.(json.Number)
	_, isBool := value.(bool)
	switch {
	case isString && json.Unmarshal([]byte(content), reflect.New(t).Interface()) == nil:
		text += "; remove the quotes"
	case (isNumber || isBool) && t.Kind() == reflect.String:
		text += "; put the value in quotes"
	case isNumber && (t.Kind() == reflect.Int32 || t.Kind() == reflect.Int64) && !strings.ContainsAny(fmt.Sprint(value), ".eE"):
		text += "; the number is out of range"
	}
	if path == nil {
		return errors.New(text)
	}
	return fmt.Errorf("%s: %s", path, text)
}

// memberOf returns the type and the path of the member with the given key in a value of type t, which is
// a struct or a map. The type is nil if a struct has no such member.
func memberOf(path *field.Path, key string, t reflect.Type) (reflect.Type, *field.Path) {
	if t.Kind() == reflect.Map {
		return t.Elem(), path.Key(message.Truncate(key, 64))
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == key:
			return f.Type, path.Child(key)
		case name == "" && f.Anonymous: // an inline struct
			if member, below := memberOf(path, key, f.Type); member != nil {
				return member, below
			}
		}
	}
	return nil, nil
}

// describeValue describes a value, for example "a list" or "the number 80".
func describeValue(value any) string {
	switch v := value.(type) {
	case map[string]any:
		return "a map"
	case []any:
		return "a list"
	case string:
		return fmt.Sprintf("the string %q", message.Truncate(v, 64))
	case bool:
		return fmt.Sprintf("the boolean %t", v)
	}
	return "the number " + message.Truncate(fmt.Sprint(value), 64)
}

// describeType describes the values of a type.
func describeType(t reflect.Type) string {
	switch reflect.New(t).Interface().(type) {
	case *resource.Quantity:
		return "a quantity such as 25m or 32Mi"
	case *intstr.IntOrString:
		return "a string or an integer"
	case *metav1.Time:
		return "a time such as 2006-01-02T15:04:05Z"
	}
	switch t.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int32, reflect.Int64:
		return "an integer"
	}
	return "a map"
}
