package config

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/probe"
)

// A Value is one setting: what is in force, and where it comes from.
type Value[T any] struct {
	V T
	origin
}

// String is what the variable would hold; "" where only an unset variable means V.
func (v *Value[T]) String() string { return fmt.Sprint(v.V) }

// set takes what was read, unless that was an error.
func (v *Value[T]) set(to T, err error) error {
	if err != nil {
		return errNotAllowed
	}
	v.V = to
	return nil
}

// derive takes what follows from other settings, unless this one was set.
func (v *Value[T]) derive(to T) {
	if v.unset() {
		v.V = to
	}
}

// An origin says where a value comes from.
//
// It is small, because envconfig copies each value, and each section of them, several
// times.
type origin struct {
	field *field // which of the Config, or of the one that it was copied from; nil: of none yet
	from  string // the variable that it was read from; "": from none
}

// Name is the variable.
func (o *origin) Name() string { return o.field.name }

// bad reports whether what was written is not allowed.
func (o *origin) bad() bool { return o.field.bad }

// Decode is how envconfig passes what the environment has. It returns no error, because
// envconfig stops at the first: see reading.finish.
func (o *origin) Decode(text string) error {
	o.field.text = text
	return nil
}

func (o *origin) at() *origin { return o }
func (o *origin) unset() bool { return o.from == "" }

// A setting is what all types of values can do.
type setting interface {
	at() *origin
	Name() string
	String() string
	allowed() string         // what may be written, for people
	parse(text string) error // text is not empty; on an error the value is as it was, but for remarks
}

// errNotAllowed says that a text is not what its type allows.
var errNotAllowed = errors.New("not allowed")

// remarks say what is left out of a value that is used all the same.
type remarks []string

func (r remarks) Error() string { return strings.Join(r, "; ") }

// longest bounds every duration, so that a point in time plus a few of them still
// fits in 64 bits of nanoseconds.
const longest = 100 * 365 * 24 * time.Hour

// Port is one on which we or the user container listen, 1 to 65535.
type Port struct{ Value[int] }

func (*Port) allowed() string { return "a port, 1 to 65535" }

func (p *Port) parse(text string) error {
	return p.set(parseNumber(text, 1, math.MaxUint16))
}

// Number is a whole number. It is read as Knative does: decimal, 0x, 0o, 0b and 0
// prefixes.
type Number[T int | int64] struct{ Value[T] }

func (n *Number[T]) bound(tag string) T {
	bound, err := strconv.ParseInt(n.field.tag.Get(tag), 10, 64)
	if err != nil {
		panic("config: " + n.Name() + ": a bad bound: " + err.Error())
	}
	return T(bound)
}

func (n *Number[T]) allowed() string {
	if high := n.bound("max"); int64(high) != math.MaxInt64 {
		return fmt.Sprintf("a whole number, %d to %d", n.bound("min"), high)
	}
	return fmt.Sprintf("a whole number, %d or more", n.bound("min"))
}

func (n *Number[T]) parse(text string) error {
	return n.set(parseNumber(text, n.bound("min"), n.bound("max")))
}

func parseNumber[T int | int64](text string, low, high T) (T, error) {
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil || n < int64(low) || n > int64(high) {
		return 0, errNotAllowed
	}
	return T(n), nil
}

// Duration is written in Go's way, with its unit. One with a unit of its own, as
// Knative and OpenTelemetry have them, may also be a whole number.
type Duration struct{ Value[time.Duration] }

// unit returns 0 where there is none.
func (d *Duration) unit() time.Duration {
	return map[string]time.Duration{"seconds": time.Second, "milliseconds": time.Millisecond}[d.field.tag.Get("unit")]
}

func (d *Duration) allowed() string {
	const written = "a duration such as 30s or 250ms"
	if d.unit() != 0 {
		return "whole " + d.field.tag.Get("unit") + ", or " + written + "; 0 is off"
	}
	if least := d.field.tag.Get("min"); least != "" {
		return written + ", " + least + " or more"
	}
	return written
}

