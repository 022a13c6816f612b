package config

// Environ is the way back: the variables, always in the same order, that [Read] and
// [Load] read to the same settings in an otherwise empty environment. Variables that
// would say what an unset one says are left out.
//
// c must hold values that Load could have read.
func Environ(c *Config) []EnvVar {
	var environ []EnvVar
	serving := false
	bound, unset := *c, Default().fields()
	for i, f := range bound.fields() {
		otherwise := unset[i].String()
		if f.tag.Get("derived") != "" {
			otherwise = bound.ifUnset(i)
		}
		// That Knative started us is said by the other variables, if they can.
		if f.String() == otherwise || f.setting == &bound.OnKnative {
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

// ifUnset is what a setting would say if it were unset and all others as they are.
func (c *Config) ifUnset(i int) string {
	other := *c
	fields := other.fields()
	for _, f := range fields {
		f.at().from = f.name
	}
	fields[i].at().from = ""
	other.derive()
	return fields[i].String()
}
