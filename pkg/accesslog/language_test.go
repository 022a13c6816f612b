package accesslog

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	gotemplate "text/template"
)

// languageEntry is what the templates of these tests see.
func languageEntry() *entry {
	r := httptest.NewRequest("POST", "https://user:pw@example.com:81/a%20b?q=1&q=2&r=%3C#f", http.NoBody)
	r.Header = http.Header{
		"User-Agent": {`say "hi" <it's>`}, "Referer": {"https://example.com/"}, "X-Two": {"one", "two"}, "Empty": {},
		"Cookie": {"a=1; b=2; a=3"}, "Content-Type": {"application/x-www-form-urlencoded"},
	}
	r.TLS = &tls.ConnectionState{Version: tls.VersionTLS13, ServerName: "example.com"}
	r.URL.User = url.UserPassword("user", "pw")
	r.SetPathValue("name", "value")
	return &entry{
		Request: r, Response: &response{Code: 503, Size: 1234, Latency: 0.25},
		Revision: &Revision{"rev", "ns", "svc", "cfg", "pod", "10.0.0.1"}, TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
	}
}

// languageCorpus is what people write, and the corners of the language.
var languageCorpus = []string{
	knativeHead, knative118,
	`{{.}}`, `{{.Response}} {{.Revision}} {{.Response.Code}}`, `{{.Request.URL}} {{.Request.URL.User}}`, `{{.Request.Header}}{{.Request.Form}}{{.Request.TLS.Version}}`,
	`{{.Request.UserAgent}}{{.Request.Referer}}{{.Request.ProtoAtLeast 1 1}}{{.Request.PathValue "name"}}{{.Request.FormValue "q"}}{{.Request.PostFormValue "q"}}`,
	`{{.Request.Cookie "a"}}{{(.Request.Cookie "b").Value}}{{len .Request.Cookies}}{{range .Request.CookiesNamed "a"}}{{.Name}}={{.Value}};{{end}}{{(index .Request.Cookies 0).String}}`,
	`{{.Request.Cookie "none"}}`,
	`{{.Request.URL.Hostname}}{{.Request.URL.Port}}{{.Request.URL.IsAbs}}{{.Request.URL.EscapedPath}}{{.Request.URL.EscapedFragment}}{{.Request.URL.RequestURI}}{{.Request.URL.Redacted}}{{.Request.URL.String}}`,
	`{{.Request.URL.Query.Get "q"}}{{.Request.URL.Query.Has "r"}}{{.Request.URL.Query.Encode}}{{.Request.URL.Query.q}}{{.Request.URL.Query}}`,
	`{{.Request.URL.User.Username}}{{.Request.URL.User.String}}`,
	`{{.Request.Header.Get "X-Two"}}{{.Request.Header.Values "x-two"}}{{.Request.Header.Referer}}{{.Request.Header.None}}`,
	`{{"X-Two" | .Request.Header.Get | printf "%s-%s" "a"}}`, `{{with $h := .Request.Header}}{{$h.Get "X-Two"}}{{$.Response.Code}}{{end}}`,
	`{{if .Request.TLS}}{{.Request.TLS.ServerName}}{{else}}plain{{end}}`, `{{if not .Request.TLS}}plain{{else if eq .Request.Method "GET" "POST"}}{{.Request.Method}}{{end}}`,
	`{{with index .Request.Header "X-Two"}}{{index . 1}}{{else}}none{{end}}`, `{{with .Request.Header.None}}x{{else with .Request.Method}}{{.}}{{end}}`,
	`{{range $i, $v := index .Request.Header "X-Two"}}{{if $i}},{{end}}{{$v}}{{end}}`, `{{range .Request.Header.Empty}}x{{else}}nothing{{end}}`,
	`{{range $name, $values := .Request.Header}}{{$name}}={{$values}};{{end}}`, `{{range $k := .Request.URL.Query}}{{$k}}{{end}}`,
	`{{range $i := 5}}{{if eq $i 1}}{{continue}}{{end}}{{if eq $i 3}}{{break}}{{end}}{{$i}}{{end}}`, `{{range 3}}x{{end}}{{range .Response.Size}}{{break}}{{end}}`,
	`{{range .Request.Method}}x{{end}}`, `{{range .Response}}x{{end}}`,
	`{{$n := 0}}{{range .Request.Header}}{{$n = len .}}{{end}}{{$n}}{{$x := 1}}{{if true}}{{$x := 2}}{{$x = 3}}{{$x}}{{end}}{{$x}}`,
	`{{define "code"}}<{{.Code}}{{$}}>{{end}}{{template "code" .Response}}{{block "b" .Request.Method}}{{.}}{{end}}{{template "code" $.Response}}`,
	`{{define "loop"}}{{template "loop"}}{{end}}{{template "loop"}}`, `{{template "none"}}`, `{{define "a"}}{{.}}{{end}}{{template "a"}}`,
	`{{printf "%d %s %v %5.2f %q" .Response.Code .Request.Host .Response.Size .Response.Latency "x"}}`, `{{print 1 2 "a" "b" nil}}{{println .Response.Code "x"}}`,
	`{{len .Request.Header}}{{len "abc"}}{{len 3}}`, `{{slice "abcdef" 1 3}}{{slice (index .Request.Header "X-Two") 1}}{{slice "abc" 2 1}}`, `{{slice "abc" 0 1 2}}`,
	`{{slice (index .Request.Header "X-Two") 0 1 2}}{{slice "abc"}}`,
	`{{html "<a&'\">"}}{{urlquery "a b&c" 1}}{{js "it's \"<" }}{{"<x>" | html | print}}`,
	`{{and 1 0 .X}}{{and true "x"}}{{or 0 "" "z"}}{{or 1 .X}}{{not 0}}{{and (gt .Response.Code 400) (lt .Response.Code 600)}}{{"a" | and 1}}{{0 | or ""}}`,
	`{{eq 1 1}}{{eq .Response.Code 503}}{{eq "a" "b" "a"}}{{ne 1 2}}{{lt 1 2}}{{le 2 2}}{{gt "b" "a"}}{{ge 1.5 1.5}}{{eq true true}}{{eq .Request.TLS nil}}{{eq nil nil}}`,
	`{{eq .Response.Size 1234}}{{lt .Request.TLS.Version 1000}}{{gt .Request.TLS.Version 0}}{{eq -1 .Request.TLS.Version}}{{gt .Response.Latency 0.1}}`,
	`{{lt true false}}`, `{{eq .Request.Header .Request.Header}}`, `{{eq 1 "1"}}`, `{{eq 1}}`, `{{ne 1}}`, `{{not}}`, `{{index}}`, `{{printf}}`, `{{printf 1}}`, `{{and}}`, `{{len}}`,
	`{{1}}{{-1}}{{0x1e}}{{'e'}}{{1e3}}{{1.5}}{{0b11}}{{1i}}{{0x1p4}}{{1_000}}{{0o17}}`, `{{18446744073709551615}}`, `{{true}}{{false}}{{"s"}}{{` + "`raw`" + `}}`,
	`{{nil}}`, `{{1 2}}`, `{{"a" "b"}}`, `{{.Response.Code 1}}`, `{{.Request.UserAgent "x"}}`, `{{.Request.Header.Get}}`, `{{.Request.Header.Get 1}}`, `{{.Request.ProtoAtLeast "1" 1}}`,
	`{{(.Response).Code}}{{(index .Request.Header "X-Two" 0)}}{{$.Request.Host}}{{(print 1)}}{{(print 1) 2}}`, `{{$x := .Response}}{{$x.Code}}{{$x.Nope}}`,
	`{{.Request.ctx}}`, `{{.Request.Nope}}`, `{{.Nope}}`, `{{nil.X}}`, `{{.Request.Response.Status}}`, `{{.Request.Cancel}}`, `{{.Request.GetBody}}`, `{{.Request.Body}}`, `{{.Request.Pattern}}`,
	`{{index .Request.Header "X-Two" 5}}`, `{{index "abc" 1}}`, `{{index .Request.TLS.PeerCertificates 0}}`, `{{index .Request.TransferEncoding}}`,
	"{{- /* a comment */ -}} a {{- .Request.Host -}} b \n", `{{.Request.URL.User.Password}}`, `{{call .Request.GetBody}}`, `{{.Request.Header.Del "x"}}`,
	`{{define "c"}}<{{.Code}}{{$}}{{.}}>{{end}}{{template "c"}}`,
}

