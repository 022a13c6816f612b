package rewrite_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A Forwarded value is complete or empty.
func TestMakeForwardedLimitsLength(t *testing.T) {
	node := "for=203.0.113.7"
	fit := (rewrite.MaxForwarded-len(node))/len(", "+node) + 1
	chain := func(n int) string { return strings.Repeat("203.0.113.7,", n-1) + "203.0.113.7" }
	if got := rewrite.MakeForwarded(chain(fit), "", ""); strings.Count(got, "for=") != fit {
		t.Errorf("got %d nodes, want all %d", strings.Count(got, "for="), fit)
	}
	for name, c := range map[string][3]string{
		"one node more":    {chain(fit + 1)},
		"commas":           {strings.Repeat(",", 1<<20)},
		"a long host":      {"1.2.3.4", strings.Repeat("h", rewrite.MaxForwarded)},
		"quotes":           {"", strings.Repeat(`"`, rewrite.MaxForwarded/2+1)},
		"a long protocol":  {"", "", strings.Repeat("p", rewrite.MaxForwarded+1)},
		"a long last node": {chain(fit-1) + ", ::1, 1.2.3.4:80, [2001:db8:1:2:3:4:5:6]:65535"},
	} {
		harness.Equal(t, rewrite.MakeForwarded(c[0], c[1], c[2]), "", name)
	}
}

// forwardedTests contains values of X-Forwarded-For, -Host and -Proto, and the equivalent
// Forwarded.
var forwardedTests = []struct {
	xff, host, proto string
	want             string
}{
	{"", "", "", ""},
	{"   ", "", "", ""},

	// The examples of RFC 7239 sections 4, 6 and 7.4.
	{"192.0.2.43", "", "", `for=192.0.2.43`},
	{"192.0.2.43, 198.51.100.17", "", "", `for=192.0.2.43, for=198.51.100.17`},
	{"192.0.2.43, 2001:db8:cafe::17", "", "", `for=192.0.2.43, for="[2001:db8:cafe::17]"`},
	{"192.0.2.60", "", "http", `for=192.0.2.60;proto=http`},
	{"192.0.2.43:47011", "", "", `for="192.0.2.43:47011"`},
	{"[2001:db8:cafe::17]:47011", "", "", `for="[2001:db8:cafe::17]:47011"`},
	{"unknown", "", "", `for=unknown`},

	// Correct results of Knative's queue-proxy.
	{"1.1.1.1, 2001:db8::1", "fh", "https", `for=1.1.1.1;host=fh;proto=https, for="[2001:db8::1]"`},
	{"", "fh", "", `host=fh`},
	{"", "", "https", `proto=https`},
	{"", "fh", "https", `host=fh;proto=https`},
	{" ", "fh", "https", `host=fh;proto=https`},

	// With and without whitespace.
	{" 1.1.1.1 ,\t2.2.2.2,3.3.3.3", "", "", `for=1.1.1.1, for=2.2.2.2, for=3.3.3.3`},

	// An IPv6 address is written in brackets and in canonical form, without a zone.
	{"[2001:db8::1]", "", "", `for="[2001:db8::1]"`},
	{"2001:DB8:0:0:0:0:0:1", "", "", `for="[2001:db8::1]"`},
	{"fe80::1%eth0", "", "", `for="[fe80::1]"`},
	{"[fe80::1%eth0]:80", "", "", `for="[fe80::1]:80"`},
	{"::ffff:192.0.2.1", "", "", `for="[::ffff:192.0.2.1]"`},
	{"::1", "", "", `for="[::1]"`},

	// An invalid node becomes "unknown".
	{"", "h", "", `host=h`},
	{",", "", "", `for=unknown, for=unknown`},
	{",1.1.1.1", "h", "p", `for=unknown;host=h;proto=p, for=1.1.1.1`},
	{"localhost", "", "", `for=unknown`},
	{"1.2.3", "", "", `for=unknown`},
	{"1.2.3.256", "", "", `for=unknown`},
	{"01.2.3.4", "", "", `for=unknown`},
	{"1.2.3.4:", "", "", `for=unknown`},
	{"[]", "", "", `for=unknown`},
	{"[", "", "", `for=unknown`},
	{"1.2.3.4:65536", "", "", `for=unknown`},
	{"1.2.3.4:http", "", "", `for=unknown`},
	{"[::1]:", "", "", `for=unknown`},
	{"[::1", "", "", `for=unknown`},
	{"::1]", "", "", `for=unknown`},
	{"[[::1]]", "", "", `for=unknown`},
	{"[1.2.3.4]", "", "", `for=unknown`},
	{"1.2.3.4;proto=https", "", "", `for=unknown`},
	{`"1.2.3.4"`, "", "", `for=unknown`},
	{`1.1.1.1, for="evil`, "", "", `for=1.1.1.1, for=unknown`},

	// A host or scheme that is not a token is quoted, so that it cannot add pairs.
	{"", "example.com:8080", "", `host="example.com:8080"`},
	{"", "[::1]:80", "", `host="[::1]:80"`},
	{"", "", "https,http", `proto="https,http"`},
	{"", `a"b\c`, "", `host="a\"b\\c"`},
	{"", `x";for=1.2.3.4;x="`, "", `host="x\";for=1.2.3.4;x=\""`},
	{"", "bücher.example", "", `host="bücher.example"`},
	{"", "a b", "", `host="a b"`},
	{"", "!#$%&'*+-.^_`|~azAZ09", "", "host=!#$%&'*+-.^_`|~azAZ09"},
}

