//go:build linux

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestSelectionWithoutMatchReturnsError(t *testing.T) {
	for _, quick := range []bool{false, true} {
		s := &settings{names: regexp.MustCompile("no such suite"), quick: quick}
		if got, err := s.selected(suites()); err == nil {
			t.Errorf("quick %v: got %d suites, want an error", quick, len(got))
		}
	}
}

func TestWriteRequiresAllSuites(t *testing.T) {
	for _, args := range [][]string{{"-write", "-quick"}, {"-write", "-run", "WebSocket"}} {
		if _, err := readSettings(args); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}

func TestSuiteWithoutCasesReturnsError(t *testing.T) {
	u := &suite{name: "empty", variants: []variant{direct}, run: func(context.Context, *environment, variant) (*result, error) {
		return &result{}, nil
	}}
	if _, err := u.compare(t.Context(), &environment{}, io.Discard); err == nil {
		t.Error("got no error, want an error")
	}
}

func TestNamesAreUnique(t *testing.T) {
	var names []string
	for _, u := range suites() {
		names = append(names, u.name)
	}
	for _, c := range wsCases() {
		names = append(names, c.name)
	}
	slices.Sort(names)
	if unique := slices.Compact(slices.Clone(names)); len(unique) != len(names) {
		t.Errorf("got %d unique names of suites and WebSocket cases, want %d", len(unique), len(names))
	}
}

func TestVerdictListsFailuresOfSidecar(t *testing.T) {
	failing := func(cases int, names ...string) *result {
		r := &result{cases: cases}
		for _, name := range names {
			r.fail(name, io.EOF)
		}
		return r
	}
	for name, c := range map[string]struct {
		direct, sidecar, limited, haproxy *result
		want                              string
	}{
		"all passed":                   {failing(2), failing(2), failing(2), failing(2), ""},
		"direct fails as well":         {failing(2, "a"), failing(2, "a"), failing(2), failing(2), ""},
		"HAProxy fails":                {failing(2), failing(2), failing(2), failing(2, "a"), ""},
		"sidecar fails":                {failing(2), failing(2, "a"), failing(2), failing(2), "suite, sidecar: a"},
		"sidecar with a limit fails":   {failing(2, "a"), failing(2), failing(2, "b"), nil, "suite, sidecar, limit 4: b"},
		"sidecar does not run a case":  {failing(2), failing(1), failing(2), nil, "suite, sidecar: 1 cases did not run"},
		"no result of a quick variant": {failing(2), failing(2), nil, nil, ""},
	} {
		l := &line{name: "suite", results: map[variant]*result{direct: c.direct}}
		for v, r := range map[variant]*result{sidecar: c.sidecar, limited: c.limited, haproxy: c.haproxy} {
			if r != nil {
				l.results[v] = r
			}
		}
		rep := &report{lines: []*line{l}}
		if got := strings.Join(rep.broken(), "; "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if err := rep.verdict(); (err != nil) != (c.want != "") {
			t.Errorf("%s: got verdict %v, want an error: %v", name, err, c.want != "")
		}
	}
}

func TestTableIsWrittenBetweenMarkers(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("before\n"+beginMarker+"\nold\n"+endMarker+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &result{cases: 3}
	r.fail("a", io.EOF)
	rep := &report{lines: []*line{{name: "suite", results: map[variant]*result{direct: {cases: 3}, haproxy: r}}}}
	if err := rep.writeTo(page); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := "before\n" + beginMarker + "\n\n" + rep.table() + "\n" + endMarker + "\nafter\n"
	if got := string(text); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if row := "| suite | 3 | 3 | - | - | 2 |\n"; !strings.Contains(string(text), row) {
		t.Errorf("got %q, want row %q", text, row)
	}
	if err := os.WriteFile(page, []byte(beginMarker), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rep.writeTo(page); err == nil {
		t.Error("no end marker: got no error")
	}
}

func TestParseConnect(t *testing.T) {
	const output = "FAILED: Basic/a/b:\n\tactual error: x\n\tsecond line\nFAILED: Other/c was expected to fail but did not\n" +
		"DEFECT: sidecar: panic\n\n\nTotal cases: 5\n3 passed, 2 failed\n"
	r, err := parseConnect(output)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"Basic/a/b", "Other/c", "sidecar: panic"}; r.cases != 6 || !slices.Equal(r.failedNames(), want) {
		t.Errorf("got %d cases and failures of %q, want 6 and %q", r.cases, r.failedNames(), want)
	}
	if got, want := r.failed["Basic/a/b"], "actual error: x second line"; got != want {
		t.Errorf("got reason %q, want %q", got, want)
	}
	r, err = parseConnect("Total cases: 5\n5 passed, 0 failed\nAnother 2 could not be run due to client timing out or exiting prematurely.\n")
	if err != nil {
		t.Fatal(err)
	}
	if r.cases != 7 || r.passed() != 5 {
		t.Errorf("got %d of %d cases, want 5 of 7", r.passed(), r.cases)
	}
	for name, text := range map[string]string{
		"no summary":              "FAILED: a:\n\tx\n",
		"names of failures miss":  "Total cases: 5\n3 passed, 2 failed\n",
		"more names than counted": "FAILED: a:\n\tx\n\nTotal cases: 5\n5 passed, 0 failed\n",
	} {
		if r, err := parseConnect(text); err == nil {
			t.Errorf("%s: got %+v, want an error", name, r)
		}
	}
}

func TestServerRequestIsPlain(t *testing.T) {
	request := appendVarint(nil, serverRequestVersion, 2)
	request = appendVarint(request, serverRequestTLS, 1)
	request = appendBytes(request, serverRequestCredentials, []byte("key"))
	request = appendVarint(request, 6, 200)
	for otherVersion, version := range map[bool]uint64{false: 2, true: 1} {
		got, useTLS, http2, err := plainServerRequest(request, otherVersion)
		if err != nil {
			t.Fatal(err)
		}
		want := appendVarint(appendVarint(nil, 6, 200), serverRequestVersion, version)
		if !bytes.Equal(got, want) || !useTLS || http2 != (version == 2) {
			t.Errorf("other version %v: got %x, TLS %v, HTTP/2 %v, want %x, true, %v", otherVersion, got, useTLS, http2, want, version == 2)
		}
	}
	for name, request := range map[string][]byte{
		"HTTP/3":            appendVarint(nil, serverRequestVersion, 3),
		"incomplete field":  {0x10},
		"incomplete string": {0x3a, 5, 'x'},
	} {
		if _, _, _, err := plainServerRequest(request, false); err == nil {
			t.Errorf("%s: got no error, want an error", name)
		}
	}
}

func TestClientRequestContainsProxyAddress(t *testing.T) {
	const server = "127.0.0.1:5001"
	s := &proxySet{certificate: []byte("ours"), all: map[string]*proxy{server: {plain: "127.0.0.1:20001", tls: "127.0.0.1:20002"}}}
	rest := appendBytes(nil, 1, []byte("name of the case"))
	plain, err := appendAddress(rest, clientRequestHost, clientRequestPort, server)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		request           []byte
		want, certificate string
	}{
		"plain": {plain, "127.0.0.1:20001", ""},
		"TLS":   {appendBytes(plain, clientRequestCertificate, []byte("theirs")), "127.0.0.1:20002", "ours"},
	} {
		request, err := s.redirect(c.request)
		if err != nil {
			t.Fatal(err)
		}
		values, kept, err := parseFields(request, clientRequestHost, clientRequestPort, clientRequestCertificate)
		if err != nil {
			t.Fatal(err)
		}
		if got := values.address(clientRequestHost, clientRequestPort); got != c.want {
			t.Errorf("%s: got the address %s, want %s", name, got, c.want)
		}
		if got := string(values.bytes[clientRequestCertificate]); got != c.certificate {
			t.Errorf("%s: got the certificate %q, want %q", name, got, c.certificate)
		}
		if !bytes.Equal(kept, rest) {
			t.Errorf("%s: got the other fields %x, want %x", name, kept, rest)
		}
	}
}

func TestNumberOfProxiesIsBounded(t *testing.T) {
	s := &proxySet{all: map[string]*proxy{}}
	for i := range maxProxies {
		s.all[string(rune('a'+i))] = &proxy{}
	}
	request, err := appendAddress(nil, clientRequestHost, clientRequestPort, "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.redirect(request); err == nil {
		t.Error("got no error, want an error")
	}
}

func TestMessagesHaveLengthPrefix(t *testing.T) {
	var b bytes.Buffer
	for _, message := range []string{"one", ""} {
		if err := writeMessage(&b, []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	b.WriteString("\x00\x00\x00\x05cut")
	for _, want := range []string{"one", ""} {
		if got, err := readMessage(&b); err != nil || string(got) != want {
			t.Errorf("got %q and %v, want %q", got, err, want)
		}
	}
	if _, err := readMessage(&b); err == nil || err == io.EOF {
		t.Errorf("incomplete message: got %v, want an error other than io.EOF", err)
	}
	if _, err := readMessage(&b); err != io.EOF {
		t.Errorf("end: got %v, want io.EOF", err)
	}
	if _, err := readMessage(strings.NewReader("\xff\xff\xff\xff")); err == nil || err == io.EOF {
		t.Errorf("long message: got %v, want an error other than io.EOF", err)
	}
}

func TestFramesSurviveRoundTrip(t *testing.T) {
	for _, masked := range []bool{false, true} {
		for _, n := range []int{0, 125, 126, 65535, 65536} {
			encoded := frame(final|binaryData, content(n), masked)
			first, payload, gotMask, err := readFrame(bytes.NewReader(encoded))
			if err != nil || first != final|binaryData || !bytes.Equal(payload, content(n)) || gotMask != masked {
				t.Errorf("%d bytes, masked %v: got first byte %x, %d bytes, masked %v and %v", n, masked, first, len(payload), gotMask, err)
			}
			if _, _, _, err := readFrame(bytes.NewReader(encoded[:len(encoded)-1])); err != io.ErrUnexpectedEOF {
				t.Errorf("%d bytes, incomplete: got %v, want %v", n, err, io.ErrUnexpectedEOF)
			}
		}
	}
}

func TestTranscriptDescribesFrames(t *testing.T) {
	for _, c := range []struct {
		first   byte
		payload []byte
		want    string
	}{
		{final | text, []byte("a"), `text "a"`},
		{text, []byte("a"), `text+ "a"`},
		{final | rsv2 | rsv3 | 0xb, nil, `opcode 11 rsv2 rsv3 ""`},
		{final | closing, closeBody(1001, "bye"), `close 1001 "bye"`},
		{final | closing, nil, `close ""`},
		{final | binaryData, content(41), "binary 41 bytes, CRC b86ee925"},
	} {
		if got := event(c.first, c.payload); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func TestInflateKeepsContext(t *testing.T) {
	compress := deflater()
	first, second := compress(content(300)), compress(content(300))
	p := &peer{context: true}
	for i, b := range [][]byte{first, second} {
		if got := p.inflate(b); !bytes.Equal(got, content(300)) {
			t.Errorf("message %d: got %q, want %d bytes of content", i, got, 300)
		}
	}
	without := &peer{}
	without.inflate(first)
	if got := without.inflate(second); bytes.Equal(got, content(300)) {
		t.Error("without context: got content, want error")
	}
}

func TestRunUsesDifferentPorts(t *testing.T) {
	dir := t.TempDir()
	seen := map[string]bool{}
	for range 3 {
		addresses, err := freePorts(dir, 6)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addresses {
			if seen[a] {
				t.Errorf("got %s twice, want different addresses", a)
			}
			seen[a] = true
		}
	}
	if len(seen) != 18 {
		t.Errorf("got %d addresses, want 18", len(seen))
	}
}
