package observation

import (
	"strings"
	"testing"
)

type fieldsOf map[string]string

func (f fieldsOf) Header(name string) string { return f[name] }

func TestTagOf(t *testing.T) {
	for _, c := range []struct {
		tag, byDefault string
		want           Tag
	}{
		{"", "", TagDisabled},
		{"", "true", TagDefault},
		{"", "false", TagDefault},
		{"blue", "true", TagUndefined},
		{"-", "true", TagUndefined},
		{"blue", "", TagNamed},
		{"blue", "false", TagNamed},
		{"blue", "TRUE", TagNamed},
		{"0-a", "", TagNamed},
		{strings.Repeat("a", 63), "", TagNamed},
		{strings.Repeat("a", 64), "", TagMalformed},
		{"Blue", "", TagMalformed},
		{"-blue", "", TagMalformed},
		{"blue-", "", TagMalformed},
		{"a.b", "", TagMalformed},
		{"a b", "", TagMalformed},
		{"kn:default", "", TagMalformed},
		{"b\xffue", "", TagMalformed},
	} {
		kind, name := TagOf(fieldsOf{routeTag: c.tag, defaultRoute: c.byDefault})
		if kind != c.want || (name == c.tag) != (kind == TagNamed || c.tag == "") {
			t.Errorf("tag %q, default %q: got %d %q, want %d", c.tag, c.byDefault, kind, name, c.want)
		}
	}
}
