package conformance

import (
	"embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// testdata is embedded because the released program runs without the source tree.
//
//go:embed testdata
var testdata embed.FS

// A vector is a block of a file below testdata.
type vector struct {
	title string
	line  int // line number of the title
	lines []string
}

// vectors reads the blocks of a file without comments and blank lines.
func vectors(t *testing.T, file string) []vector {
	t.Helper()
	b, err := testdata.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	seen := map[string]bool{}
	for i, line := range strings.Split(string(b), "\n") {
		title, isTitle := strings.CutPrefix(line, "== ")
		switch {
		case isTitle:
			if seen[title] {
				t.Fatalf("%s:%d: duplicate title %q", file, i+1, title)
			}
			seen[title] = true
			all = append(all, vector{title: title, line: i + 1})
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
		case len(all) == 0:
			t.Fatalf("%s:%d: %q before the first title", file, i+1, line)
		default:
			v := &all[len(all)-1]
			v.lines = append(v.lines, line)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s: no vectors", file)
	}
	return all
}

// A play is a parsed vector in the format that doc.go describes.
type play struct {
	title        string
	send, answer string
	appCloses    bool

	app, client expectedInput
	atMost      int // maximum number of requests in the user container
	exactly     bool
	status      []int
	interim     []int
	cut         bool
	stays, ends bool
}

// expectedInput describes the messages that one side must receive.
type expectedInput struct {
	start    string
	fields   []field
	absent   []string
	body     *string
	trailers []field
}

var requestLine = regexp.MustCompile(` HTTP/1\.\d$`)

func (s *expectedInput) expect(line string) error {
	if text, found := strings.CutPrefix(line, "body "); found {
		if len(text) < 2 || text[0] != '"' || text[len(text)-1] != '"' {
			return fmt.Errorf("body without quotes: %q", line)
		}
		body := harness.Unescape(text[1 : len(text)-1])
		s.body = &body
		return nil
	}
	fields := &s.fields
	if text, found := strings.CutPrefix(line, "trailer "); found {
		fields, line = &s.trailers, text
	}
	if requestLine.MatchString(line) {
		s.start = harness.Unescape(line)
		return nil
	}
	name, value, found := strings.Cut(line, ":")
	if !found || strings.Contains(name, " ") {
		return fmt.Errorf("%q: neither a request line nor a field", line)
	}
	*fields = append(*fields, field{name, harness.Unescape(strings.TrimSpace(value))})
	return nil
}

func (v vector) play() (*play, error) {
	p := &play{title: v.title, atMost: 1, exactly: true}
	for _, line := range v.lines {
		var err error
		switch {
		case strings.HasPrefix(line, ">"):
			p.send += harness.WireLine(line[1:])
		case strings.HasPrefix(line, "|"):
			p.answer += harness.WireLine(line[1:])
		case line == "app then closes":
			p.appCloses = true
		case line == "app sees no request":
			p.atMost = 0
		case line == "app sees at most 1 request":
			p.exactly = false
		case regexp.MustCompile(`^app sees \d+ requests$`).MatchString(line):
			p.atMost, err = strconv.Atoi(strings.Fields(line)[2])
		case strings.HasPrefix(line, "app sees "):
			err = p.app.expect(line[len("app sees "):])
		case strings.HasPrefix(line, "app lacks "):
			p.app.absent = append(p.app.absent, line[len("app lacks "):])
		case line == "client sees a cut body":
			p.cut = true
		case strings.HasPrefix(line, "client sees interim "):
			var n int
			n, err = strconv.Atoi(line[len("client sees interim "):])
			p.interim = append(p.interim, n)
		case regexp.MustCompile(`^client sees \d{3}(\|\d{3})*$`).MatchString(line):
			for s := range strings.SplitSeq(line[len("client sees "):], "|") {
				n, _ := strconv.Atoi(s)
				p.status = append(p.status, n)
			}
		case strings.HasPrefix(line, "client sees "):
			err = p.client.expect(line[len("client sees "):])
		case strings.HasPrefix(line, "client lacks "):
			p.client.absent = append(p.client.absent, line[len("client lacks "):])
		case line == "connection stays":
			p.stays = true
		case line == "connection ends":
			p.ends = true
		default:
			err = fmt.Errorf("invalid line %q", line)
		}
		if err != nil {
			return nil, err
		}
	}
	if p.answer == "" {
		p.answer = ok
	}
	if p.send == "" || p.status == nil {
		return nil, errors.New("missing client input or expected status")
	}
	return p, nil
}

// check compares the expected input with a message. who is "app" or "client".
func (s *expectedInput) check(t *testing.T, who string, m *message) {
	t.Helper()
	if s.start != "" && m.Start != s.start {
		t.Errorf("%s: got line %.200q, want %.200q", who, m.Start, s.start)
	}
	checkFields(t, who, "field", m.Fields, s.fields)
	checkFields(t, who, "trailer", m.Trailers, s.trailers)
	for _, name := range s.absent {
		if got := values(m.Fields, name); got != nil {
			t.Errorf("%s: got %s: %.200q, want none", who, name, got)
		}
	}
	if s.body != nil && m.Body != *s.body {
		t.Errorf("%s: got body %.200q, want %.200q", who, m.Body, *s.body)
	}
}

func checkFields(t *testing.T, who, what string, got, want []field) {
	t.Helper()
	for _, f := range want {
		a, b := values(got, f.Name), values(want, f.Name)
		if !slices.Equal(a, b) {
			t.Errorf("%s: got %s %s with %.300q, want %.300q", who, what, f.Name, a, b)
		}
	}
}

// perform runs all vectors of a file with one sidecar. It replaces the host a.test with a
// different host of the same length in each vector, so that a late request can be attributed to
// its vector.
func perform(t *testing.T, file string, env ...string) {
	p := newProxy(t)
	p.start(env...)
	app := p.bare(answers(ok))
	played := map[string]*play{}
	for i, v := range vectors(t, file) {
		t.Run(v.title, func(t *testing.T) {
			if i > 99 {
				t.Fatal("too many vectors, want at most 100")
			}
			host := fmt.Sprintf("%02d.tst", i)
			for i, line := range v.lines {
				v.lines[i] = strings.ReplaceAll(line, "a.test", host)
			}
			pl, err := v.play()
			if err != nil {
				t.Fatalf("%s:%d: %v", file, v.line, err)
			}
			played[host] = pl
			pl.perform(t, p, app, host)
			if t.Failed() {
				t.Logf("the vector is in testdata/%s:%d", file, v.line)
			}
		})
	}
	fence(t, p)
	heard, _ := app.requests()
	in := map[string]int{}
	for _, m := range heard {
		in[m.get("Host")]++
	}
	for host, pl := range played {
		want := pl.atMost
		if pl.stays {
			want++ // count the second request, which checks that the connection stays open
		}
		if in[host] > want {
			t.Errorf("%q: the app received %d requests of the vector, want at most %d", pl.title, in[host], want)
		}
	}
}

var anyVectorsHost = regexp.MustCompile(`^\d\d\.tst$`)

// of returns the requests in the vector for this host. It excludes requests for hosts of other
// vectors and the requests that check whether the connection stays open.
func of(host string, heard []*message) []*message {
	return slices.DeleteFunc(slices.Clone(heard), func(m *message) bool {
		h := m.get("Host")
		return m.Start == "GET /second HTTP/1.1" || h != host && anyVectorsHost.MatchString(h)
	})
}

func (pl *play) perform(t *testing.T, p *proxy, app *bareApp, host string) {
	before, brokenBefore := app.requests()
	app.play(func(c *bareConn, m *message) bool {
		if strings.HasPrefix(m.Start, "GET /second ") {
			c.send(ok)
			return true
		}
		c.send(pl.answer)
		return !pl.appCloses
	})
	c := dial(t, p.addr())
	c.send(pl.send)
	method, _, _ := strings.Cut(pl.send, " ")
	got, err := readResponse(c.r, method)
	if err != nil {
		t.Fatalf("client: read the response: %v", err)
	}
	if !slices.Contains(pl.status, got.status()) {
		t.Errorf("client: got status %q, want %d", got.Start, pl.status)
	}
	var interim []int
	for _, i := range got.Interim {
		interim = append(interim, i.status())
	}
	if pl.interim != nil && !slices.Equal(interim, pl.interim) {
		t.Errorf("client: got interim responses %d, want %d", interim, pl.interim)
	}
	if cut := got.Cut != nil; cut != pl.cut {
		t.Errorf("client: got a truncated body: %v (%v), want %v", cut, got.Cut, pl.cut)
	}
	pl.client.check(t, "client", got)
	if pl.ends && got.Cut == nil {
		c.closed()
	}
	if pl.stays {
		c.send("GET /second HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
		second, err := readResponse(c.r, "GET")
		if err != nil || second.status() != 200 {
			t.Errorf("second request on the connection: got %v, %v, want 200", second, err)
		}
	}
	heard, broken := app.requests()
	heard, broken = of(host, heard[len(before):]), broken[len(brokenBefore):]
	if len(broken) > 0 {
		t.Errorf("app: got invalid requests: %v", broken)
	}
	if len(heard) > pl.atMost || pl.exactly && len(heard) < pl.atMost {
		var lines []string
		for _, m := range heard {
			lines = append(lines, m.Start)
		}
		t.Errorf("app: got %d requests %.300q, want %d", len(heard), lines, pl.atMost)
	}
	if len(heard) > 0 {
		pl.app.check(t, "app", heard[0])
	}
}

func TestUnescapeVectorText(t *testing.T) {
	for in, want := range map[string]string{
		`a\r\n\t\0\\`: "a\r\n\t\x00\\",
		`\xE9\{3*ab}`: "\xe9ababab",
		`\\n`:         `\n`,
		`\{2*\x01}`:   "\x01\x01",
		`{"a":"\q"}`:  `{"a":"\q"}`,
	} {
		if got := harness.Unescape(in); got != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
}
