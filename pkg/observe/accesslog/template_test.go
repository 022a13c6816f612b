package accesslog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Default templates of the Knative control plane.
const (
	knativeHead = `{"httpRequest": {"requestMethod": "{{.Request.Method}}", "requestUrl": "{{js .Request.RequestURI}}", "requestSize": "{{.Request.ContentLength}}", "status": {{.Response.Code}}, "responseSize": "{{.Response.Size}}", "userAgent": "{{js .Request.UserAgent}}", "remoteIp": "{{js .Request.RemoteAddr}}", "serverIp": "{{.Revision.PodIP}}", "referer": "{{js .Request.Referer}}", "latency": "{{.Response.Latency}}s", "protocol": "{{.Request.Proto}}"}, "traceId": "{{.TraceID}}"}`
	knative118  = `{"httpRequest": {"requestMethod": "{{.Request.Method}}", "requestUrl": "{{js .Request.RequestURI}}", "requestSize": "{{.Request.ContentLength}}", "status": {{.Response.Code}}, "responseSize": "{{.Response.Size}}", "userAgent": "{{js .Request.UserAgent}}", "remoteIp": "{{js .Request.RemoteAddr}}", "serverIp": "{{.Revision.PodIP}}", "referer": "{{js .Request.Referer}}", "latency": "{{.Response.Latency}}s", "protocol": "{{.Request.Proto}}"}, "traceId": "{{index .Request.Header "X-B3-Traceid"}}"}`
)

func TestKnativeTemplates(t *testing.T) {
	revision := Revision{PodIP: "10.0.0.1"}
	line := func(traceID string) string {
		return `{"httpRequest": {"requestMethod": "GET", "requestUrl": "/it's?a=b&c=<1>", "requestSize": "0", "status": 200, "responseSize": "5", ` +
			`"userAgent": "say \"hi\"", "remoteIp": "192.0.2.1:1234", "serverIp": "10.0.0.1", "referer": "", "latency": "0.01s", ` +
			`"protocol": "HTTP/1.1"}, "traceId": "` + traceID + `"}` + "\n"
	}
	for _, c := range []struct{ name, template, header, value, traceID string }{
		{"head", knativeHead, "Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "4bf92f3577b34da6a3ce929d0e0e4736"},
		{"head without a trace", knativeHead, "", "", ""},
		{"1.18", knative118, "X-B3-Traceid", "1234", "[1234]"},
		{"1.18 without a trace", knative118, "", "", "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/it's?a=b&c=<1>", nil)
			r.Header.Set("User-Agent", `say "hi"`)
			if c.header != "" {
				r.Header.Set(c.header, c.value)
			}
			got := written(t, Options{Template: c.template, Revision: revision}, observe(r))
			harness.Equal(t, got, line(c.traceID), "line")
		})
	}
}

