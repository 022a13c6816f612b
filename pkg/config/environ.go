package config

// Environ returns the variables for the settings of c in a fixed order. In an otherwise empty
// environment, [Read] and [Load] return the same settings for them. A variable is omitted if its value is
// the same when it is unset.
//
// Each value of c must be a value that Load can return.
func Environ(c *Config) []EnvVar {
	var environ []EnvVar
	serving := false
	bound, unset := *c, Default().fields()
	for i, f := range bound.fields() {
		defaultValue := unset[i].String()
		if f.tag.Get("derived") != "" {
			defaultValue = bound.valueIfUnset(i)
		}
		// OnKnative is added below only if it cannot be derived from the other variables.
		if f.String() == defaultValue || f.setting == &bound.OnKnative {
			continue
		}
		environ = append(environ, EnvVar{f.name, f.String()})
		serving = serving || isServing(f.name)
	}
	if c.OnKnative.V != serving {
		environ = append(environ, EnvVar{bound.OnKnative.Name(), bound.OnKnative.String()})
	}
	return environ
}

// valueIfUnset returns the value of setting i if this setting is unset and all other settings are set to
// their current values.
func (c *Config) valueIfUnset(i int) string {
	other := *c
	fields := other.fields()
	for _, f := range fields {
		f.at().from = f.name
	}
	fields[i].at().from = ""
	other.derive()
	return fields[i].String()
}
