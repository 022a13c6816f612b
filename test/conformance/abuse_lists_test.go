package conformance

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// names returns a list of different field names. The length of the list is size bytes.
func names(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "x%x,", i)
	}
	return b.String()[:size]
}

// Long lists of field names are rejected, because the sidecar searches such a list for each
// field or parses it into a much larger structure.
func TestLongFieldNameListsAreRejected(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	app := newLedger()
	p.app(app)
	p.start("METRICS_NAMES=default", "CONTAINER_CONCURRENCY=1")
	p.auditAtEnd()
	for _, c := range []struct {
		name   string
		size   int
		status int
	}{
		{"Trailer", 4000, 200}, {"Trailer", 5000, 431}, {"Trailer", 900_000, 431},
		{"Connection", 200, 200}, {"Connection", 300, 400}, {"Connection", 900_000, 400}, // the lists contain 54, 79 and several 100,000 options
	} {
		for _, protocol := range []string{"HTTP/1.1", "TLS HTTP/1.1", "h2c", "TLS h2"} {
			if c.name == "Connection" && strings.HasSuffix(protocol, "h2") || c.name == "Connection" && protocol == "h2c" {
				continue // connection-specific fields are invalid over HTTP/2 (RFC 9113 section 8.2.2)
			}
			id := newID()
			r := row{method: "POST", target: "/", body: "x", kind: "refused", fields: []field{{c.name, names(c.size)}}}
			m, err := r.ask(t, p, protocol, id)
			if m == nil || m.status() != c.status {
				t.Errorf("%s of %d bytes, %s: got %v, %v, want %d", c.name, c.size, protocol, m, err, c.status)
				continue
			}
			want := 0
			if c.status == 200 {
				want = 1
			}
			if got := app.count(id); got != want {
				t.Errorf("%s of %d bytes, %s: the app received the request %d times, want %d", c.name, c.size, protocol, got, want)
			}
			if c.status >= 400 && word(m.get("Proxy-Status")) != "bad-request" {
				t.Errorf("%s of %d bytes, %s: got Proxy-Status %q, want bad-request", c.name, c.size, protocol, m.get("Proxy-Status"))
			}
		}
	}
}

// Long Connection lists in responses from the app are rejected as well.
func TestLongConnectionListInResponseReturns502(t *testing.T) {
	p := newProxy(t)
	p.bare(func(c *bareConn, m *message) bool {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: "+names(100_000)+"\r\nContent-Length: 0\r\n\r\n")
		return true
	})
	p.start("METRICS_NAMES=default")
	p.auditAtEnd()
	if m := dial(t, p.addr()).ask("/"); m.status() != 502 || word(m.get("Proxy-Status")) != "app-garbage" {
		t.Errorf("got %q with %q, want 502 app-garbage", m.Start, m.get("Proxy-Status"))
	}
}
