package config

// Environ is the way back: the variables, always in the same order, that [Read] and
// [Load] read to the same settings in an otherwise empty environment. Variables that
// would say what an unset one says are left out.
//
// c must hold values that Load could have read.
func Environ(c *Config) []EnvVar {
	var environ []EnvVar
	serving := false
	_, unset := defaults()
	other := new(Config)
	derived := rowsOf(table(other))
	for i, r := range rowsOf(table(c)) {
		value, otherwise := r.encode(), unset[i].encode()
		if r.derive != nil {
			// What it says when it is unset and all others are as they are.
			*other = *c
			derived[i].derive()
			otherwise = derived[i].encode()
		}
		// That Knative started us is said by the other variables, if they can.
		if value == otherwise || r.name == knativeName {
			continue
		}
		environ = append(environ, EnvVar{r.name, value})
		serving = serving || isServing(r.name)
	}
	if c.OnKnative != serving {
		environ = append(environ, EnvVar{knativeName, boolean(&c.OnKnative).encode()})
	}
	return environ
}