func TestMakeForwarded(t *testing.T) {
	for _, c := range forwardedTests {
		harness.Equal(t, rewrite.MakeForwarded(c.xff, c.host, c.proto), c.want, "xff", c.xff, "host", c.host, "proto", c.proto)
	}
}

func TestMakeForwardedKeepsAllNodes(t *testing.T) {
	const nodes = 10_000
	var xff, want []string
	for i := range nodes {
		a := fmt.Sprintf("10.0.%d.%d", i>>8, i&0xff)
		xff = append(xff, a)
		want = append(want, "for="+a)
	}
	want[0] += ";proto=https"
	got := rewrite.MakeForwarded(strings.Join(xff, ","), "", "https")
	if got != strings.Join(want, ", ") {
		t.Errorf("got %d bytes, %.40s..., want %d elements, for=10.0.0.0;proto=https first", len(got), got, nodes)
	}
}

// readForwarded parses a Forwarded field (RFC 7239 section 4). It shares no code with MakeForwarded.
func readForwarded(s string) (elements []map[string]string, err error) {
	const tchars = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	token := func() string {
		n := 0
		for n < len(s) && strings.IndexByte(tchars, s[n]) >= 0 {
			n++
		}
		word := s[:n]
		s = s[n:]
		return word
	}
	element := map[string]string{}
	for {
		name := token()
		if name == "" || !strings.HasPrefix(s, "=") {
			return nil, fmt.Errorf("missing pair at %.20q", s)
		}
		s = s[1:]
		value := token()
		if value == "" {
			if !strings.HasPrefix(s, `"`) {
				return nil, fmt.Errorf("missing value at %.20q", s)
			}
			for s = s[1:]; ; s = s[1:] {
				if s == "" {
					return nil, fmt.Errorf("%s: unterminated quoted string", name)
				}
				if s[0] == '"' {
					s = s[1:]
					break
				}
				if s[0] == '\\' {
					if s = s[1:]; s == "" {
						return nil, fmt.Errorf("%s: unterminated quoted string", name)
					}
				}
				value += s[:1]
			}
		}
		if _, twice := element[name]; twice {
			return nil, fmt.Errorf("%s is repeated", name)
		}
		element[name] = value
		switch {
		case s == "":
			return append(elements, element), nil
		case strings.HasPrefix(s, ";"):
			s = s[1:]
		case strings.HasPrefix(s, ", "):
			s = s[2:]
			elements = append(elements, element)
			element = map[string]string{}
		default:
			return nil, fmt.Errorf("missing separator at %.20q", s)
		}
	}
}

func FuzzForwarded(f *testing.F) {
	f.Add("1.1.1.1, 2001:db8::1", "fh", "https")
	f.Add(`x, ", [::1]:80, 1.2.3.4:5`, `a"b\c`, `"`)
	f.Add(",", "", "")
	f.Fuzz(func(t *testing.T, xff, host, proto string) {
		got := rewrite.MakeForwarded(xff, host, proto)
		if strings.TrimSpace(xff) == "" && host == "" && proto == "" {
			harness.Equal(t, got, "", "value without input")
			return
		}
		elements, err := readForwarded(got)
		if err != nil {
			t.Fatalf("xff %q, host %q, proto %q: %q: %v", xff, host, proto, got, err)
		}
		nodes := 0
		for i, e := range elements {
			if e["for"] != "" {
				nodes++
			}
			if i > 0 && len(e) != 1 {
				t.Errorf("%q: element %d: got %v, want only for", got, i, e)
			}
		}
		want := 0
		if strings.TrimSpace(xff) != "" {
			want = strings.Count(xff, ",") + 1
		}
		harness.Equal(t, nodes, want, "xff", xff, "nodes in", got)
		if e := elements[0]; e["host"] != host || e["proto"] != proto {
			t.Errorf("%q: got host %q, proto %q, want %q, %q", got, e["host"], e["proto"], host, proto)
		}
	})
}

