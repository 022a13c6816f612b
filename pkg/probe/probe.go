// Package probe asks the user container whether it may serve.
//
// [Parse] reads the readiness probe that SERVING_READINESS_PROBE holds, [New]
// makes a [Prober] of it, and [Prober.Ready] asks. What a probe is and when it
// passes are the kubelet's rules, because those are the rules that users know;
// how often it is asked, and who shares an answer, is docs/promises.md 2.2.
//
// A probe is a func(context.Context) error: one try. The files http.go, tcp.go
// and grpc.go make one each; prober.go decides when to try.
package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// A Probe is the part of a Kubernetes core/v1 Probe that a sidecar can use, with
// its JSON names. Zero means unset, as in Kubernetes.
type Probe struct {
	Exec      *ExecAction      `json:"exec,omitempty"` // known so that it can be refused by name
	HTTPGet   *HTTPGetAction   `json:"httpGet,omitempty"`
	TCPSocket *TCPSocketAction `json:"tcpSocket,omitempty"`
	GRPC      *GRPCAction      `json:"grpc,omitempty"`

	InitialDelaySeconds           int32  `json:"initialDelaySeconds,omitempty"`           // the kubelet's business, not used here
	TimeoutSeconds                int32  `json:"timeoutSeconds,omitempty"`                // of one try in standard mode; 0: 1 s
	PeriodSeconds                 int32  `json:"periodSeconds,omitempty"`                 // 0: aggressive mode; else standard mode, and the kubelet keeps the period
	SuccessThreshold              int32  `json:"successThreshold,omitempty"`              // passes in a row, in aggressive mode; 0: 1
	FailureThreshold              int32  `json:"failureThreshold,omitempty"`              // the kubelet's business, not used here
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"` // without a meaning for readiness, not used
}

// ExecAction is a command to run in the container, which a sidecar cannot do.
type ExecAction struct {
	Command []string `json:"command,omitempty"`
}

// HTTPGetAction asks with an HTTP GET.
type HTTPGetAction struct {
	Path        string       `json:"path,omitempty"`   // may hold a query; "": "/"
	Port        Port         `json:"port"`             // required
	Host        string       `json:"host,omitempty"`   // "": 127.0.0.1, then [::1]
	Scheme      string       `json:"scheme,omitempty"` // HTTP or HTTPS in any case; "": HTTP
	HTTPHeaders []HTTPHeader `json:"httpHeaders,omitempty"`
	Protocol    *string      `json:"protocol,omitempty"` // HTTP1, or HTTP2 for h2c by prior knowledge; nil: HTTP1
}

// HTTPHeader is one field line; names may repeat.
type HTTPHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// TCPSocketAction asks by connecting.
type TCPSocketAction struct {
	Port Port   `json:"port"`           // required
	Host string `json:"host,omitempty"` // "": 127.0.0.1, then [::1]
}

// OtherHost returns the host that the probe names, and the path of the field, if a connection to this
// host is not a connection to localhost. Otherwise it returns "".
func (p *Probe) OtherHost() (field, host string) {
	switch {
	case p.HTTPGet != nil:
		field, host = "httpGet.host", p.HTTPGet.Host
	case p.TCPSocket != nil:
		field, host = "tcpSocket.host", p.TCPSocket.Host
	}
	switch bare(host) {
	case "", "localhost", loopback, loopback6, "0.0.0.0", "::":
		return "", ""
	}
	return field, host
}

// GRPCAction asks grpc.health.v1.Health/Check on the loopback address.
type GRPCAction struct {
	Port    int32   `json:"port"`           // required
	Service *string `json:"service"`        // nil: ""
	Mode    *string `json:"mode,omitempty"` // Plaintext or TLS; nil: Plaintext
}

// A Port is a number, or the text that stood in its place (Kubernetes'
// IntOrString). The zero Port is unset. Only digits can be used as text: the
// names of ports are not known in a sidecar.
type Port struct {
	Number int32
	Name   string // wins over Number when it is not empty
}

// MarshalJSON writes the number or the text.
func (p Port) MarshalJSON() ([]byte, error) {
	if p.Name != "" {
		return json.Marshal(p.Name)
	}
	return json.Marshal(p.Number)
}

