package observation

import (
	"strings"
)

// A LimitReason is the reason for a limit. It is a word with hyphens, for programs.
type LimitReason string

// Words returns the reason as shown to users.
func (r LimitReason) Words() string { return strings.ReplaceAll(string(r), "-", " ") }

// The reasons.
const (
	LimitStarting  LimitReason = "starting"      // the first limits are tried
	LimitGrowing   LimitReason = "growing"       // the goodput grew with the limit
	LimitAppTime   LimitReason = "app-time-rose" // the application time grew with the limit, and the goodput did not
	LimitSteady    LimitReason = "steady"        // neither a higher nor a lower limit is better
	LimitMeasuring LimitReason = "measuring"     // a candidate is in force
	LimitErrors    LimitReason = "errors"        // most responses are errors, or a higher limit causes errors
	LimitNoAnswers LimitReason = "no-answers"    // requests are queued, and the application does not respond
	LimitCeiling   LimitReason = "ceiling"       // the limit cannot be higher
	LimitFloor     LimitReason = "floor"         // the limit cannot be lower
	LimitIdle      LimitReason = "idle"          // the limit is not reached
)

// A LimitState describes the decisions of a [Limiter].
type LimitState struct {
	Limit   int // in force
	Base    int // the best limit so far; the limit in force differs while a candidate is measured
	Reason  LimitReason
	Settled int    // Base if it was compared with a lower and a higher limit, which are worse; otherwise 0
	Missing string // if Settled is 0, the comparison that is missing
}
