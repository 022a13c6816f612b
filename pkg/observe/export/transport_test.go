package export

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestResolveEndpoint(t *testing.T) {
	for _, c := range []struct{ endpoint, want string }{
		{"http://collector:4318/v1/traces", "http://collector:4318/v1/traces"},
		{" https://collector ", "https://collector"},
		{"10.0.0.1:4317", "http://10.0.0.1:4317"},
		{"10.0.0.1", "http://10.0.0.1"},
		{"[fd00::1]:4317", "http://[fd00::1]:4317"},
		{"127.0.0.1:9411/api/v2/spans", "http://127.0.0.1:9411/api/v2/spans"},
		{"collector:4317", "https://collector:4317"},
		{"collector.observability.svc:4318/v1/traces", "https://collector.observability.svc:4318/v1/traces"},
		{"http://collector#part", "http://collector"},
	} {
		got, err := resolve(c.endpoint)
		harness.NoError(t, err, c.endpoint)
		harness.Equal(t, got.String(), c.want, c.endpoint)
	}
	for _, endpoint := range []string{"", "  ", "unix:///x", "http://", "http://host:0", "http://host:70000", "://x", "http://a b/"} {
		if got, err := resolve(endpoint); err == nil {
			t.Errorf("%q: got %v, want an error", endpoint, got)
		}
	}
}

// FuzzResolve checks that a resolved endpoint resolves to itself.
func FuzzResolve(f *testing.F) {
	for _, endpoint := range []string{"c:4317", "http://z:9411/api/v2/spans", "https://u:p@c:4318/x?y#z", "[::1]"} {
		f.Add(endpoint)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		target, err := resolve(endpoint)
		if err != nil {
			return
		}
		if again, err := resolve(target.String()); err != nil || again.String() != target.String() {
			t.Errorf("%q: got %v (%v), want %v again", endpoint, again, err, target)
		}
	})
}

func TestParseRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for in, want := range map[string]time.Duration{
			"": 0, "5": 5 * time.Second, "99999": maxAfter, "-1": 0, "soon": 0,
			time.Now().Add(4 * time.Second).UTC().Format(http.TimeFormat):  4 * time.Second,
			time.Now().Add(-4 * time.Second).UTC().Format(http.TimeFormat): 0,
		} {
			harness.Equal(t, retryAfter(in), want, in)
		}
	})
}
