package accesslog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	gotemplate "text/template"
	"text/template/parse"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// Limits for one execution of a template. They are necessary because a header section may be 1 MiB long, and because a
// template may iterate over a Content-Length of 2^63-1.
const (
	maxRendered = 64 << 10 // maximum length of a line in bytes
	maxWrites   = 4096     // maximum number of writes; each iteration, branch and template call causes at least one
)

// An entry contains the data that a template can access. The names are the same as in Knative.
type entry struct {
	Request  *http.Request
	Response *response
	Revision *Revision
	TraceID  string
}

type response struct {
	Code    int
	Size    int64   // length of the content in bytes
	Latency float64 // in seconds
}

// A template formats lines in the template language of Knative. It is safe for concurrent use.
type template struct {
	lines  *gotemplate.Template
	isJSON bool // each line of the output must be a JSON object
	oneRow bool // the template produces one line, and newlines in values from a request are escaped
}

// newTemplate parses a template and executes it for a request without header fields and for a request with several
// header fields. It returns an error if one of these steps fails.
func newTemplate(text string, revision *Revision) (*template, error) {
	lines, err := gotemplate.New("log").Option("missingkey=zero").Funcs(gotemplate.FuncMap{"index": index, "js": js}).Parse(text)
	if err != nil {
		return nil, err
	}
	for _, t := range lines.Templates() {
		countTurns(t.Root)
	}
	trial := &template{lines: lines}
	made := &template{lines: lines, isJSON: true, oneRow: true}
	for _, r := range trials() {
		line, err := trial.append(nil, &entry{
			Request:  r,
			Response: &response{Code: 200, Size: 5, Latency: 0.001},
			Revision: revision,
			TraceID:  "4bf92f3577b34da6a3ce929d0e0e4736",
		})
		if err != nil {
			return nil, err
		}
		line = bytes.TrimSuffix(line, []byte{'\n'})
		made.isJSON = made.isJSON && bytes.HasPrefix(line, []byte{'{'}) && json.Valid(line)
		made.oneRow = made.oneRow && !bytes.ContainsAny(line, "\r\n")
	}
	return made, nil
}

// countTurns adds an empty write at the beginning of each list of nodes, so each iteration and each template call
// causes a write. The writer can therefore stop an endless execution.
func countTurns(list *parse.ListNode) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.IfNode:
			countTurns(n.List)
			countTurns(n.ElseList)
		case *parse.WithNode:
			countTurns(n.List)
			countTurns(n.ElseList)
		case *parse.RangeNode:
			countTurns(n.List)
			countTurns(n.ElseList)
		}
	}
	list.Nodes = append([]parse.Node{&parse.TextNode{NodeType: parse.NodeText, Pos: list.Pos}}, list.Nodes...)
}

// trials returns the example requests for newTemplate.
func trials() []*http.Request {
	bare := &http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: "/"}, RequestURI: "/", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Host: "app.example.com", RemoteAddr: "192.0.2.1:1234",
	}
	full := *bare
	full.Method = http.MethodPost
	full.URL = &url.URL{Path: "/a b", RawQuery: "q='1'&r=<2>"}
	full.RequestURI = "/a%20b?q='1'&r=<2>"
	full.ContentLength = -1
	full.Header = http.Header{
		"User-Agent":      {"Mozilla/5.0 (it's)"},
		"Referer":         {"https://example.com/?a=b"},
		"X-Forwarded-For": {"192.0.2.7, 192.0.2.8"},
		"X-B3-Traceid":    {"4bf92f3577b34da6a3ce929d0e0e4736"},
		"Traceparent":     {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	}
	return []*http.Request{bare, &full}
}

// append appends the line of a request. It returns an error if the execution fails or the line is invalid.
func (t *template) append(b []byte, e *entry) ([]byte, error) {
	w := bounded{b: b, end: len(b) + maxRendered}
	if err := t.execute(&w, e); err != nil {
		return nil, err
	}
	line := bytes.TrimSuffix(w.b[len(b):], []byte{'\n'})
	switch {
	case t.isJSON && !json.Valid(line):
		return nil, errors.New("the line is not valid JSON")
	case t.oneRow && bytes.ContainsAny(line, "\r\n"):
		line = []byte(strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(string(line)))
		return append(append(b, line...), '\n'), nil
	}
	return append(w.b[:len(b)+len(line)], '\n'), nil
}

// execute executes the template. It returns an error if a function panics, because text/template does not recover from
// all panics.
func (t *template) execute(w *bounded, e *entry) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("template: %v", p)
		}
	}()
	return t.lines.Execute(w, e)
}

// bounded writes to memory. It limits the length of the output and the number of writes.
type bounded struct {
	b      []byte
	end    int
	writes int
}

func (w *bounded) Write(p []byte) (int, error) {
	if w.writes++; w.writes > maxWrites {
		return 0, fmt.Errorf("template exceeds %d steps", maxWrites)
	}
	if len(w.b)+len(p) > w.end {
		return 0, fmt.Errorf("the line is longer than %d KiB", maxRendered>>10)
	}
	w.b = append(w.b, p...)
	return len(p), nil
}

// detached returns a copy of a request for a template. The methods of the copy cannot read the original body, wait
// until the context of the exchange is done, or store parsed values in the original request.
func detached(r *http.Request) *http.Request {
	c := r.WithContext(context.Background())
	c.Body = http.NoBody
	return c
}

// dereference follows pointers and interfaces and returns the value that they refer to. It returns the zero Value for
// nil.
func dereference(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	return v
}

// index is like the function index of text/template, but returns the zero value for missing elements instead of an
// error. For example, {{index .Request.Header "X" 0}} is empty if the request has no field X.
func index(item any, keys ...any) (any, error) {
	v := reflect.ValueOf(item)
	for _, key := range keys {
		v = dereference(v)
		k := reflect.ValueOf(key)
		switch v.Kind() {
		case reflect.Map:
			if !k.IsValid() || !k.Type().AssignableTo(v.Type().Key()) {
				return nil, fmt.Errorf("%v is not a valid key of %s", key, v.Type())
			}
			e := v.MapIndex(k)
			if !e.IsValid() {
				e = reflect.Zero(v.Type().Elem())
			}
			v = e
		case reflect.Slice, reflect.Array, reflect.String:
			if !k.IsValid() || !k.CanInt() && !k.CanUint() {
				return nil, fmt.Errorf("%v is not a valid index", key)
			}
			if v.Kind() == reflect.String {
				v = reflect.ValueOf([]byte(v.String()))
			}
			if i := k.Convert(reflect.TypeFor[int]()).Int(); i >= 0 && i < int64(v.Len()) {
				v = v.Index(int(i))
			} else {
				v = reflect.Zero(v.Type().Elem())
			}
		case reflect.Invalid:
			return nil, errors.New("cannot index nil")
		default:
			return nil, fmt.Errorf("cannot index %s", v.Type())
		}
	}
	if !v.IsValid() {
		return nil, nil
	}
	return v.Interface(), nil
}

// js is like the function js of text/template, but escapes strings as in JSON. The templates of Knative are JSON, and
// the JavaScript escape sequence \' is invalid in JSON.
func js(args ...any) string {
	quoted := message.AppendJSONString(nil, fmt.Sprint(args...), maxRendered)
	return string(quoted[1 : len(quoted)-1])
}