func (d *Duration) parse(text string) error {
	if unit := d.unit(); unit != 0 {
		if n, err := strconv.ParseInt(text, 0, 64); err == nil {
			if n < 0 || n > int64(longest/unit) {
				return errNotAllowed
			}
			return d.set(time.Duration(n)*unit, nil)
		}
	}
	least, _ := time.ParseDuration(d.field.tag.Get("min")) // 0 where there is none
	v, err := time.ParseDuration(text)
	if err != nil || v < least || v > longest {
		return errNotAllowed
	}
	return d.set(v, nil)
}

func (d *Duration) String() string {
	if unit := d.unit(); unit != 0 && d.V%unit == 0 {
		return strconv.FormatInt(int64(d.V/unit), 10)
	}
	return d.V.String()
}

// Bool is true or false.
type Bool struct{ Value[bool] }

func (*Bool) allowed() string { return "true or false" }

func (b *Bool) parse(text string) error { return b.set(strconv.ParseBool(text)) }

// Fraction is a number between 0 and 1.
type Fraction struct{ Value[float64] }

func (*Fraction) allowed() string { return "a number, 0 to 1" }

func (f *Fraction) parse(text string) error { return f.set(parseFraction(text)) }

func parseFraction(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return 0, errNotAllowed
	}
	return f, nil
}

// Text is anything.
type Text struct{ Value[string] }

func (*Text) allowed() string           { return "text" }
func (t *Text) parse(text string) error { return t.set(text, nil) }

// Choice is one of a few words, without regard to case.
type Choice[T ~string] struct{ Value[T] }

func (c *Choice[T]) words() []string { return strings.Split(c.field.tag.Get("oneof"), ",") }
func (c *Choice[T]) allowed() string { return "one of " + strings.Join(c.words(), ", ") }

func (c *Choice[T]) parse(text string) error {
	for _, word := range c.words() {
		if strings.EqualFold(word, text) {
			return c.set(T(word), nil)
		}
	}
	return errNotAllowed
}

