// Package probe checks whether the user container is ready.
//
// [Parse] parses the readiness probes in SERVING_READINESS_PROBE, [New] creates a [Prober] for the probes, and
// [Prober.Ready] runs them. Users know the rules of the kubelet for the fields and the result of a probe, so this
// package uses the same rules. The intervals and the sharing of results are described in docs/promises.md 2.2.
//
// The files http.go, tcp.go and grpc.go implement one attempt of a probe. The file prober.go decides when an
// attempt starts.
package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// A Probe contains the fields of a Kubernetes core/v1 Probe. A zero value means unset, as in Kubernetes.
type Probe struct {
	Exec      *ExecAction      `json:"exec,omitempty"` // not supported; parsed so that Parse can return an error for it
	HTTPGet   *HTTPGetAction   `json:"httpGet,omitempty"`
	TCPSocket *TCPSocketAction `json:"tcpSocket,omitempty"`
	GRPC      *GRPCAction      `json:"grpc,omitempty"`

	InitialDelaySeconds           int32  `json:"initialDelaySeconds,omitempty"`           // not used
	TimeoutSeconds                int32  `json:"timeoutSeconds,omitempty"`                // timeout of an attempt in standard mode; 0 means 1 s
	PeriodSeconds                 int32  `json:"periodSeconds,omitempty"`                 // 0 means aggressive mode; otherwise standard mode, in which the kubelet implements the period
	SuccessThreshold              int32  `json:"successThreshold,omitempty"`              // required number of consecutive passes in aggressive mode; 0 means 1
	FailureThreshold              int32  `json:"failureThreshold,omitempty"`              // not used
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"` // not used
}

// ExecAction runs a command in the container. It is not supported in a sidecar.
type ExecAction struct {
	Command []string `json:"command,omitempty"`
}

// HTTPGetAction sends an HTTP GET request.
type HTTPGetAction struct {
	Path        string       `json:"path,omitempty"`   // path with an optional query; "" means "/"
	Port        Port         `json:"port"`             // required
	Host        string       `json:"host,omitempty"`   // "" means 127.0.0.1, then [::1]
	Scheme      string       `json:"scheme,omitempty"` // HTTP or HTTPS, not case-sensitive; "" means HTTP
	HTTPHeaders []HTTPHeader `json:"httpHeaders,omitempty"`
	Protocol    *string      `json:"protocol,omitempty"` // HTTP1, or HTTP2 for h2c with prior knowledge; nil means HTTP1
}

// HTTPHeader is a header field. Multiple fields can have the same name.
type HTTPHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// TCPSocketAction opens a TCP connection.
type TCPSocketAction struct {
	Port Port   `json:"port"`           // required
	Host string `json:"host,omitempty"` // "" means 127.0.0.1, then [::1]
}

// OtherHost returns the path of the host field of the probe, and the host. It returns empty strings if the host is not
// set, or if it is localhost, 127.0.0.1, ::1 or an unspecified address.
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

// GRPCAction calls grpc.health.v1.Health/Check on the loopback address.
type GRPCAction struct {
	Port    int32   `json:"port"`           // required
	Service *string `json:"service"`        // nil means ""
	Mode    *string `json:"mode,omitempty"` // Plaintext or TLS; nil means Plaintext
}

// A Port is a number or a string, like IntOrString in Kubernetes. The zero Port means unset. The string must be
// numeric, because the sidecar cannot resolve port names.
type Port struct {
	Number int32
	Name   string // overrides Number if it is not empty
}

// MarshalJSON implements json.Marshaler.
func (p Port) MarshalJSON() ([]byte, error) {
	if p.Name != "" {
		return json.Marshal(p.Name)
	}
	return json.Marshal(p.Number)
}

// UnmarshalJSON implements json.Unmarshaler. It accepts a 32-bit integer, a string, or null for an unset port.
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

// Parse parses and validates a probe in JSON, or an array of probes if array is true (docs/promises.md 2.1). Unknown
// fields are ignored, and keys are not case-sensitive. In an array, a null element represents a container without a
// probe. If the result is empty, the user container is always ready.
//
// Parse returns all errors in the format of Kubernetes, such as
//
//	httpGet.port: Invalid value: 70000: must be between 1 and 65535, inclusive
//
// In an array, the path begins with the index, such as [1].httpGet.port. If there are errors, Parse returns no
// probes.
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

