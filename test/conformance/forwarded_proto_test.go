package conformance

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// docs/promises.md 3.4: the sidecar sets X-Forwarded-Proto to https for requests on its TLS
// port, unless a proxy has set forwarding headers. Without this field, a container registry in
// the pod would redirect its clients to http.
func TestForwardedProtoIsSetForTLS(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.Header {
			if strings.Contains(name, "Forwarded") && name != "X-Forwarded-For" {
				io.WriteString(w, name+"="+strings.Join(values, "|")+";")
			}
		}
	}))
	p.start()
	for _, c := range []struct{ sent, want string }{
		{"", "X-Forwarded-Proto=https;"},
		{"X-Forwarded-Proto: http", "X-Forwarded-Proto=http;Forwarded=proto=http;"},
		{"X-Forwarded-Proto:", "X-Forwarded-Proto=;"},
		{"X-Forwarded-For: 10.1.1.1", "Forwarded=for=10.1.1.1;"},
		{"X-Forwarded-Host: b.test", "X-Forwarded-Host=b.test;Forwarded=host=b.test;"},
		{"X-Forwarded-Port: 80", "X-Forwarded-Port=80;"},
		{"Forwarded: for=10.1.1.1", "Forwarded=for=10.1.1.1;"},
	} {
		for _, protocol := range []string{"HTTP/1.1", "TLS HTTP/1.1", "TLS h2"} {
			r := row{method: "GET", target: "/"}
			if name, value, ok := strings.Cut(c.sent, ":"); ok {
				r.fields = []field{{name, strings.TrimSpace(value)}}
			}
			want := c.want
			if protocol == "HTTP/1.1" && c.sent == "" {
				want = ""
			}
			m, err := r.ask(t, p, protocol, newID())
			if err != nil || !sameParts(m.Body, want) {
				t.Errorf("%s, %q: the app received %q, %v, want %q", protocol, c.sent, m.Body, err, want)
			}
		}
	}
}

// sameParts reports whether two texts contain the same parts in any order. A semicolon ends
// each part.
func sameParts(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for part := range strings.SplitAfterSeq(a, ";") {
		if !strings.Contains(b, part) {
			return false
		}
	}
	return true
}