// split cuts a comma list into its items, without blanks around them and without
// empty ones. Nothing is nil.
func split(text string) []string {
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// list is a comma list of texts.
type list struct{ Value[[]string] }

func (l *list) String() string { return strings.Join(l.V, ",") }

func (l *list) parseUnless(text string, bad func(item string) bool) error {
	items := split(text)
	if slices.ContainsFunc(items, bad) {
		return errNotAllowed
	}
	return l.set(items, nil)
}

// Paths are exact, or prefixes that end in *.
type Paths struct{ list }

func (*Paths) allowed() string {
	return "a comma list of paths that begin with /; a * may stand at the end"
}

func (p *Paths) parse(text string) error {
	return p.parseUnless(text, func(item string) bool {
		return item[0] != '/' || strings.Contains(strings.TrimSuffix(item, "*"), "*")
	})
}

// Prefixes are beginnings of User-Agent. A star would be a letter there, which nobody
// means.
type Prefixes struct{ list }

func (*Prefixes) allowed() string { return "a comma list of beginnings of User-Agent, without *" }

func (p *Prefixes) parse(text string) error {
	return p.parseUnless(text, func(item string) bool { return strings.Contains(item, "*") })
}

// A name is one way of writing a value. Of several names for one value the first is
// written.
type name[T any] struct {
	text  string
	value T
}

func valueOf[T any](names []name[T], text string) (T, error) {
	for _, n := range names {
		if strings.EqualFold(n.text, text) {
			return n.value, nil
		}
	}
	var none T
	return none, errNotAllowed
}

func valuesOf[T any](names []name[T], text string) ([]T, error) {
	var values []T
	for _, item := range split(text) {
		v, err := valueOf(names, item)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

func textOf[T comparable](names []name[T], values ...T) string {
	var texts []string
	for _, v := range values {
		if i := slices.IndexFunc(names, func(n name[T]) bool { return n.value == v }); i >= 0 {
			texts = append(texts, names[i].text)
		}
	}
	return strings.Join(texts, ",")
}

// TLSVersion is one that Knative accepts; 0: unset. Older ones are broken (RFC 8996).
type TLSVersion struct{ Value[uint16] }

func tlsVersions() []name[uint16] {
	return []name[uint16]{{"1.2", tls.VersionTLS12}, {"1.3", tls.VersionTLS13}}
}

func (*TLSVersion) allowed() string           { return "one of 1.2, 1.3" }
func (v *TLSVersion) parse(text string) error { return v.set(valueOf(tlsVersions(), text)) }
func (v *TLSVersion) String() string          { return textOf(tlsVersions(), v.V) }

// CipherSuites are those that crypto/tls holds to be secure, by its names; nil: its
// choice.
type CipherSuites struct{ Value[[]uint16] }

func suites() []name[uint16] {
	var names []name[uint16]
	for _, s := range tls.CipherSuites() {
		names = append(names, name[uint16]{s.Name, s.ID})
	}
	return names
}

func (*CipherSuites) allowed() string {
	return "a comma list of Go's names of secure cipher suites, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
}
func (s *CipherSuites) parse(text string) error { return s.set(valuesOf(suites(), text)) }
func (s *CipherSuites) String() string          { return textOf(suites(), s.V...) }

// Curves are key exchanges, in both of Knative's spellings; nil: crypto/tls's choice.
type Curves struct{ Value[[]tls.CurveID] }

func curves() []name[tls.CurveID] {
	return []name[tls.CurveID]{
		{"X25519MLKEM768", tls.X25519MLKEM768},
		{"X25519", tls.X25519},
		{"P-256", tls.CurveP256}, {"CurveP256", tls.CurveP256},
		{"P-384", tls.CurveP384}, {"CurveP384", tls.CurveP384},
		{"P-521", tls.CurveP521}, {"CurveP521", tls.CurveP521},
	}
}

func (*Curves) allowed() string {
	var texts []string
	for _, n := range curves() {
		texts = append(texts, n.text)
	}
	return "a comma list of " + strings.Join(texts, ", ")
}
func (c *Curves) parse(text string) error { return c.set(valuesOf(curves(), text)) }
func (c *Curves) String() string          { return textOf(curves(), c.V...) }

// ProbeArray says whether the text of the probes is an array. It is one too where
// nothing else can say how many there are.
type ProbeArray struct{ Bool }

func (p *ProbeArray) String() string {
	c := p.field.config
	return strconv.FormatBool(p.V || len(c.Probes.V) > 1 || len(c.Probes.V) == 0 && !c.OnKnative.V)
}

// Probes are all those that must pass; none: always ready. Each of its errors names a
// field of the probe and says itself what is allowed there.
type Probes struct{ Value[[]probe.Probe] }

func (p *Probes) allowed() string {
	return "a Kubernetes core/v1 Probe as JSON; an array of them with " + p.field.config.ProbeArray.Name() + "=true"
}

func (p *Probes) parse(text string) error {
	found, errs := probe.Parse(text, p.field.config.ProbeArray.V)
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return p.set(found, nil)
}

func (p *Probes) String() string { return p.encode(p.V) }

// shown hides the values of header fields.
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

// encode writes one probe, or an array of any number, without blanks and with the
// keys in their fixed order.
func (p *Probes) encode(all []probe.Probe) string {
	switch {
	case p.field.config.ProbeArray.String() == "true":
		return encodeJSON(append([]probe.Probe{}, all...))
	case len(all) == 0:
		return ""
	}
	return encodeJSON(all[0])
}

// encodeJSON writes text and numbers, and what is made of them, as JSON.
func encodeJSON(what any) string {
	var written strings.Builder
	e := json.NewEncoder(&written)
	e.SetEscapeHTML(false)
	if err := e.Encode(what); err != nil {
		panic("config: a value that JSON cannot hold: " + err.Error())
	}
	return strings.TrimSuffix(written.String(), "\n")
}
