package config

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
)

// A Value is the value of a setting and its origin.
type Value[T any] struct {
	V T
	origin
}

// String returns the value in the syntax of the variable. It returns "" for a value that cannot be
// configured, such as the value of an unset variable.
func (v *Value[T]) String() string { return fmt.Sprint(v.V) }

// assign sets the value if err is nil. Otherwise it returns errNotAllowed.
func (v *Value[T]) assign(to T, err error) error {
	if err != nil {
		return errNotAllowed
	}
	v.V = to
	return nil
}

// derive sets the value of a setting if the environment does not contain it.
func (v *Value[T]) derive(to T) {
	if v.unset() {
		v.V = to
	}
}

// An origin records the source of a value. It is small because envconfig copies each value and each
// section several times.
type origin struct {
	field *field // field of the original Config, even in a copy of the origin
	from  string // variable that contained the value, or ""
}

// Name returns the name of the variable.
func (o *origin) Name() string { return o.field.name }

// Decode implements [envconfig.Decoder]. It records an error in the setting and returns nil, because
// envconfig returns only the first error, but all errors must be reported together (docs/promises.md
// 3.9). It ignores empty values, and the default that envconfig passes for an unset variable.
func (o *origin) Decode(text string) error {
	if o.field.set {
		o.field.decode(o.field.name, text)
	}
	return nil
}

func (o *origin) at() *origin { return o }
func (o *origin) unset() bool { return o.from == "" }
func (o *origin) bad() bool   { return o.field.problems != nil }

// warn records a warning about a value that is only partly used.
func (o *origin) warn(format string, args ...any) {
	o.field.warn("%s: %s", o.field.name, fmt.Sprintf(format, args...))
}

// setting is the interface that all types of values implement.
type setting interface {
	at() *origin
	Name() string
	String() string
	allowed() string         // allowed values, for messages
	parse(text string) error // sets the value; text is not empty
}

// errNotAllowed is the error of parse for a value that is not allowed.
var errNotAllowed = errors.New("not allowed")

// maxDuration is the upper limit for each duration. It prevents an overflow when durations are added to a
// time.
const maxDuration = 100 * 365 * 24 * time.Hour

// Port is a port number from 1 to 65535.
type Port struct{ Value[int] }

func (*Port) allowed() string           { return "a port from 1 to 65535" }
func (p *Port) parse(text string) error { return p.assign(parseNumber(text, 1, math.MaxUint16)) }

// Number is an integer in decimal, or with the prefix 0x, 0o, 0b or 0, as in Knative.
type Number[T int | int64] struct{ Value[T] }

// bounds returns the minimum and the maximum.
func (n *Number[T]) bounds() (low, high int64) {
	low, _ = strconv.ParseInt(n.field.tag.Get("min"), 10, 64)
	high, _ = strconv.ParseInt(n.field.tag.Get("max"), 10, 64)
	return low, high
}

func (n *Number[T]) allowed() string {
	low, high := n.bounds()
	if high == math.MaxInt64 {
		return fmt.Sprintf("an integer greater than or equal to %d", low)
	}
	return fmt.Sprintf("an integer from %d to %d", low, high)
}

func (n *Number[T]) parse(text string) error {
	low, high := n.bounds()
	v, err := parseNumber(text, low, high)
	return n.assign(T(v), err)
}

func parseNumber[T int | int64](text string, low, high T) (T, error) {
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil || n < int64(low) || n > int64(high) {
		return 0, errNotAllowed
	}
	return T(n), nil
}

// Duration is a duration in the syntax of Go. If the setting has a unit, as in Knative and
// OpenTelemetry, it can also be an integer.
type Duration struct{ Value[time.Duration] }

// unit returns the unit of an integer. 0 means that an integer is not allowed.
func (d *Duration) unit() time.Duration {
	switch d.field.tag.Get("unit") {
	case "seconds":
		return time.Second
	case "milliseconds":
		return time.Millisecond
	}
	return 0
}

func (d *Duration) allowed() string {
	syntax := "a duration such as 30s or 250ms"
	if d.unit() != 0 {
		syntax = "an integer in " + d.field.tag.Get("unit") + ", or " + syntax
	}
	return fmt.Sprintf("%s, from %s to %.0fh", syntax, cmp.Or(d.field.tag.Get("min"), "0"), maxDuration.Hours())
}