// FuzzTemplatesAgreeWithGo holds the language against text/template itself: what works
// there works here and makes the same text, or is refused when it is parsed.
func FuzzTemplatesAgreeWithGo(f *testing.F) {
	for _, text := range languageCorpus {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "range") && strings.ContainsAny(text, "456789_'") && !slices.Contains(languageCorpus, text) {
			t.Skip("may count for ever")
		}
		got, err, want, wantErr := bothLanguages(text)
		switch {
		case wantErr != nil || err == nil && got == want:
		case err != nil && strings.Contains(err.Error(), "cannot be called here"):
		default:
			t.Errorf("%s:\ngot  %q, %v\nwant %q", text, got, err, want)
		}
	})
}

// bothLanguages runs a template here and there.
func bothLanguages(text string) (got string, err error, want string, wantErr error) {
	e := languageEntry() // one for both, because pointers can be printed
	there, wantErr := gotemplate.New("").Option("missingkey=zero").Funcs(gotemplate.FuncMap{"index": index, "js": js}).Parse(text)
	if wantErr == nil {
		w := bounded{end: maxRendered}
		wantErr = there.Execute(&w, e)
		want = string(w.b)
	}
	e.Request.Form, e.Request.PostForm = nil, nil // which FormValue fills
	trees, err := parseTrees(text)
	if err == nil {
		w := bounded{end: maxRendered}
		err = (&template{trees: trees}).execute(&w, e)
		got = string(w.b)
	}
	return got, err, want, wantErr
}

