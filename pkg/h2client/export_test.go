package h2client

import "time"

// SetSilence changes how long a connection may be silent, and returns what it was.
func SetSilence(d time.Duration) (before time.Duration) {
	before, silence = silence, d
	return before
}
