package probe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// FuzzRequest writes the request of an HTTP probe and parses it. For any path, query and header field, the result must
// be one request with the host and the target of the probe.
func FuzzRequest(f *testing.F) {
	for _, path := range []string{"", "h", "/a?b=c;d&e=%z", "/a?b=c d\n\xc3\xa9", "//x/y", "http://evil/", "/a%zz", "/%2f%41\"", "/a\r\nX: y", "/?#", "*", "\x7f"} {
		f.Add(path, "127.0.0.1", "X-Name", "value")
	}
	f.Add("/", "::1", "Host", "example.com")
	f.Add("/", "fe80::1%eth0", "user-agent", "")
	f.Fuzz(func(t *testing.T, path, host, name, value string) {
		text, err := json.Marshal(map[string]any{"httpGet": map[string]any{
			"path": path, "port": 80, "host": host, "httpHeaders": []any{map[string]any{"name": name, "value": value}},
		}})
		harness.NoError(t, err)
		probes, errs := Parse(string(text), false)
		if errs != nil {
			return // with an invalid probe, the process exits at startup
		}
		a := probes[0].HTTPGet
		dial, _ := hostOf(a.Host)
		target := urlOf(a, dial)
		r := requestOf(a, target)
		var wire bytes.Buffer
		if err := r.Write(&wire); err != nil {
			if strings.EqualFold(name, "Host") {
				return // net/http rejects some hosts when it sends a request, so the probe fails
			}
			t.Fatalf("path %q, %q: %q: got error %v, want a request", path, name, value, err)
		}
		br := bufio.NewReader(&wire)
		got, err := http.ReadRequest(br)
		harness.NoError(t, err, "path", path, name, value, "parse the request")
		if br.Buffered() > 0 {
			t.Errorf("path %q: got additional bytes after the request", path)
		}

		written, _, _ := strings.Cut(a.Path, "#")
		written, query, _ := strings.Cut(written, "?")
		want := "/" + strings.TrimPrefix(written, "/")
		if plain, err := url.PathUnescape(want); err == nil {
			want = plain
		}
		asked, rest, _ := strings.Cut(got.RequestURI, "?")
		if plain, err := url.PathUnescape(asked); err != nil || plain != want {
			t.Errorf("path %q: got %q (%v), want %q", path, plain, err, want)
		}
		for i := range len(got.RequestURI) {
			if c := got.RequestURI[i]; c <= ' ' || c >= 0x7f {
				t.Errorf("path %q: got invalid byte %#x in %q", path, c, got.RequestURI)
			}
		}
		if len(query) == len(rest) && query != rest {
			t.Errorf("path %q: got query %q, want %q", path, rest, query)
		}
		if target.Hostname() != dial || target.Port() != "80" {
			t.Errorf("path %q, host %q: got %q:%q, want %q:80", path, host, target.Hostname(), target.Port(), dial)
		}
	})
}

// FuzzGRPCTimeout verifies that a timeout is rounded up by less than one unit and has at most eight digits
// (grpc/doc/PROTOCOL-HTTP2.md).
func FuzzGRPCTimeout(f *testing.F) {
	for _, d := range []time.Duration{0, 1, time.Second, 99999999*time.Millisecond + 1, 1<<63 - 1, -1} {
		f.Add(int64(d))
	}
	f.Fuzz(func(t *testing.T, n int64) {
		d := time.Duration(n)
		text := grpcTimeout(d)
		digits := strings.TrimRight(text, "mS")
		got, err := time.ParseDuration(strings.ToLower(strings.Replace(text, "m", "ms", 1)))
		unit := time.Second
		if strings.HasSuffix(text, "m") {
			unit = time.Millisecond
		}
		switch {
		case err != nil || len(digits) > 8 || len(text) != len(digits)+1 || got <= 0:
			t.Errorf("%v: got %q, want one to eight digits and a unit", d, text)
		case got < d && got < 99999999*time.Second || got-unit >= max(d, 1):
			t.Errorf("%v: got %v, want it rounded up to the next %v", d, got, unit)
		}
	})
}
