package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/kelseyhightower/envconfig"
)

// An EnvVar is an environment variable.
type EnvVar struct{ Name, Value string }

// Load reads the environment of this process. The error contains one line for each value that is not
// allowed, with the variable, the quoted value, and the allowed values. Load does not read the files that
// the settings name.
func Load() (*Config, error) {
	var environ []EnvVar
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		environ = append(environ, EnvVar{name, value})
	}
	in := newReading(environ)
	if err := envconfig.Process("", in.c); err != nil {
		return nil, withoutValue(err)
	}
	in.c.ownFiles = true
	return in.finish()
}

// withoutValue removes the value of the variable, which may be a secret, from an error that envconfig returned.
func withoutValue(err error) error {
	if parse, ok := errors.AsType[*envconfig.ParseError](err); ok {
		return fmt.Errorf("%s: the value cannot be decoded as %s", parse.KeyName, parse.TypeName)
	}
	return errors.New("the settings cannot be decoded from the environment")
}

// Read reads a list of variables in the same way as [Load] reads the environment. If a name occurs
// twice, the last value is used, as in a pod.
func Read(environ []EnvVar) (*Config, error) {
	in := newReading(environ)
	for _, f := range in.fields {
		if err := f.at().Decode(in.values[f.name]); err != nil {
			return nil, err
		}
	}
	return in.finish()
}

// Default returns the settings of an empty environment.
func Default() *Config {
	c, err := Read(nil)
	if err != nil {
		panic("config: invalid defaults: " + err.Error())
	}
	return c
}

// A reading is the state of one call to Read or Load.
type reading struct {
	c        *Config
	fields   []*field
	values   map[string]string // variables of the environment
	problems Errors
}

// newReading returns a reading with the defaults.
func newReading(environ []EnvVar) *reading {
	in := &reading{c: new(Config), values: map[string]string{}}
	for _, v := range environ {
		in.values[v.Name] = v.Value
	}
	in.fields = in.c.fields()
	for _, f := range in.fields {
		if text := f.tag.Get("default"); text != "" && f.parse(text) != nil {
			panic("config: " + f.name + ": invalid default: " + text)
		}
		f.set = in.values[f.name] != ""
	}
	return in
}

// finish reads the other names of the variables, derives the settings that depend on other settings, and
// validates settings that depend on each other.
func (in *reading) finish() (*Config, error) {
	for _, f := range in.fields {
		for _, name := range f.names()[1:] {
			if text := in.values[name]; text != "" && f.at().unset() && f.problems == nil {
				f.decode(name, text)
			}
		}
		in.problems = append(in.problems, f.problems...)
	}
	in.c.derive()
	for _, f := range in.fields {
		for _, problem := range f.replaced { // the default can depend on other settings
			used := cmp.Or(shown(f), "which is unset")
			if used == string(fromDefault) { // a name of metrics
				used = quote(used)
			}
			in.warn("%s; using the default, %s", problem, used)
		}
		in.c.warnings = append(in.c.warnings, f.warnings...)
	}
	in.warnMisspelled()
	in.validate()
	if len(in.problems) > 0 {
		return nil, in.problems
	}
	return in.c, nil
}

func (in *reading) warn(format string, args ...any) {
	in.c.warnings = append(in.c.warnings, fmt.Sprintf(format, args...))
}

func (in *reading) problem(name, format string, args ...any) {
	in.problems = append(in.problems, Error{name, fmt.Sprintf(format, args...)})
}

// An Error is an error in the value of a variable.
type Error struct {
	Variable string
	Problem  string // the quoted value and the values that are allowed
}

func (e Error) Error() string { return e.Variable + ": " + e.Problem }

// Errors contains at least one error. [Load] and [Read] return Errors for values that are not allowed.
type Errors []Error

// Error returns one line for each error.
func (all Errors) Error() string {
	lines := make([]string, len(all))
	for i, e := range all {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// A field is a setting of a Config with its tags, and the messages about its value.
type field struct {
	setting
	config   *Config
	name     string
	tag      reflect.StructTag
	soft     bool     // an invalid value is replaced with the default (docs/promises.md 3.9)
	text     string   // text of the variable that contained the value, or ""
	set      bool     // the environment contains the variable, and it is not empty
	problems Errors   // errors about an invalid value
	replaced []string // errors about a value that is replaced with the default
	warnings []string
}

// names returns all names of the variable in the order in which they are read.
func (f *field) names() []string { return append([]string{f.name}, split(f.tag.Get("also"))...) }

func (f *field) warn(format string, args ...any) {
	f.warnings = append(f.warnings, fmt.Sprintf(format, args...))
}

// decode parses text and sets the value of the setting. name is the variable that contains text. decode
// records an error in f.problems, or in f.warnings if f is soft.
func (f *field) decode(name, text string) {
	if isServing(name) {
		f.config.serving = true
	}
	if isDockerLink(name, text) {
		f.warn("%s: %s: ignored, because Kubernetes set it for the Service %s", name, quote(text), linkedService(name))
		return
	}
	var several interface{ Unwrap() []error } // result of errors.Join
	switch err := f.parse(text); {
	case err == nil:
		f.at().from, f.text = name, text
	case errors.As(err, &several):
		for _, err := range several.Unwrap() {
			f.problems = append(f.problems, Error{name, err.Error()})
		}
	default:
		problem := f.quote(text) + ": must be " + f.allowed()
		if f.soft {
			f.replaced = append(f.replaced, name+": "+problem)
		} else {
			f.problems = Errors{{name, problem}}
		}
	}
}

// quote quotes a value of the setting for a message. It hides the value if the setting may contain a
// secret.
func (f *field) quote(text string) string {
	if _, hides := f.setting.(hider); hides || f.tag.Get("hide") != "" {
		return hidden
	}
	return quote(text)
}

// A fieldType describes a setting in the type Config.
type fieldType struct {
	reflect.StructField

	name string
	soft bool
}

// allFieldTypes returns the settings in the type Config. It computes them only once, because the lookup of
// tags is expensive, and a manifest can contain thousands of pods.
var allFieldTypes = sync.OnceValue(func() []fieldType {
	var fields []fieldType
	for t := range reflect.TypeFor[Config]().Fields() {
		if t.Tag.Get("section") != "" {
			fields = append(fields, fieldTypes(t, t.Tag.Get("soft") == "true")...)
		}
	}
	return fields
})

// fieldTypes returns the settings in a field of a struct. Their Index is relative to this struct.
func fieldTypes(of reflect.StructField, soft bool) []fieldType {
	var fields []fieldType
	for t := range of.Type.Fields() {
		t.Index = slices.Concat(of.Index, t.Index)
		if t.Anonymous {
			fields = append(fields, fieldTypes(t, soft)...)
			continue
		}
		fields = append(fields, fieldType{t, t.Tag.Get("envconfig"), soft})
	}
	return fields
}

// fields returns the settings of c.
func (c *Config) fields() []*field {
	value := reflect.ValueOf(c).Elem()
	fields := make([]*field, len(allFieldTypes()))
	for i, t := range allFieldTypes() {
		f := &field{config: c, name: t.name, tag: t.Tag, soft: t.soft}
		f.setting = value.FieldByIndex(t.Index).Addr().Interface().(setting)
		f.at().field = f
		fields[i] = f
	}
	return fields
}
