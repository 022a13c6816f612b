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

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// Bounds on one execution of a template. A request's head may be a megabyte long, and
// a Content-Length of 2^63-1 can be counted to.
const (
	maxRendered = 64 << 10 // bytes of the line
	maxWrites   = 4096     // of text and values; each turn of a range, each branch and each template called is one at least
)

// An entry is what a template sees of a request. The names are Knative's.
type entry struct {
	Request  *http.Request
	Response *response
	Revision *Revision
	TraceID  string
}

type response struct {
	Code    int
	Size    int64   // bytes of content
	Latency float64 // seconds
}

// A template makes lines in Knative's language. It is safe for concurrent use.
type template struct {
	lines  *gotemplate.Template
	isJSON bool // it makes JSON objects, and a line that is none is refused
	oneRow bool // it makes one line, and a request cannot make it two
}

// newTemplate returns the template of a text that has made a line of a request without
// fields and of one with many.
func newTemplate(text string, revision *Revision) (*template, error) {
	lines, err := gotemplate.New("").Option("missingkey=zero").Funcs(gotemplate.FuncMap{"index": index, "js": js}).Parse(text)
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

// countTurns makes a template write nothing at the beginning of each list of nodes: of
// each turn of a range and of each template that is called, be it empty. So a writer
// can end what would go on for ever.
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

// trials returns the requests that a template is tried on.
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

// append appends the line of a request, or returns why there is none.
func (t *template) append(b []byte, e *entry) ([]byte, error) {
	w := bounded{b: b, end: len(b) + maxRendered}
	if err := t.execute(&w, e); err != nil {
		return nil, err
	}
	line := bytes.TrimSuffix(w.b[len(b):], []byte{'\n'})
	switch {
	case t.isJSON && !json.Valid(line):
		return nil, errors.New("the line is not JSON")
	case t.oneRow && bytes.ContainsAny(line, "\r\n"):
		line = []byte(strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(string(line)))
		return append(append(b, line...), '\n'), nil
	}
	return append(w.b[:len(b)+len(line)], '\n'), nil
}

// execute writes what the template makes. What it calls may panic, which text/template
// passes on where it is not a method that it called itself.
func (t *template) execute(w *bounded, e *entry) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("template: %v", p)
		}
	}()
	return t.lines.Execute(w, e)
}

// bounded is a writer to memory with an end.
type bounded struct {
	b      []byte
	end    int
	writes int
}

func (w *bounded) Write(p []byte) (int, error) {
	if w.writes++; w.writes > maxWrites {
		return 0, fmt.Errorf("the line takes more than %d steps", maxWrites)
	}
	if len(w.b)+len(p) > w.end {
		return 0, fmt.Errorf("the line is longer than %d KiB", maxRendered>>10)
	}
	w.b = append(w.b, p...)
	return len(p), nil
}

// detached is a request as a template may have it: what it calls must not read the body
// that the exchange has done with, wait for the end of the exchange, nor keep what it
// parses.
func detached(r *http.Request) *http.Request {
	c := r.WithContext(context.Background())
	c.Body = http.NoBody
	return c
}

// behind is what stands behind pointers; invalid: nothing does.
func behind(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	return v
}

// index is text/template's, but what is not there is the zero value, never an error:
// {{index .Request.Header "X" 0}} of a request without X is empty.
func index(item any, keys ...any) (any, error) {
	v := reflect.ValueOf(item)
	for _, key := range keys {
		v = behind(v)
		k := reflect.ValueOf(key)
		switch v.Kind() {
		case reflect.Map:
			if !k.IsValid() || !k.Type().AssignableTo(v.Type().Key()) {
				return nil, fmt.Errorf("%v cannot be a key of %s", key, v.Type())
			}
			e := v.MapIndex(k)
			if !e.IsValid() {
				e = reflect.Zero(v.Type().Elem())
			}
			v = e
		case reflect.Slice, reflect.Array, reflect.String:
			if !k.IsValid() || !k.CanInt() && !k.CanUint() {
				return nil, fmt.Errorf("%v cannot be an index", key)
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
			return nil, errors.New("there is nothing to index")
		default:
			return nil, fmt.Errorf("%s cannot be indexed", v.Type())
		}
	}
	if !v.IsValid() {
		return nil, nil
	}
	return v.Interface(), nil
}

// js is text/template's, but escapes as JSON does: Knative's templates are JSON, in
// which the \' of JavaScript is an error.
func js(args ...any) string {
	quoted := appendString(nil, fmt.Sprint(args...), maxRendered)
	return string(quoted[1 : len(quoted)-1])
}

// traceID returns the id of the trace that the request belongs to, also when its
// trace is not ours: by Knative's rule the second part of Traceparent, otherwise
// X-B3-Traceid. What is not hexadecimal is no id, whoever sent it.
func traceID(o *queue.Observation) string {
	if o.TraceID != "" {
		return o.TraceID
	}
	_, id, ok := strings.Cut(o.Exchange.Header("Traceparent"), "-")
	if ok {
		id, _, _ = strings.Cut(id, "-")
	} else {
		id = o.Exchange.Header("X-B3-Traceid")
	}
	if len(id) > 32 || strings.Trim(id, "0123456789abcdefABCDEF") != "" {
		return ""
	}
	return id
}
