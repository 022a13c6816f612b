package transport_test

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestEqualFoldIgnoresCaseOfASCIILetters(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"", "", true},
		{"Host", "hOST", true},
		{"host", "hosts", false},
		{"[", "{", false},
		{"@", "`", false},
		{"k", "\u212a", false},
		{"\xc9", "\xe9", false},
		{"a-1", "A-1", true},
	} {
		harness.Equal(t, transport.EqualFold(tt.a, []byte(tt.b)), tt.want, tt.a, tt.b)
	}
}