func TestTemplateAccessesRequest(t *testing.T) {
	for _, c := range []struct{ template, want string }{
		{`{{.Revision.Name}} {{.Revision.Namespace}} {{.Revision.Service}} {{.Revision.Configuration}} {{.Revision.PodName}} {{.Revision.PodIP}}`, "rev ns svc cfg pod ip"},
		{`{{.Request.Host}} {{.Request.URL.Path}} {{.Request.Proto}}`, "example.com /p HTTP/1.1"},
		{`{{.Request.Header.Get "X-Missing"}}|{{index .Request.Header "X-Missing" 0}}|{{index (index .Request.Header "X-Missing") 0}}|{{index .Request.Header "X-Missing"}}`, "|||[]"},
		{`{{index .Request.Header "X-Two" 0}} {{index .Request.Header "X-Two" 1}} {{index .Request.Header "X-Two"}}`, "one two [one two]"},
		{`{{index .Request.URL.Query "q" 0}}{{index .Request.URL.Query "r" 0}}`, "1"},
		{`{{with index .Request.Header "X-Two"}}{{index . 1}}{{end}}{{with index .Request.Header "X-No"}}no{{end}}`, "two"},
		{`{{.Request.Header.Nothing}}`, "[]"},
		{`{{.Request.FormValue "q"}}{{.Request.PostFormValue "body"}}`, "1"},
		{`{{printf "%.3f" .Response.Latency}} {{if ge .Response.Code 500}}bad{{else}}good{{end}}`, "0.010 good"},
		{"line break at the end\n", "line break at the end"},
		{"two\nlines", "two\nlines"},
		{`{{js "a" 1 "\n"}}`, `a1\n`},
	} {
		r := httptest.NewRequest("POST", "/p?q=1", strings.NewReader("body=read"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header["X-Two"] = []string{"one", "two"}
		got := written(t, Options{Template: c.template, Revision: Revision{"rev", "ns", "svc", "cfg", "pod", "ip"}}, observe(r))
		harness.Equal(t, got, c.want+"\n", c.template)
	}
}

func TestNewRejectsInvalidTemplate(t *testing.T) {
	for _, c := range []struct{ template, want string }{
		{"{{.Request", "unclosed action"},
		{"{{.Bogus}}", "Bogus"},
		{"{{.Request.Bogus}}", "Bogus"},
		{"{{nosuchfunc}}", "nosuchfunc"},
		{"{{.Request.TLS.ServerName}}", "ServerName"},
		{`{{index .Request.Header 1}}`, "is not a valid key"},
		{`{{index .Request.Header.Foo "x"}}`, "is not a valid index"},
		{`{{index .Response 1}}`, "cannot index"},
		{`{{index .Request.TLS 1}}`, "cannot index nil"},
		{`{{range $i := 9999999}}` + strings.Repeat("x", 100) + `{{end}}`, "longer than 64 KiB"},
		{`{{range 9223372036854775807}}{{end}}`, "exceeds 4096 steps"},
		{`{{if true}}{{with 1}}{{range 9223372036854775807}}{{if false}}x{{end}}{{end}}{{end}}{{end}}`, "exceeds 4096 steps"},
		{`{{define "a"}}{{template "a"}}{{end}}{{template "a"}}`, "exceeds 4096 steps"},
		{`{{define "a"}}{{if true}}{{template "b"}}{{end}}{{end}}{{define "b"}}{{template "a"}}{{end}}{{template "a"}}`, "exceeds 4096 steps"},
	} {
		l, err := New(Options{Template: c.template}, io.Discard)
		if err == nil {
			mustClose(t, l)
		}
		harness.Contains(t, fmt.Sprint(err), c.want, c.template)
	}
}

func TestInvalidTemplateLineIsReplacedByJSON(t *testing.T) {
	var reports []error
	var out harness.Buffer
	l := mustNew(t, Options{Template: `{"agent": "{{.Request.UserAgent}}"}`, Report: func(err error) { reports = append(reports, err) }}, &out)
	with := func(agent string) *observation.Observation {
		r := httptest.NewRequest("GET", "/x", nil)
		r.Header.Set("User-Agent", agent)
		return observe(r)
	}
	for _, agent := range []string{"fine", `"`, `\`, "fine", `"`, strings.Repeat("x", maxRendered)} {
		l.Observe(with(agent))
	}
	mustClose(t, l)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	wantErrors := []string{"", "the line is not valid JSON", "the line is not valid JSON", "", "the line is not valid JSON", "the line is longer than 64 KiB"}
	if len(lines) != len(wantErrors) {
		t.Fatalf("got %d lines, want %d", len(lines), len(wantErrors))
	}
	for i, line := range lines {
		var v struct{ Agent, Target, TemplateError string }
		harness.Equal(t, json.Unmarshal([]byte(line), &v), nil, line)
		if !strings.HasSuffix(v.TemplateError, wantErrors[i]) || (v.TemplateError == "") != (wantErrors[i] == "") {
			t.Errorf("line %d: got error %q, want %q", i, v.TemplateError, wantErrors[i])
		}
	}
	harness.Equal(t, len(reports), 1, "reports in 1 min", reports)
}

// The client chooses the number of iterations with the Content-Length field.
func TestTemplateStepsAreLimited(t *testing.T) {
	r := httptest.NewRequest("POST", "/", nil)
	r.ContentLength = 1<<63 - 1
	got := written(t, Options{Template: `{"n":"{{range .Request.ContentLength}}{{end}}"}`}, observe(r))
	harness.Contains(t, got, "template exceeds 4096 steps")
}

// The context of a request is not canceled until Observe returns. A template must not wait for the context, because
// Observe would never return.
func TestTemplateDoesNotWaitForContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := httptest.NewRequest("GET", "/", nil).WithContext(ctx)
	harness.Equal(t, written(t, Options{Template: `{{range .Request.Context.Done}}{{end}}done`}, observe(r)), "done\n")
}

// The templates call methods of the request and functions of text/template. They must not change the request.
func TestTemplateSupportsWholeLanguage(t *testing.T) {
	for text, want := range map[string]string{
		`{{(.Request.URL.JoinPath "b").Path}}{{.Request.Clone .Request.Context | printf "%T"}}`:                     "/a/b*http.Request",
		`{{define "code"}}<{{.Code}}>{{end}}{{template "code" .Response}}{{block "m" .Request.Method}}{{.}}{{end}}`: "<200>GET",
		`{{range $i, $v := index .Request.Header "X-Two"}}{{if $i}},{{end}}{{$v}}{{end}}`:                           "one,two",
		`{{range $i := 5}}{{if eq $i 1}}{{continue}}{{end}}{{if eq $i 3}}{{break}}{{end}}{{$i}}{{end}}`:             "02",
		`{{with .Request.Header.None}}x{{else with .Request.Method}}{{.}}{{end}}`:                                   "GET",
		`{{"X-Two" | .Request.Header.Get | printf "%s-%s" "a"}}{{slice "abcdef" 1 3}}{{len "abc"}}`:                 "a-onebc3",
		`{{and (gt .Response.Code 100) (lt .Response.Code 300)}}{{or 0 "z"}}{{not 0}}{{html "<a>"}}`:                "trueztrue&lt;a&gt;",
	} {
		r := httptest.NewRequest("GET", "/a", nil)
		r.Header["X-Two"] = []string{"one", "two"}
		harness.Equal(t, written(t, Options{Template: text}, observe(r)), want+"\n", text)
		if r.Form != nil || len(r.Header) != 1 || r.URL.Path != "/a" {
			t.Errorf("%s: got request %+v, want it unchanged", text, r)
		}
	}
}

// FuzzTemplates verifies that the execution of any template ends with one line within the limits, and that the line is
// JSON if the template produces JSON.
func FuzzTemplates(f *testing.F) {
	f.Add(knativeHead, "agent", "/x", int64(3))
	f.Add(`{"a":"{{.Request.UserAgent}}"}`, `"`, "/\n", int64(1<<62))
	f.Add(`{{range .Request.ContentLength}}{{end}}{{index .Request.Header "User-Agent" 1}}`, "", "", int64(1<<62))
	f.Add(`{{define "a"}}{{template "a" .}}{{end}}{{template "a" .Request}}`, "", "", int64(0))
	f.Add(`{{printf .Request.UserAgent .Request.URL}}`, "%v%d%s", "/a?b", int64(0))
	f.Fuzz(func(t *testing.T, text, agent, target string, length int64) {
		if strings.Contains(text, "printf") && strings.ContainsAny(agent+text, "123456789*") {
			t.Skip("the template can choose a large width")
		}
		made, err := newTemplate(text, &Revision{})
		if err != nil {
			return
		}
		o := get("/")
		r := o.Exchange.Request()
		r.RequestURI, r.ContentLength = target, length
		r.Header = http.Header{"User-Agent": {agent}}
		l := &Log{tail: appendTail(nil, &Revision{}), template: made}
		line := l.appendLine(nil, o)
		if len(line) > 2*maxRendered+1 || !bytes.HasSuffix(line, []byte{'\n'}) {
			t.Errorf("%s: got %d bytes, want at most %d bytes with a newline at the end", text, len(line), 2*maxRendered)
		}
		if made.isJSON && !json.Valid(line) {
			t.Errorf("%s: got %q, want JSON", text, line)
		}
		if made.oneRow && bytes.ContainsAny(line[:len(line)-1], "\r\n") {
			t.Errorf("%s: got %q, want one line", text, line)
		}
	})
}

func TestTemplateEscapesNewlinesFromRequest(t *testing.T) {
	r := httptest.NewRequest("GET", "/a%0aforged%0d", nil)
	got := written(t, Options{Template: "path={{.Request.URL.Path}}"}, observe(r))
	harness.Equal(t, got, `path=/a\nforged\r`+"\n", "line")
}