func (d *Duration) parse(text string) error {
	if unit := d.unit(); unit != 0 {
		if n, err := parseNumber(text, 0, int64(maxDuration/unit)); err == nil {
			return d.assign(time.Duration(n)*unit, nil)
		}
	}
	minimum, _ := time.ParseDuration(d.field.tag.Get("min")) // 0 without the tag
	v, err := time.ParseDuration(text)
	if err != nil || v < minimum || v > maxDuration {
		return errNotAllowed
	}
	return d.assign(v, nil)
}

func (d *Duration) String() string {
	if unit := d.unit(); unit != 0 && d.V%unit == 0 {
		return strconv.FormatInt(int64(d.V/unit), 10)
	}
	return d.V.String()
}

// Bool is true or false.
type Bool struct{ Value[bool] }

func (*Bool) words() []string           { return []string{"true", "false"} }
func (*Bool) allowed() string           { return "true or false" }
func (b *Bool) parse(text string) error { return b.assign(strconv.ParseBool(text)) }

// Fraction is a number in the range 0 to 1.
type Fraction struct{ Value[float64] }

func (*Fraction) allowed() string           { return "a number from 0 to 1" }
func (f *Fraction) parse(text string) error { return f.assign(parseFraction(text)) }

func parseFraction(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return 0, errNotAllowed
	}
	return f, nil
}

// Text is an arbitrary string.
type Text struct{ Value[string] }

func (*Text) allowed() string           { return "a string" }
func (t *Text) parse(text string) error { return t.assign(text, nil) }

// URLPath is the path of a URL with an optional query.
type URLPath struct{ Value[string] }

func (*URLPath) allowed() string { return "a path such as /metrics, without a fragment" }

func (p *URLPath) parse(text string) error {
	_, err := url.Parse("http://localhost" + text)
	if err != nil || text[0] != '/' || strings.Contains(text, "#") {
		return errNotAllowed
	}
	return p.assign(text, nil)
}

// Choice is one of the words in the tag "oneof". Case is ignored.
type Choice[T ~string] struct{ Value[T] }

func (c *Choice[T]) words() []string { return strings.Split(c.field.tag.Get("oneof"), ",") }
func (c *Choice[T]) allowed() string { return "one of " + strings.Join(c.words(), ", ") }

func (c *Choice[T]) parse(text string) error {
	i := c.index(text)
	if i < 0 {
		return errNotAllowed
	}
	return c.assign(T(c.words()[i]), nil)
}

// index returns the index of text in words, or -1.
func (c *Choice[T]) index(text string) int {
	return slices.IndexFunc(c.words(), func(word string) bool { return strings.EqualFold(word, text) })
}

// Word is a Choice that can contain any text. The package that uses the setting calls Check.
type Word struct{ Choice[string] }

func (w *Word) parse(text string) error { return w.assign(text, nil) }

// Check returns an error if text is not one of the allowed words. Case is ignored.
func (w *Word) Check(text string) error {
	if w.index(text) < 0 {
		return fmt.Errorf("%s: must be %s", quote(text), w.allowed())
	}
	return nil
}

