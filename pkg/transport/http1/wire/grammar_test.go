package wire_test

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestValidTokenMatchesRFC9110(t *testing.T) {
	const tchar = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" // 5.6.2
	for c := range 256 {
		s := string([]byte{byte(c)})
		harness.Equal(t, wire.ValidToken(s), strings.Contains(tchar, s), s)
		harness.Equal(t, wire.ValidToken([]byte("a"+s)), strings.Contains(tchar, s), "a and", s)
	}
	if wire.ValidToken("") {
		t.Error("the empty string: got true, want false")
	}
}

func TestValidValueRejectsControlCharacters(t *testing.T) {
	for c := range 256 {
		want := c == '\t' || c >= ' ' && c != 0x7f // RFC 9110 5.5
		for before := range 17 {
			s := strings.Repeat("x", before) + string([]byte{byte(c)}) + strings.Repeat("\xff", 16-before)
			harness.Equal(t, wire.ValidValue(s), want, s)
			harness.Equal(t, wire.ValidValue([]byte(s)), want, s, "as bytes")
		}
	}
	if !wire.ValidValue("") {
		t.Error("the empty string: got false, want true")
	}
}

func TestHasTokenMatchesWholeMembers(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  bool
	}{
		{"close", true},
		{"CLOSE", true},
		{"a, close", true},
		{"close,a", true},
		{"a,\tclose \t,b", true},
		{",close", true},
		{"", false},
		{",", false},
		{"closed", false},
		{"xclose", false},
		{"close x", false},
		{"close;q=1", false},
		{`"close"`, false},
	} {
		harness.Equal(t, wire.HasToken(tt.value, "close"), tt.want, tt.value)
		harness.Equal(t, wire.HasToken([]byte(tt.value), []byte("close")), tt.want, tt.value, "as bytes")
	}
}

func TestFindReturnsFirstField(t *testing.T) {
	fields := []wire.Field{{[]byte("A"), []byte("1")}, {[]byte("b"), nil}, {[]byte("a"), []byte("2")}}
	for _, tt := range []struct {
		name, want string
		ok         bool
	}{{"a", "1", true}, {"B", "", true}, {"c", "", false}} {
		if got, ok := wire.Find(fields, tt.name); string(got) != tt.want || ok != tt.ok {
			t.Errorf("%s: got %q, %v, want %q, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

func TestAppendField(t *testing.T) {
	harness.Equal(t, string(wire.AppendField([]byte("x"), "Name", []byte("value"))), "xName: value\r\n")
}
