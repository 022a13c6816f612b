package harness

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// NoError ends the test if err is not nil. The optional values describe the operation.
func NoError(t testing.TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(label(what) + err.Error())
	}
}

// Contains reports an error if got does not contain want.
func Contains(t testing.TB, got, want string, what ...any) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%sgot %s, want it to contain %s", label(what), show(got), show(want))
	}
}

// Equal reports an error if got differs from want. It uses == for comparable types and
// reflect.DeepEqual for other types. A nil slice or map equals an empty one. The optional
// values describe what is compared.
func Equal[T any](t testing.TB, got, want T, what ...any) {
	t.Helper()
	if equal(got, want) {
		return
	}
	shownGot, shownWant := show(got), show(want)
	if strings.Contains(shownGot+shownWant, "\n") {
		t.Errorf("%sgot\n%s\nwant\n%s", label(what), shownGot, shownWant)
		return
	}
	t.Errorf("%sgot %s, want %s", label(what), shownGot, shownWant)
}

func equal[T any](got, want T) bool {
	g, w := reflect.ValueOf(&got).Elem(), reflect.ValueOf(&want).Elem()
	switch {
	case g.Comparable() && w.Comparable():
		return g.Equal(w)
	case (g.Kind() == reflect.Slice || g.Kind() == reflect.Map) && g.Len() == 0:
		return w.Len() == 0
	}
	return reflect.DeepEqual(got, want)
}

// show formats a value for a message. It quotes a string unless the string has several lines.
func show(v any) string {
	switch v := v.(type) {
	case string:
		if strings.Contains(v, "\n") {
			return v
		}
		return strconv.Quote(v)
	case []string, []byte:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprintf("%+v", v)
}

// label returns the description with a colon, or "" if there is no description. Empty and
// unprintable strings are quoted.
func label(what []any) string {
	if len(what) == 0 {
		return ""
	}
	all := slices.Clone(what)
	for i, w := range all {
		if s, ok := w.(string); ok && (s == "" || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })) {
			all[i] = strconv.Quote(s)
		}
	}
	return strings.TrimSuffix(fmt.Sprintln(all...), "\n") + ": "
}