// UnmarshalJSON reads a whole number of 32 bits or a string. null is unset.
func (p *Port) UnmarshalJSON(text []byte) error {
	*p = Port{}
	if len(text) > 0 && text[0] == '"' {
		return json.Unmarshal(text, &p.Name)
	}
	return json.Unmarshal(text, &p.Number)
}

func (p Port) String() string {
	if p.Name != "" {
		return p.Name
	}
	return strconv.Itoa(int(p.Number))
}

// Parse reads one probe, or with array a list of them, from JSON and validates
// it (docs/promises.md 2.1). Unknown fields are ignored, keys match without
// regard to case. In a list, null and null elements are containers without a
// probe: a list may be empty, and then the user container is always ready.
//
// It reports every problem that it finds, each as Kubernetes does: the path of
// the field, then what is wrong, as in
//
//	httpGet.port: Invalid value: 70000: must be between 1 and 65535, inclusive
//
// and in a list [1].httpGet.port: ... with the element's place. With problems,
// no probes are returned.
func Parse(text string, array bool) ([]Probe, []error) {
	if !array {
		p, errs := decode([]byte(text), "")
		if errs != nil {
			return nil, errs
		}
		return []Probe{p}, nil
	}
	var elements []json.RawMessage
	if err := json.Unmarshal([]byte(text), &elements); err != nil {
		return nil, []error{jsonProblem(err, "", "an array of probes", []byte(text))}
	}
	var probes []Probe
	var problems []error
	for i, element := range elements {
		if bytes.Equal(element, []byte("null")) {
			continue
		}
		p, errs := decode(element, fmt.Sprintf("[%d]", i))
		probes = append(probes, p)
		problems = append(problems, errs...)
	}
	if problems != nil {
		return nil, problems
	}
	return probes, nil
}

// decode reads in two steps, so that every value of a wrong type is reported and
// not only the first: the shape, then value by value.
func decode(text []byte, path string) (Probe, []error) {
	var shape struct {
		Exec    *struct{ Command json.RawMessage } `json:"exec"`
		HTTPGet *struct {
			Path, Port, Host, Scheme, HTTPHeaders, Protocol json.RawMessage
		} `json:"httpGet"`
		TCPSocket *struct{ Port, Host json.RawMessage }          `json:"tcpSocket"`
		GRPC      *struct{ Port, Service, Mode json.RawMessage } `json:"grpc"`

		InitialDelaySeconds, TimeoutSeconds, PeriodSeconds, SuccessThreshold,
		FailureThreshold, TerminationGracePeriodSeconds json.RawMessage
	}
	if err := json.Unmarshal(text, &shape); err != nil || scalar(text) {
		return Probe{}, []error{jsonProblem(err, path, "an object", text)}
	}

	const (
		aNumber = "must be a whole number of 32 bits"
		aString = "must be a string"
		aPort   = "must be a port number"
	)
	var p Probe
	l := &problems{path: path}
	if s := shape.Exec; s != nil {
		p.Exec = new(ExecAction)
		value(l, "exec.command", s.Command, &p.Exec.Command, "must be an array of strings")
	}
	if s := shape.HTTPGet; s != nil {
		p.HTTPGet = new(HTTPGetAction)
		value(l, "httpGet.path", s.Path, &p.HTTPGet.Path, aString)
		value(l, "httpGet.port", s.Port, &p.HTTPGet.Port, aPort)
		value(l, "httpGet.host", s.Host, &p.HTTPGet.Host, aString)
		value(l, "httpGet.scheme", s.Scheme, &p.HTTPGet.Scheme, aString)
		value(l, "httpGet.protocol", s.Protocol, &p.HTTPGet.Protocol, aString)
		if s.HTTPHeaders != nil && json.Unmarshal(s.HTTPHeaders, &p.HTTPGet.HTTPHeaders) != nil {
			// Without the value: header values can be secrets.
			l.wrongType("httpGet.httpHeaders", "must be an array of objects with the strings name and value")
		}
	}
	if s := shape.TCPSocket; s != nil {
		p.TCPSocket = new(TCPSocketAction)
		value(l, "tcpSocket.port", s.Port, &p.TCPSocket.Port, aPort)
		value(l, "tcpSocket.host", s.Host, &p.TCPSocket.Host, aString)
	}
	if s := shape.GRPC; s != nil {
		p.GRPC = new(GRPCAction)
		value(l, "grpc.port", s.Port, &p.GRPC.Port, aPort)
		value(l, "grpc.service", s.Service, &p.GRPC.Service, aString)
		value(l, "grpc.mode", s.Mode, &p.GRPC.Mode, aString)
	}
	value(l, "initialDelaySeconds", shape.InitialDelaySeconds, &p.InitialDelaySeconds, aNumber)
	value(l, "timeoutSeconds", shape.TimeoutSeconds, &p.TimeoutSeconds, aNumber)
	value(l, "periodSeconds", shape.PeriodSeconds, &p.PeriodSeconds, aNumber)
	value(l, "successThreshold", shape.SuccessThreshold, &p.SuccessThreshold, aNumber)
	value(l, "failureThreshold", shape.FailureThreshold, &p.FailureThreshold, aNumber)
	value(l, "terminationGracePeriodSeconds", shape.TerminationGracePeriodSeconds, &p.TerminationGracePeriodSeconds, "must be a whole number of 64 bits")

	p.validate(l)
	return p, l.errs
}

