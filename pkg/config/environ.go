package config

import "sync"

// Environ returns the variables for the settings of c in a fixed order. In an environment that contains
// only these variables, [Read] and [Load] return the settings of c. Environ omits a variable if the
// setting would have the same value without it.
//
// Each value of c must be a value that Load can return.
func Environ(c *Config) []EnvVar {
	var environ []EnvVar
	serving := false
	other := *c
	fields := other.fields() // called only once, because this is expensive
	bound, defaults := other, defaultValues()
	onKnative := other.OnKnative.Name()
	for i, f := range fields {
		value, defaultValue := f.String(), defaults[i]
		if f.tag.Get("derived") != "" {
			defaultValue = other.valueIfUnset(fields, i)
			other = bound
		}
		// OnKnative is added below only if it cannot be derived from the other variables.
		if value == defaultValue || f.name == onKnative {
			continue
		}
		environ = append(environ, EnvVar{f.name, value})
		serving = serving || isServing(f.name)
	}
	if c.OnKnative.V != serving {
		environ = append(environ, EnvVar{onKnative, bound.OnKnative.String()})
	}
	return environ
}

// defaultValues returns the values of [Default] in the order of the fields. It computes them only once.
var defaultValues = sync.OnceValue(func() []string {
	var all []string
	for _, f := range Default().fields() {
		all = append(all, f.String())
	}
	return all
})

// valueIfUnset returns the value of setting i if this setting is unset and all other settings are set to
// their current values. It modifies c. fields are the fields of c.
func (c *Config) valueIfUnset(fields []*field, i int) string {
	for _, f := range fields {
		f.at().from = f.name
	}
	fields[i].at().from = ""
	c.derive()
	return fields[i].String()
}
