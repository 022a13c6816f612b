package observation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A ReadinessPhase is the state of the user container or of one probe.
type ReadinessPhase string

// Values of ReadinessPhase.
const (
	PhaseStarting ReadinessPhase = "starting" // has not been ready since the start of the process
	PhaseReady    ReadinessPhase = "ready"
	PhaseFailing  ReadinessPhase = "failing" // not ready, but has been ready before
)

// Next returns the phase that follows p after a check. ready is the result of the check.
func (p ReadinessPhase) Next(ready bool) ReadinessPhase {
	switch {
	case ready:
		return PhaseReady
	case p == PhaseStarting:
		return PhaseStarting
	}
	return PhaseFailing
}

// Readiness describes the state of a probe.Prober at a point in time. A run of the probes may be in progress.
type Readiness struct {
	At     time.Time        `json:"at"`     // time of the state
	Phase  ReadinessPhase   `json:"phase"`  // PhaseReady if all probes are ready
	Since  time.Time        `json:"since"`  // start time of the phase
	Asking bool             `json:"asking"` // whether a run is in progress
	Askers int              `json:"askers"` // number of callers that wait for the run
	Probes []ProbeReadiness `json:"probes"` // in the order of the probes
}

// ProbeReadiness describes the state of one probe.
type ProbeReadiness struct {
	Index      int            `json:"index"`  // index of the probe, starting at 0
	Kind       string         `json:"kind"`   // httpGet, tcpSocket or grpc
	Target     string         `json:"target"` // address and path
	Aggressive bool           `json:"aggressive"`
	Phase      ReadinessPhase `json:"phase"`
	Since      time.Time      `json:"since"` // start time of the phase
	Tries      int            `json:"tries"` // number of attempts since the start of the process

	// Word, Code and Detail describe why the probe is not ready. Word is "" if Phase is PhaseReady.
	Word   ReadinessWord `json:"word,omitempty"`
	Code   int           `json:"code,omitempty"`   // HTTP, serving or gRPC status for some words; otherwise 0
	Detail string        `json:"detail,omitempty"` // error of the last attempt, up to 4 KiB; it may contain addresses and must not be sent to clients

	// Warning is the warning of the last attempt if it passed with a warning, at most 4 KiB.
	Warning string `json:"warning,omitempty"`

	// Last contains the last attempts in chronological order. Consecutive attempts with the same result
	// are combined into one entry.
	Last []ProbeTries `json:"last,omitempty"`
}

// ProbeTries describes consecutive attempts with the same result.
type ProbeTries struct {
	Count  int           `json:"count"`
	From   time.Time     `json:"from"`   // start of the first attempt
	To     time.Time     `json:"to"`     // end of the last attempt
	TookMs float64       `json:"tookMs"` // duration of the last attempt in milliseconds
	Word   ReadinessWord `json:"word,omitempty"`
	Code   int           `json:"code,omitempty"`
}

// Ready reports whether all probes are ready.
func (s Readiness) Ready() bool { return s.Phase == PhaseReady }

// Probed reports whether the readiness is known, because a probe has a result or there are no probes.
func (s Readiness) Probed() bool {
	return len(s.Probes) == 0 || slices.ContainsFunc(s.Probes, func(p ProbeReadiness) bool { return p.Tries > 0 })
}

// Reason returns one line that explains why the user container is not ready, or "" if it is ready.
func (s Readiness) Reason() string {
	if s.Ready() {
		return ""
	}
	return s.NotReady("")
}

// Detail returns the reasons and warnings with addresses, paths and errors in one line for logs. It returns "" if
// the user container is ready and there are no warnings.
func (s Readiness) Detail() string {
	var lines []string
	for _, p := range s.Probes {
		switch {
		case p.Phase != PhaseReady:
			lines = append(lines, fmt.Sprintf("%s: %s, attempts: %d, for %v: %s",
				p.reason(), p.Target, p.Tries, s.At.Sub(p.Since).Round(time.Millisecond), p.Detail))
		case p.Warning != "":
			lines = append(lines, fmt.Sprintf("probe %d (%s) ready: %s: %s", p.Index, p.Kind, p.Target, p.Warning))
		}
	}
	return strings.Join(lines, "; ")
}

// NotReady returns one line with the word, if it is not "", and the index, kind, phase, word and code of each
// probe that is not ready. The line does not contain addresses, paths or header fields.
func (s Readiness) NotReady(word ReadinessWord) string {
	var why []string
	if word != "" {
		why = append(why, string(word))
	}
	for _, p := range s.Probes {
		if p.Phase != PhaseReady {
			why = append(why, p.reason())
		}
	}
	return "not ready: " + strings.Join(why, "; ")
}

func (p ProbeReadiness) reason() string {
	s := fmt.Sprintf("probe %d (%s) %s: %s", p.Index, p.Kind, p.Phase, p.Word)
	if p.Code != 0 || p.Word == WordNotServing {
		s += " " + strconv.Itoa(p.Code)
	}
	return s
}
