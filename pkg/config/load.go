package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/kelseyhightower/envconfig"
)

// An EnvVar is one variable of an environment.
type EnvVar struct{ Name, Value string }

// Load reads the environment of this process. The error has a line for each value
// that is not allowed: the variable, the value in quotes, and what is allowed.
// [Config.Warnings] also says when there is nothing in the certificate directory that
// somebody has named; the files are not looked at otherwise.
func Load() (*Config, error) {
	var environ []EnvVar
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		environ = append(environ, EnvVar{name, value})
	}
	in := newReading(environ)
	if err := envconfig.Process("", in.c); err != nil {
		return nil, err
	}
	in.ownFiles = true
	return in.finish()
}

// Read reads a given environment by the rules of [Load]. Of a name that stands there
// twice the last value counts, as in a pod.
func Read(environ []EnvVar) (*Config, error) {
	in := newReading(environ)
	for _, f := range in.fields {
		f.text = in.values[f.name]
	}
	return in.finish()
}

// Default is what an empty environment says.
func Default() *Config {
	c, err := Read(nil)
	if err != nil {
		panic("config: a default that is not allowed: " + err.Error())
	}
	return c
}

// A reading is a Config on its way out of an environment.
type reading struct {
	c        *Config
	sections []section
	fields   []*field          // of the sections: those that have an effect
	values   map[string]string // of the environment
	ownFiles bool              // the files that the environment names are this process's
	problems []string
}

// newReading returns a Config of defaults, ready for decoding.
func newReading(environ []EnvVar) *reading {
	in := &reading{c: new(Config), values: map[string]string{}}
	for _, v := range environ {
		in.values[v.Name] = v.Value
	}
	in.sections = in.c.sections()
	in.fields = effective(in.sections)
	for _, f := range in.fields {
		if text := f.tag.Get("default"); text != "" && f.parse(text) != nil {
			panic("config: " + f.name + ": a default that is not allowed: " + text)
		}
	}
	return in
}

// take reads one variable, and keeps what is wrong. Empty is unset, and of several names
// for one setting the first that is set counts.
func (in *reading) take(f *field, name, text string) {
	o := f.at()
	if in.values[name] == "" || o.from != "" || f.bad { // envconfig passes defaults too
		return
	}
	if isServing(name) {
		in.c.serving = true
	}
	if isDockerLink(name, text) {
		in.warn("%s: %s: a Kubernetes service link, not a setting; it is ignored", name, quote(text))
		return
	}
	var several remarks
	switch err := f.parse(text); {
	case err == nil:
		o.from = name
	case f.soft && errors.As(err, &several):
		o.from = name
		for _, r := range several {
			in.warn("%s: %s", name, r)
		}
	case f.soft && errors.Is(err, errNotAllowed):
		in.warn("%s; its default is used", complain(f, name, text, err)[0])
	case f.soft:
		in.warn("%s: %v", name, err)
	default:
		f.bad = true
		in.problems = append(in.problems, complain(f, name, text, err)...)
	}
}

// finish reads all variables, works out what depends on other settings, and validates
// the whole.
func (in *reading) finish() (*Config, error) {
	for _, f := range in.fields {
		in.take(f, f.name, f.text)
		f.text = ""
		for _, name := range split(f.also) {
			in.take(f, name, in.values[name])
		}
	}
	in.warnOfMisspelt()
	in.c.derive()
	in.validate()
	if len(in.problems) > 0 {
		return nil, errors.New(strings.Join(in.problems, "\n"))
	}
	return in.c, nil
}

func (in *reading) warn(format string, args ...any) {
	in.c.warnings = append(in.c.warnings, fmt.Sprintf(format, args...))
}

func (in *reading) problem(format string, args ...any) {
	in.problems = append(in.problems, fmt.Sprintf(format, args...))
}

// complain says what is wrong with a value, in one line or, where its type knows of
// several things, in several.
func complain(f *field, name, text string, err error) []string {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) {
		var lines []string
		for _, e := range several.Unwrap() {
			lines = append(lines, name+": "+e.Error())
		}
		return lines
	}
	shown := quote(text)
	if f.tag.Get("hide") == hideAll {
		shown = hidden
	}
	return []string{name + ": " + shown + ": " + f.allowed()}
}

// A section is a group of settings with one subject.
type section struct {
	title, note string
	fields      []*field
}

// A field is a setting of a Config with its tags.
type field struct {
	setting // nil: the variable is accepted and has no effect
	config  *Config
	name    string
	tag     reflect.StructTag
	also    string // other names, in the order in which they count
	soft    bool   // a bad value falls back to the default with a warning (docs/promises.md 3.9)
	bad     bool   // what was written is not allowed
	text    string // what the environment has, or the default, until it is read
}

// names are all the names by which the variable is read, the first first.
func (f *field) names() []string { return append([]string{f.name}, split(f.also)...) }

// sections are the settings of c, those without effect too.
func (c *Config) sections() []section {
	var sections []section
	for t, v := range reflect.ValueOf(c).Elem().Fields() {
		if title := t.Tag.Get("section"); title != "" {
			sections = append(sections, section{title, t.Tag.Get("note"), c.fieldsOf(v, t.Tag.Get("soft") == "true")})
		}
	}
	return sections
}

func (c *Config) fieldsOf(of reflect.Value, soft bool) []*field {
	var fields []*field
	for t, v := range of.Fields() {
		if t.Anonymous {
			fields = append(fields, c.fieldsOf(v, soft)...)
			continue
		}
		f := &field{config: c, name: t.Tag.Get("envconfig"), also: t.Tag.Get("also"), tag: t.Tag, soft: soft}
		if t.Name != "_" {
			f.setting = v.Addr().Interface().(setting)
			f.at().field = f
		}
		fields = append(fields, f)
	}
	return fields
}

// fields are the settings of c that have an effect, in their order.
func (c *Config) fields() []*field { return effective(c.sections()) }

func effective(sections []section) []*field {
	var fields []*field
	for _, s := range sections {
		fields = append(fields, s.fields...)
	}
	return slices.DeleteFunc(fields, func(f *field) bool { return f.setting == nil })
}