func TestWithoutOursKeepsOtherMembers(t *testing.T) {
	for _, c := range []struct{ sent, want string }{
		{"", ""},
		{"queue-proxy", ""},
		{"  queue-proxy  ", ""},
		{"queue-proxy; error=connection_refused", ""},
		{"queue-proxy;error=x", ""},
		{"queue-proxy ; error=x", ""},
		{`"queue-proxy"; error=x`, ""},
		{"Queue-Proxy; error=x", ""},
		{"queue-proxy, queue-proxy; error=x", ""},
		{"envoy", "envoy"},
		{"envoy; error=x, queue-proxy; error=y, cdn", "envoy; error=x, cdn"},
		{"queue-proxy,envoy", "envoy"},
		{"envoy,\tqueue-proxy", "envoy"},
		{",envoy,,", "envoy"},
		{"queue-proxy-2, my-queue-proxy", "queue-proxy-2, my-queue-proxy"},
		{"queue, proxy", "queue, proxy"},
		{`"" queue-proxy, "queue-proxy "`, ""}, // invalid, but a lenient reader can accept it

		// A comma in a quoted string is not a separator, and a quote can be escaped.
		{`envoy; details="a, queue-proxy; error=y"`, `envoy; details="a, queue-proxy; error=y"`},
		{`envoy; details="a\", queue-proxy"`, `envoy; details="a\", queue-proxy"`},
		{`envoy; details="a\\", queue-proxy`, `envoy; details="a\\"`},
		{`queue-proxy; details="a, b", envoy`, `envoy`},
	} {
		harness.Equal(t, rewrite.WithoutOurs(c.sent), c.want, c.sent)
	}
}

// isHop reports whether a field has a role that is not forwarded.
func isHop(name string) bool {
	role := transport.RoleOf(name)
	return role.IsHop() || role == transport.TrailerRole
}

func TestHopByHopFieldsMatchRFC9110(t *testing.T) {
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate",
		"Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings"} {
		if !isHop(name) {
			t.Errorf("%s: got forwarded, want removed", name)
		}
	}
	for _, name := range []string{"", "Host", "Content-Length", "Expect", "Via", "Date", "Forwarded", "X-Forwarded-For",
		"K-Network-Hash", "Authorization", "Www-Authenticate", "Sec-Websocket-Key", "Proxy-Status"} {
		if isHop(name) {
			t.Errorf("%s: got removed, want forwarded", name)
		}
	}
}

func TestInternalFieldsAreRemovedExceptTag(t *testing.T) {
	for _, name := range []string{"Knative-Serving-Revision", "Knative-Serving-Namespace", "K-Network-Hash", "K-Proxy-Request", "K-Passthrough-Lb"} {
		harness.Equal(t, transport.RoleOf(name), transport.StopsRole, name, "passed on")
	}
	for _, name := range []string{"", "Knative-Serving-Tag", "Knative-Serving-Default-Route", "K-Network-Probe", "K-Kubelet-Probe",
		"K-Original-Host", "Host", "User-Agent"} {
		if transport.RoleOf(name) == transport.StopsRole {
			t.Errorf("%s: got removed, want forwarded", name)
		}
	}
}

// A quoted string cannot span lines (RFC 9651 section 4.2), but a reader that joins the lines can accept such a string.
// Its two halves must not form a member of the sidecar.
func TestWithoutOursWithSplitQuotedString(t *testing.T) {
	for _, c := range []struct{ sent, want string }{
		{`envoy; details="`, ``},
		{`", queue-proxy; error=x`, ``},
		{`cdn, envoy; details="a, queue-proxy`, `cdn`},
		{`cdn, envoy; details="a\`, `cdn`},
		{`cdn, envoy; details="a\"`, `cdn`},
	} {
		harness.Equal(t, rewrite.WithoutOurs(c.sent), c.want, c.sent)
	}
}

// namesOf returns the names of all members in a list. It shares no code with Members.
func namesOf(list string) (names []string) {
	for list != "" {
		end := 0
		for quoted := false; end < len(list) && (quoted || list[end] != ','); end++ {
			if list[end] == '"' {
				quoted = !quoted
			} else if quoted && list[end] == '\\' && end+1 < len(list) {
				end++
			}
		}
		name, _, _ := strings.Cut(list[:end], ";")
		names = append(names, strings.Trim(name, "\" \t"))
		list = strings.TrimPrefix(list[end:], ",")
	}
	return names
}

func FuzzWithoutOurs(f *testing.F) {
	f.Add(`envoy; details="`, `", queue-proxy; error=x`)
	f.Add(`queue-proxy; details="a,b", envoy`, `"queue-proxy";a="\"",cdn`)
	f.Fuzz(func(t *testing.T, one, two string) {
		a, b := rewrite.WithoutOurs(one), rewrite.WithoutOurs(two)
		if again := rewrite.WithoutOurs(a); again != a {
			t.Errorf("%q: got %q, and then %q", one, a, again)
		}
		joined := a + ", " + b
		for _, name := range namesOf(joined) {
			if strings.EqualFold(name, transport.ProxyName) {
				t.Errorf("%q and %q: got %q, want no member of queue-proxy", one, two, joined)
			}
		}
	})
}
