package wire

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestPackedFieldsRoundTrip(t *testing.T) {
	var fields []Field
	for _, f := range [][2]string{
		{"a", ""}, {"b", "1"}, {"Cookie", "x=y"}, {"b", "2"},
		{"long", strings.Repeat("v", 127)}, {"longer", strings.Repeat("v", 128)},
		{strings.Repeat("n", 300), strings.Repeat("v", 70_000)},
	} {
		fields = append(fields, Field{Name: []byte(f[0]), Value: []byte(f[1])})
	}
	for n := range len(fields) + 1 {
		packed := Packed(nil).Pack(fields[:n])
		harness.Equal(t, len(packed), PackedSize(fields[:n]), "size")
		got := packed.Unpack(nil)
		harness.Equal(t, len(got), n, "fields")
		for i := range got {
			harness.Equal(t, string(got[i].Name), string(fields[i].Name), "name")
			harness.Equal(t, string(got[i].Value), string(fields[i].Value), "value")
			value, ok := packed.Find(string(fields[i].Name))
			want, _ := Find(fields, string(fields[i].Name))
			harness.Equal(t, ok && string(value) == string(want), true, "found")
			harness.Equal(t, packed.Repeats(string(fields[i].Name)), Repeats(fields[:n], string(fields[i].Name)), "repeats")
		}
	}
	_, ok := Packed(nil).Pack(fields).Find("missing")
	harness.Equal(t, ok, false, "found")
}
