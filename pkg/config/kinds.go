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

// A kind reads one value of a Config from text and writes it back. Each function
// below makes one, bound to the value.
type kind struct {
	allowed string                  // what may be written, for people
	decode  func(text string) error // text is not empty; on an error the value is as it was
	encode  func() string           // what decode reads to the same value; "" where only an unset variable does
	show    func() string           // encode without secrets; nil when that is encode
}

// errNotAllowed says that a text is not what its kind allows.
var errNotAllowed = errors.New("not allowed")

// errServiceLink says that a text was written by the kubelet for a Service of that
// name (a Service called "metrics" sets METRICS_PORT in every pod that starts after
// it) and was never meant for us.
var errServiceLink = errors.New("a Kubernetes service link")

// longest bounds every duration, so that a point in time plus a few of them still
// fits in 64 bits of nanoseconds.
const longest = 100 * 365 * 24 * time.Hour

func port(to *int) kind {
	return kind{
		allowed: "a port, 1 to 65535",
		decode: func(text string) error {
			if isLinkValue(text) {
				return errServiceLink
			}
			return decodeNumber(text, to, 1, math.MaxUint16)
		},
		encode: func() string { return strconv.Itoa(*to) },
	}
}

// number reads integers as Knative does: decimal, 0x, 0o, 0b and 0 prefixes.
func number[T int | int64](to *T, low, high T) kind {
	allowed := fmt.Sprintf("a whole number, %d to %d", low, high)
	if int64(high) == math.MaxInt64 {
		allowed = fmt.Sprintf("a whole number, %d or more", low)
	}
	return kind{
		allowed: allowed,
		decode:  func(text string) error { return decodeNumber(text, to, low, high) },
		encode:  func() string { return strconv.FormatInt(int64(*to), 10) },
	}
}

func decodeNumber[T int | int64](text string, to *T, low, high T) error {
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil || n < int64(low) || n > int64(high) {
		return errNotAllowed
	}
	*to = T(n)
	return nil
}

// duration reads a duration in Go's way, with its unit.
func duration(to *time.Duration, low time.Duration) kind {
	allowed := "a duration such as 30s or 250ms"
	if low > 0 {
		allowed += ", " + low.String() + " or more"
	}
	return kind{
		allowed: allowed,
		decode: func(text string) error {
			d, err := time.ParseDuration(text)
			if err != nil || d < low || d > longest {
				return errNotAllowed
			}
			*to = d
			return nil
		},
		encode: func() string { return to.String() },
	}
}

// plain reads a duration that Knative or OpenTelemetry writes as a whole number of
// units; with a unit of its own it may also be written in Go's way.
func plain(to *time.Duration, unit time.Duration, units string) kind {
	withUnit := duration(to, 0)
	return kind{
		allowed: "whole " + units + ", or " + withUnit.allowed + "; 0 is off",
		decode: func(text string) error {
			n, err := strconv.ParseInt(text, 0, 64)
			if err != nil {
				return withUnit.decode(text)
			}
			if n < 0 || n > int64(longest/unit) {
				return errNotAllowed
			}
			*to = time.Duration(n) * unit
			return nil
		},
		encode: func() string {
			if *to%unit == 0 {
				return strconv.FormatInt(int64(*to/unit), 10)
			}
			return to.String()
		},
	}
}

func seconds(to *time.Duration) kind      { return plain(to, time.Second, "seconds") }
func milliseconds(to *time.Duration) kind { return plain(to, time.Millisecond, "milliseconds") }

func boolean(to *bool) kind {
	return kind{
		allowed: "true or false",
		decode: func(text string) error {
			b, err := strconv.ParseBool(text)
			if err != nil {
				return errNotAllowed
			}
			*to = b
			return nil
		},
		encode: func() string { return strconv.FormatBool(*to) },
	}
}

// fraction reads a number between 0 and 1.
func fraction(to *float64) kind {
	return kind{
		allowed: "a number, 0 to 1",
		decode: func(text string) error {
			f, err := strconv.ParseFloat(text, 64)
			if err != nil || math.IsNaN(f) || f < 0 || f > 1 {
				return errNotAllowed
			}
			*to = f
			return nil
		},
		encode: func() string { return strconv.FormatFloat(*to, 'g', -1, 64) },
	}
}