// value reads one field. A field that is absent or null stays unset.
func value[T any](l *problems, field string, text json.RawMessage, into *T, want string) {
	if text == nil {
		return
	}
	if err := json.Unmarshal(text, into); err != nil {
		l.wrongType(field, shorten(string(text))+": "+want)
	}
}

// validate holds the probe to Kubernetes' rules for a readiness probe, as far as
// they matter to a sidecar (docs/promises.md 2.1): exactly one handler, not exec;
// numbers that are not negative; ports that are numbers from 1 to 65535; schemes,
// hosts and header fields that can go on the wire. The texts are those of [Parse].
//
// Where Kubernetes is stricter than Knative, and Knative's probes work, it is
// lenient: a scheme in lower case, a header name with an underscore and a
// terminationGracePeriodSeconds, which no one uses, are let through.
func (p Probe) validate(l *problems) {
	handlers := 0
	handler := func(kind string) {
		if handlers++; handlers > 1 {
			l.add(kind, "Forbidden: may not specify more than 1 handler type")
		}
	}
	if p.Exec != nil {
		handler("exec")
		l.add("exec", "Forbidden: a command cannot be run from a sidecar, which has a file system of its own; use httpGet, tcpSocket or grpc")
	}
	if a := p.HTTPGet; a != nil {
		handler("httpGet")
		l.port("httpGet.port", a.Port)
		l.host("httpGet.host", a.Host)
		l.oneOf("httpGet.scheme", strings.ToUpper(a.Scheme), a.Scheme, "", "HTTP", "HTTPS")
		l.headers("httpGet.httpHeaders", a.HTTPHeaders)
		if a.Protocol != nil {
			l.oneOf("httpGet.protocol", *a.Protocol, *a.Protocol, "HTTP1", "HTTP2")
			if *a.Protocol == "HTTP2" && strings.EqualFold(a.Scheme, "HTTPS") {
				l.add("httpGet.protocol", `Invalid value: "HTTP2": must be used with scheme HTTP`)
			}
		}
	}
	if a := p.TCPSocket; a != nil {
		handler("tcpSocket")
		l.port("tcpSocket.port", a.Port)
		l.host("tcpSocket.host", a.Host)
	}
	if a := p.GRPC; a != nil {
		handler("grpc")
		l.port("grpc.port", Port{Number: a.Port})
		if a.Mode != nil {
			l.oneOf("grpc.mode", *a.Mode, *a.Mode, "Plaintext", "TLS")
		}
	}
	if handlers == 0 {
		l.add("", "Required value: must specify a handler type")
	}
	l.notNegative("initialDelaySeconds", p.InitialDelaySeconds)
	l.notNegative("timeoutSeconds", p.TimeoutSeconds)
	l.notNegative("periodSeconds", p.PeriodSeconds)
	l.notNegative("successThreshold", p.SuccessThreshold)
	l.notNegative("failureThreshold", p.FailureThreshold)
}

// problems collects what is wrong below a path. A field that is known to have
// the wrong type is not validated again by its value, which is then zero.
type problems struct {
	path     string
	errs     []error
	mistyped map[string]bool
}

func (l *problems) add(field, text string) {
	if !l.mistyped[field] {
		l.errs = append(l.errs, problem(l.path, field, text))
	}
}

