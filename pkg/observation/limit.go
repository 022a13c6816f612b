package observation

import (
	"strings"
)

// A LimitReason is the reason why a limit was chosen. It consists of lower-case words with hyphens.
type LimitReason string

// Words returns the reason with spaces instead of hyphens, as shown to users.
func (r LimitReason) Words() string { return strings.ReplaceAll(string(r), "-", " ") }

// Values of LimitReason.
const (
	LimitStarting  LimitReason = "starting"      // the first limits are tried
	LimitGrowing   LimitReason = "growing"       // the goodput grew with the limit
	LimitAppTime   LimitReason = "app-time-rose" // the application time grew with the limit, but the goodput did not
	LimitSteady    LimitReason = "steady"        // neither a higher nor a lower limit is better
	LimitMeasuring LimitReason = "measuring"     // a candidate is in force
	LimitErrors    LimitReason = "errors"        // most responses are errors, or a higher limit causes errors
	LimitNoAnswers LimitReason = "no-answers"    // requests are queued, and the application does not respond
	LimitCeiling   LimitReason = "ceiling"       // the limit cannot be higher
	LimitFloor     LimitReason = "floor"         // the limit cannot be lower
	LimitIdle      LimitReason = "idle"          // the limit is not reached
)

// A LimitState describes the state of an adaptive limit.
type LimitState struct {
	Limit   int         `json:"-"`    // the limit in force
	Base    int         `json:"base"` // the best limit so far; Limit differs from Base while another limit is measured
	Reason  LimitReason `json:"reason"`
	Settled int         `json:"settled,omitempty"` // Base if it can be recommended as a fixed limit; otherwise 0
	Missing string      `json:"missing,omitempty"` // reason why Settled is 0; otherwise empty
}