// text reads anything.
func text(to *string) kind {
	return kind{
		allowed: "text",
		decode:  func(text string) error { *to = text; return nil },
		encode:  func() string { return *to },
	}
}

// endpoint reads anything, and hides what may be a secret in a URL.
func endpoint(to *string) kind {
	k := text(to)
	k.show = func() string { return safeEndpoint(*to) }
	return k
}

// object reads a JSON object and keeps its text. What is not one counts as an empty
// one, because it says all the same that somebody sent it.
func object(to *string) kind {
	return kind{
		allowed: "a JSON object",
		decode: func(text string) error {
			var members map[string]json.RawMessage
			if json.Unmarshal([]byte(text), &members) != nil || members == nil {
				*to = "{}"
				return errNotAllowed
			}
			*to = text
			return nil
		},
		encode: func() string { return *to },
	}
}

// A name is one way of spelling a value. Of several names for one value the first
// is written.
type name[T any] struct {
	text  string
	value T
}

// words are names that stand for themselves.
func words[T ~string](values ...T) []name[T] {
	var names []name[T]
	for _, v := range values {
		names = append(names, name[T]{string(v), v})
	}
	return names
}

// oneOf reads one name out of a few, without regard to case.
func oneOf[T comparable](to *T, names []name[T]) kind {
	return kind{
		allowed: "one of " + spell(names),
		decode: func(text string) error {
			v, err := lookUp(names, text)
			if err == nil {
				*to = v
			}
			return err
		},
		encode: func() string { return nameOf(names, *to) },
	}
}

// engine reads the name of one, and what FAST_LANE said: true or false.
func engine(to *Engine) kind {
	k := oneOf(to, words(OwnEngine, NetHTTP))
	byName := k.decode
	k.decode = func(text string) error {
		switch own, err := strconv.ParseBool(text); {
		case err != nil:
			return byName(text)
		case own:
			*to = OwnEngine
		default:
			*to = NetHTTP
		}
		return nil
	}
	return k
}

// someOf reads a comma list of names, which are called what.
func someOf[T comparable](to *[]T, what string, names []name[T]) kind {
	return kind{
		allowed: "a comma list of " + what,
		decode: func(text string) error {
			var values []T
			for _, item := range split(text) {
				v, err := lookUp(names, item)
				if err != nil {
					return err
				}
				values = append(values, v)
			}
			*to = values
			return nil
		},
		encode: func() string {
			var texts []string
			for _, v := range *to {
				texts = append(texts, nameOf(names, v))
			}
			return strings.Join(texts, ",")
		},
	}
}

func lookUp[T any](names []name[T], text string) (T, error) {
	for _, n := range names {
		if strings.EqualFold(n.text, text) {
			return n.value, nil
		}
	}
	var none T
	return none, errNotAllowed
}

func nameOf[T comparable](names []name[T], value T) string {
	for _, n := range names {
		if n.value == value {
			return n.text
		}
	}
	return ""
}

func spell[T any](names []name[T]) string {
	var texts []string
	for _, n := range names {
		texts = append(texts, n.text)
	}
	return strings.Join(texts, ", ")
}