// problem says what is wrong with a field below a path.
func problem(path, field, text string) error {
	if path != "" && field != "" {
		path += "."
	}
	if path += field; path != "" {
		path += ": "
	}
	return errors.New(path + text)
}

func (l *problems) wrongType(field, text string) {
	l.add(field, "Invalid value: "+text)
	if l.mistyped == nil {
		l.mistyped = map[string]bool{}
	}
	l.mistyped[field] = true
}

func (l *problems) notNegative(field string, n int32) {
	if n < 0 {
		l.add(field, fmt.Sprintf("Invalid value: %d: must be greater than or equal to 0", n))
	}
}

func (l *problems) port(field string, p Port) {
	if p.Name != "" && !digits(p.Name) {
		l.add(field, fmt.Sprintf("Invalid value: %q: must be a number, the names of ports are not known in a sidecar", shorten(p.Name)))
		return
	}
	if n := p.number(); n < 1 || n > 65535 {
		l.add(field, "Invalid value: "+shorten(p.String())+": must be between 1 and 65535, inclusive")
	}
}

func (l *problems) oneOf(field, got, spelt string, allowed ...string) {
	var quoted []string
	for _, a := range allowed {
		if a == got {
			return
		}
		if a != "" {
			quoted = append(quoted, strconv.Quote(a))
		}
	}
	l.add(field, fmt.Sprintf("Unsupported value: %q: supported values: %s", shorten(spelt), strings.Join(quoted, ", ")))
}

func (l *problems) host(field, host string) {
	const name = letters + "0123456789-._"
	if a, err := netip.ParseAddr(bare(host)); err == nil && only(a.Zone(), name) { // a zone could be anything
		return
	}
	if !only(host, name) {
		l.add(field, fmt.Sprintf("Invalid value: %q: must be a host name or an IP address, without a port", shorten(host)))
	}
}

// headers validates what goes on the wire (RFC 9110 sections 5.1 and 5.5). Kubernetes
// allows fewer names and does not look at values; a value that cannot be sent would
// fail every try.
func (l *problems) headers(field string, headers []HTTPHeader) {
	for i, h := range headers {
		if h.Name == "" || !only(h.Name, letters+"0123456789!#$%&'*+-.^_`|~") {
			l.add(field, fmt.Sprintf("Invalid value: %q: a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')", shorten(h.Name)))
			continue
		}
		// Without the value: it can be a secret.
		name := fmt.Sprintf("%s[%d].value", field, i)
		if strings.EqualFold(h.Name, "Host") {
			if !only(h.Value, letters+"0123456789!$%&'()*+,-.:;=[]_~") {
				l.add(name, "Invalid value: must be a host name, with or without a port")
			}
			continue
		}
		if strings.ContainsFunc(h.Value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			l.add(name, "Invalid value: must not contain control characters")
		}
	}
}

// number is the port; 0 for what is not one.
func (p Port) number() int {
	if p.Name == "" {
		return int(p.Number)
	}
	n, err := strconv.ParseUint(p.Name, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

// scalar reports whether JSON is neither an object nor an array. Only then can it
// be shown: in those there may be secrets.
func scalar(text []byte) bool {
	t := bytes.TrimSpace(text)
	return len(t) > 0 && t[0] != '{' && t[0] != '['
}

// jsonProblem words an error of encoding/json for somebody who wrote a probe.
func jsonProblem(err error, path, want string, text []byte) error {
	if json.Valid(text) && scalar(text) {
		return problem(path, "", "Invalid value: "+shorten(string(bytes.TrimSpace(text)))+": must be "+want)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field != "" {
			want = "an object"
		}
		return problem(path, wrong.Field, "Invalid value: "+shorten(wrong.Value)+": must be "+want)
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return problem(path, "", fmt.Sprintf("Invalid value: not JSON: %v, at byte %d", err, syntax.Offset))
	}
	return problem(path, "", "Invalid value: not JSON: "+err.Error())
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func only(s, allowed string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}

func digits(s string) bool { return only(s, "0123456789") }

// bare takes the brackets from an IPv6 address.
func bare(host string) string {
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		return host[1 : len(host)-1]
	}
	return host
}

// shorten returns a value in one line and truncated to 80 bytes, for the text of an error.
func shorten(s string) string {
	const limit = 80
	return printable.Truncate(strings.Join(strings.Fields(s), " "), limit)
}