// decode parses and validates a probe. It decodes the structure before the values, so that it can report all values
// that have the wrong type.
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
		aNumber = "must be a 32-bit integer"
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
			// The error does not contain the value, because header values may be secrets.
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
	value(l, "terminationGracePeriodSeconds", shape.TerminationGracePeriodSeconds, &p.TerminationGracePeriodSeconds, "must be a 64-bit integer")

	p.validate(l)
	return p, l.errs
}

// value decodes one field. A field that is absent or null remains unset.
func value[T any](l *problems, field string, text json.RawMessage, into *T, want string) {
	if text == nil {
		return
	}
	if err := json.Unmarshal(text, into); err != nil {
		l.wrongType(field, shorten(string(text))+": "+want)
	}
}

// validate applies the Kubernetes rules for a readiness probe that are relevant to a sidecar (docs/promises.md
// 2.1): exactly one handler, which is not exec; numbers that are not negative; ports from 1 to 65535; valid
// schemes, hosts and header fields.
//
// Some probes are valid in Knative but not in Kubernetes. Therefore validate also accepts a scheme in lower case,
// a header name with an underscore, and terminationGracePeriodSeconds, which is ignored.
func (p Probe) validate(l *problems) {
	handlers := 0
	handler := func(kind string) {
		if handlers++; handlers > 1 {
			l.add(kind, "Forbidden: may not specify more than 1 handler type")
		}
	}
	if p.Exec != nil {
		handler("exec")
		l.add("exec", "Forbidden: a sidecar cannot run a command in the user container; use httpGet, tcpSocket or grpc")
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

// problems collects errors about a probe. If a field has the wrong type, later errors about its value are
// ignored.
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

// problem returns an error with the full path of a field and the message text.
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
		l.add(field, fmt.Sprintf("Invalid value: %q: must be a number, because port names are not available in a sidecar", shorten(p.Name)))
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
	if a, err := netip.ParseAddr(bare(host)); err == nil && only(a.Zone(), name) { // ParseAddr accepts any zone
		return
	}
	if !only(host, name) {
		l.add(field, fmt.Sprintf("Invalid value: %q: must be a host name or an IP address, without a port", shorten(host)))
	}
}

// headers validates header fields (RFC 9110 sections 5.1 and 5.5). Kubernetes allows fewer names and does not
// validate values. An invalid value is an error here because it would cause all attempts to fail.
func (l *problems) headers(field string, headers []HTTPHeader) {
	for i, h := range headers {
		if h.Name == "" || !only(h.Name, letters+"0123456789!#$%&'*+-.^_`|~") {
			l.add(field, fmt.Sprintf("Invalid value: %q: a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')", shorten(h.Name)))
			continue
		}
		// The error does not contain the value, which may be a secret.
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

// number returns the port number, or 0 if p is invalid.
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

// scalar reports whether text is a JSON value other than an object or an array. Error messages contain only scalar
// values, because objects and arrays may contain secrets.
func scalar(text []byte) bool {
	t := bytes.TrimSpace(text)
	return len(t) > 0 && t[0] != '{' && t[0] != '['
}

// exampleOfProbe is the last part of the error message for a value that is not a probe.
const exampleOfProbe = ` such as {"httpGet": {"path": "/", "port": 8080}}`

// jsonProblem converts an error from encoding/json to an error that contains the path and the wanted type.
func jsonProblem(err error, path, want string, text []byte) error {
	if path == "" && want == "an object" {
		want += exampleOfProbe
		if !json.Valid(text) && scalar(text) { // not JSON, for example YAML
			return problem(path, "", "Invalid value: must be "+want)
		}
	}
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
		return problem(path, "", fmt.Sprintf("Invalid value: must be JSON: %v, at byte %d", err, syntax.Offset))
	}
	return problem(path, "", "Invalid value: must be JSON: "+err.Error())
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func only(s, allowed string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}

func digits(s string) bool { return only(s, "0123456789") }

// bare removes the brackets around an IPv6 address.
func bare(host string) string {
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		return host[1 : len(host)-1]
	}
	return host
}

// shorten returns s as one line of at most 80 bytes for an error message.
func shorten(s string) string {
	const limit = 80
	return message.Truncate(strings.Join(strings.Fields(s), " "), limit)
}