// list reads a comma list whose items all fulfil ok.
func list(to *[]string, allowed string, ok func(item string) bool) kind {
	return kind{
		allowed: allowed,
		decode: func(text string) error {
			items := split(text)
			for _, item := range items {
				if !ok(item) {
					return errNotAllowed
				}
			}
			*to = items
			return nil
		},
		encode: func() string { return strings.Join(*to, ",") },
	}
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

// paths reads what Config.ExcludePaths holds.
func paths(to *[]string) kind {
	return list(to, "a comma list of paths that begin with /; a * may stand at the end", func(item string) bool {
		return item[0] == '/' && !strings.Contains(strings.TrimSuffix(item, "*"), "*")
	})
}

// agents reads what Config.ExcludeUserAgents holds. They are prefixes already, so a
// star would be a letter, which nobody means.
func agents(to *[]string) kind {
	return list(to, "a comma list of beginnings of User-Agent, without *", func(item string) bool {
		return !strings.Contains(item, "*")
	})
}

// anything is a list of which nothing is known.
func anything(to *[]string) kind {
	return list(to, "a comma list", func(string) bool { return true })
}

// suites reads cipher suites by the names that crypto/tls gives to those that it
// holds to be secure.
func suites(to *[]uint16) kind {
	var names []name[uint16]
	for _, s := range tls.CipherSuites() {
		names = append(names, name[uint16]{s.Name, s.ID})
	}
	return someOf(to, "Go's names of secure cipher suites, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", names)
}

// curves reads key exchanges, in both of Knative's spellings.
func curves(to *[]tls.CurveID) kind {
	names := []name[tls.CurveID]{
		{"X25519MLKEM768", tls.X25519MLKEM768},
		{"X25519", tls.X25519},
		{"P-256", tls.CurveP256}, {"CurveP256", tls.CurveP256},
		{"P-384", tls.CurveP384}, {"CurveP384", tls.CurveP384},
		{"P-521", tls.CurveP521}, {"CurveP521", tls.CurveP521},
	}
	return someOf(to, spell(names), names)
}

// tlsVersions are the versions that Knative accepts. Older ones are broken
// (RFC 8996).
func tlsVersions() []name[uint16] {
	return []name[uint16]{{"1.2", tls.VersionTLS12}, {"1.3", tls.VersionTLS13}}
}

// probes reads Config.Probes. Each of its errors names a field of the probe and says
// itself what is allowed there.
func probes(c *Config) kind {
	return kind{
		allowed: "a Kubernetes core/v1 Probe as JSON; an array of them with " + multiName + "=true",
		decode: func(text string) error {
			found, errs := probe.Parse(text, c.probeArray)
			if len(errs) > 0 {
				return errors.Join(errs...)
			}
			c.Probes = found
			return nil
		},
		encode: func() string { return encodeProbes(c.Probes, c.inArray()) },
		show: func() string {
			shown := slices.Clone(c.Probes)
			for i, p := range shown {
				if p.HTTPGet == nil {
					continue
				}
				ask := *p.HTTPGet
				ask.HTTPHeaders = slices.Clone(ask.HTTPHeaders)
				for j := range ask.HTTPHeaders {
					ask.HTTPHeaders[j].Value = hidden
				}
				shown[i].HTTPGet = &ask
			}
			return encodeProbes(shown, c.inArray())
		},
	}
}

// probeArray reads whether the text of the probes is an array. It is one too where
// nothing else can say how many there are.
func probeArray(c *Config) kind {
	k := boolean(&c.probeArray)
	k.encode = func() string { return strconv.FormatBool(c.inArray()) }
	return k
}

// inArray reports whether the probes must be written as an array.
func (c *Config) inArray() bool {
	return c.probeArray || len(c.Probes) > 1 || len(c.Probes) == 0 && !c.OnKnative
}

// encodeProbes writes one probe, or an array of any number, without blanks and with
// the keys in their fixed order.
func encodeProbes(all []probe.Probe, array bool) string {
	var what any = all
	switch {
	case array && all == nil:
		what = []probe.Probe{}
	case !array && len(all) == 0:
		return ""
	case !array:
		what = all[0]
	}
	return encode(what)
}

// encode writes text and numbers, and what is made of them, as JSON.
func encode(what any) string {
	var written strings.Builder
	e := json.NewEncoder(&written)
	e.SetEscapeHTML(false)
	if err := e.Encode(what); err != nil {
		panic("config: a value that JSON cannot hold: " + err.Error())
	}
	return strings.TrimSuffix(written.String(), "\n")
}

// quote makes a value fit for a line of an error.
func quote(text string) string {
	const enough = 120 // bytes: a path, an endpoint, the beginning of a template
	text = safe(text)
	if len(text) > enough {
		return strconv.Quote(strings.ToValidUTF8(text[:enough], "")) + "..."
	}
	return strconv.Quote(text)
}