// What fails in text/template fails here too, but for what is better than an error:
// numbers of different types can be compared, and counting needs no list.
func TestWhatGoRefusesIsRefused(t *testing.T) {
	for _, text := range languageCorpus {
		if got, err, _, wantErr := bothLanguages(text); wantErr != nil && err == nil {
			t.Errorf("%s: got %q, want an error like %v", text, got, wantErr)
		}
	}
	for text, want := range map[string]string{
		`{{gt .Response.Latency 0}}`: "true", `{{lt .Response.Code 503.5}}`: "true", `{{eq 1.0 1}}`: "true",
		`{{range $i, $n := 2}}{{$i}}{{$n}}{{end}}`: "0011",
	} {
		if got, err, _, _ := bothLanguages(text); got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestEveryMethodIsKnownOrRefused(t *testing.T) {
	e := languageEntry()
	failure := reflect.TypeFor[error]()
	known := map[string]bool{}
	for _, v := range []any{e, e.Response, e.Revision, e.Request, e.Request.Header, e.Request.URL, url.Values{}, e.Request.URL.User, e.Request.Cookies()[0]} {
		of := reflect.TypeOf(v)
		for i := range of.NumMethod() {
			m := of.Method(i)
			known[m.Name] = true
			callable := m.Type.NumOut() == 1 || m.Type.NumOut() == 2 && m.Type.Out(1) == failure
			bound := method(v, m.Name)
			switch refused := slices.Contains(unknownMethods, m.Name); {
			case callable && (bound != nil) == refused:
				t.Errorf("%v.%s: got known %t and refused %t, want one of them", of, m.Name, bound != nil, refused)
			case bound != nil:
				if _, err := call(bound, []any{1, 2, 3}); err == nil {
					t.Errorf("%v.%s: got no error for three arguments, want one", of, m.Name)
				}
				args := make([]any, m.Type.NumIn()-1)
				for i := range args {
					args[i] = reflect.Zero(m.Type.In(i + 1)).Interface()
				}
				if _, err := call(bound, args); err != nil && strings.Contains(err.Error(), "arguments") {
					t.Errorf("%v.%s: got %v, want it to be called", of, m.Name, err)
				}
			}
		}
	}
	for _, name := range unknownMethods {
		if !known[name] {
			t.Errorf("%s: got a refusal, want none: nothing has such a method", name)
		}
	}
}

func TestAMethodThatCannotBeCalledIsRefusedAtStartWhereverItStands(t *testing.T) {
	for _, text := range []string{
		`{{.Request.Clone}}`, `{{if ge .Response.Code 500}}{{.Request.Context}}{{end}}`, `{{if false}}{{else}}{{.Request.Context}}{{end}}`,
		`{{with .Request.Header.None}}{{$.Request.Context}}{{end}}`, `{{range .Request.Header.None}}{{$.Request.Context}}{{end}}`, `{{with $r := .Request}}{{$r.Context}}{{end}}`,
		`{{define "x"}}{{.Context}}{{end}}`, `{{template "x" .Request.Context}}{{define "x"}}{{end}}`, `{{(.Request).Context}}`, `{{print (print .Request.Context)}}`, `{{"x" | .Request.Context}}`,
	} {
		if l, err := New(Options{Template: text}, &page{}); err == nil || !strings.Contains(err.Error(), "cannot be called here") {
			if l != nil {
				mustClose(t, l)
			}
			t.Errorf("%s: got %v, want an error that says what cannot be called", text, err)
		}
	}
}