// split returns the items of a comma-separated list without spaces around them and without empty
// items. The result of an empty list is nil.
func split(text string) []string {
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// list is a comma-separated list.
type list struct{ Value[[]string] }

func (l *list) String() string { return strings.Join(l.V, ",") }

func (l *list) parseUnless(text string, bad func(item string) bool) error {
	items := split(text)
	if slices.ContainsFunc(items, bad) {
		return errNotAllowed
	}
	return l.assign(items, nil)
}

// Paths are exact paths, or prefixes that end in "*".
type Paths struct{ list }

func (*Paths) allowed() string {
	return "a comma-separated list of paths with a leading / and an optional trailing *"
}

func (p *Paths) parse(text string) error {
	return p.parseUnless(text, func(item string) bool {
		return item[0] != '/' || strings.Contains(strings.TrimSuffix(item, "*"), "*")
	})
}

// Prefixes are prefixes of User-Agent. They must not contain "*", because wildcards are not supported.
type Prefixes struct{ list }

func (*Prefixes) allowed() string { return "a comma-separated list of User-Agent prefixes without *" }

func (p *Prefixes) parse(text string) error {
	return p.parseUnless(text, func(item string) bool { return strings.Contains(item, "*") })
}

// parseNames returns the values of a comma-separated list of names. Case is ignored. The keys of
// values are in upper case.
func parseNames[T any](text string, values map[string]T) ([]T, error) {
	var all []T
	for _, name := range split(text) {
		v, found := values[strings.ToUpper(name)]
		if !found {
			return nil, errNotAllowed
		}
		all = append(all, v)
	}
	return all, nil
}

func joinNames[T any](values []T, name func(T) string) string {
	var names []string
	for _, v := range values {
		names = append(names, name(v))
	}
	return strings.Join(names, ",")
}

// TLSVersion is a version of TLS that Knative accepts, which is 1.2 or 1.3. 0 means unset. Older
// versions are deprecated (RFC 8996).
type TLSVersion struct{ Value[uint16] }

func (*TLSVersion) allowed() string { return "one of 1.2, 1.3" }

func (v *TLSVersion) parse(text string) error {
	version, found := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[text]
	if !found {
		return errNotAllowed
	}
	return v.assign(version, nil)
}

func (v *TLSVersion) String() string {
	return map[uint16]string{tls.VersionTLS12: "1.2", tls.VersionTLS13: "1.3"}[v.V]
}

// CipherSuites contains the IDs of secure cipher suites. The text form contains the names in
// crypto/tls. If it is nil, the default of crypto/tls is used.
type CipherSuites struct{ Value[[]uint16] }

func (*CipherSuites) allowed() string {
	return "a comma-separated list of secure cipher suites, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
}

func (s *CipherSuites) parse(text string) error {
	suites := map[string]uint16{}
	for _, suite := range tls.CipherSuites() {
		suites[suite.Name] = suite.ID
	}
	return s.assign(parseNames(text, suites))
}

func (s *CipherSuites) String() string { return joinNames(s.V, tls.CipherSuiteName) }

// Curves are key exchange mechanisms with their names in Knative. nil means the default of crypto/tls.
type Curves struct{ Value[[]tls.CurveID] }

func (*Curves) allowed() string {
	return "a comma-separated list of X25519MLKEM768, X25519, P-256, CurveP256, P-384, CurveP384, P-521, CurveP521"
}

func (c *Curves) parse(text string) error {
	return c.assign(parseNames(text, map[string]tls.CurveID{
		"X25519MLKEM768": tls.X25519MLKEM768, "X25519": tls.X25519,
		"P-256": tls.CurveP256, "P-384": tls.CurveP384, "P-521": tls.CurveP521,
		"CURVEP256": tls.CurveP256, "CURVEP384": tls.CurveP384, "CURVEP521": tls.CurveP521,
	}))
}

func (c *Curves) String() string { return joinNames(c.V, tls.CurveID.String) }

// ProbeArray reports whether the value of the probes is an array.
type ProbeArray struct{ Bool }

// String returns "true" if the value is true or if the number of probes requires an array.
func (p *ProbeArray) String() string {
	c := p.field.config
	return strconv.FormatBool(p.V || len(c.Probes.V) > 1 || len(c.Probes.V) == 0 && !c.OnKnative.V)
}

// Probes are the readiness probes of the user container, which must all succeed. Without a probe, the
// user container is always ready. Each error of parse names a field of a probe and the allowed values.
type Probes struct{ Value[[]probe.Probe] }

func (p *Probes) allowed() string {
	return "a Kubernetes core/v1 Probe in JSON, or an array of probes if " + p.field.config.ProbeArray.Name() + "=true"
}

// parse needs the value of ProbeArray, which is declared before Probes and decoded first.
func (p *Probes) parse(text string) error {
	array := &p.field.config.ProbeArray
	if !array.V && strings.HasPrefix(strings.TrimSpace(text), "[") {
		return errors.Join(fmt.Errorf("an array of probes requires %s=true", array.Name()))
	}
	found, errs := probe.Parse(text, array.V)
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return p.assign(found, nil)
}

func (p *Probes) String() string { return p.encode(p.V) }

// shown returns the probes without the values of header fields.
func (p *Probes) shown() string {
	shown := slices.Clone(p.V)
	for i, q := range shown {
		if q.HTTPGet == nil {
			continue
		}
		get := *q.HTTPGet
		get.HTTPHeaders = slices.Clone(get.HTTPHeaders)
		for j := range get.HTTPHeaders {
			get.HTTPHeaders[j].Value = hidden
		}
		shown[i].HTTPGet = &get
	}
	return p.encode(shown)
}

// encode returns one probe, or an array, as JSON without spaces and in a fixed order.
func (p *Probes) encode(all []probe.Probe) string {
	switch {
	case p.field.config.ProbeArray.String() == "true":
		return message.CompactJSON(append([]probe.Probe{}, all...))
	case len(all) == 0:
		return ""
	}
	return message.CompactJSON(all[0])
}
