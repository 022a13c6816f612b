package probe

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// A Phase is the state of the user container or of one probe.
type Phase string

// Values of Phase.
const (
	Starting Phase = "starting" // not ready since the start of the process
	Ready    Phase = "ready"
	Failing  Phase = "failing" // not ready, but has been ready before
)

// State is the state of a Prober at a point in time, which can be during a run.
type State struct {
	At     time.Time    `json:"at"`     // time of the state
	Phase  Phase        `json:"phase"`  // Ready if all probes are Ready
	Since  time.Time    `json:"since"`  // start time of the phase
	Asking bool         `json:"asking"` // whether there is a current run
	Askers int          `json:"askers"` // number of callers that wait for the run
	Probes []ProbeState `json:"probes"` // in the order of the probes
}

// ProbeState is the state of one probe.
type ProbeState struct { //nolint:revive // State is the state of all probes
	Index      int       `json:"index"`  // index of the probe, starting at 0
	Kind       string    `json:"kind"`   // httpGet, tcpSocket or grpc
	Target     string    `json:"target"` // address and path
	Aggressive bool      `json:"aggressive"`
	Phase      Phase     `json:"phase"`
	Since      time.Time `json:"since"` // start time of the phase
	Tries      int       `json:"tries"` // number of attempts since the start of the process

	// Reason why the probe is not ready. Word is "" if Phase is Ready.
	Word   Word   `json:"word,omitempty"`
	Code   int    `json:"code,omitempty"`   // code for some words; otherwise 0
	Detail string `json:"detail,omitempty"` // error of the last attempt, up to 4 KiB; it can contain addresses and must not be sent to clients

	// Warning is the warning of the last attempt if it passed with a warning, at most 4 KiB.
	Warning string `json:"warning,omitempty"`

	// Last contains the most recent attempts in chronological order. Consecutive attempts with the same
	// result are one entry.
	Last []Tries `json:"last,omitempty"`
}

// Tries describes consecutive attempts with the same result.
type Tries struct {
	Count  int       `json:"count"`
	From   time.Time `json:"from"`   // start of the first attempt
	To     time.Time `json:"to"`     // end of the last attempt
	TookMs float64   `json:"tookMs"` // duration of the last attempt in milliseconds
	Word   Word      `json:"word,omitempty"`
	Code   int       `json:"code,omitempty"`
}

// Ready reports whether the last attempts of all probes passed.
func (s State) Ready() bool { return s.Phase == Ready }

// Reason returns the reason why the user container is not ready in one line, or "" if it is ready.
func (s State) Reason() string {
	if s.Ready() {
		return ""
	}
	return (&notReady{State: s}).Error()
}

// Detail returns the reasons and warnings with addresses, paths and errors in one line for logs. It returns "" if
// the user container is ready and there are no warnings.
func (s State) Detail() string {
	var lines []string
	for _, p := range s.Probes {
		switch {
		case p.Phase != Ready:
			lines = append(lines, fmt.Sprintf("%s: %s, attempts: %d, for %v: %s",
				p.reason(), p.Target, p.Tries, s.At.Sub(p.Since).Round(time.Millisecond), p.Detail))
		case p.Warning != "":
			lines = append(lines, fmt.Sprintf("probe %d (%s) ready: %s: %s", p.Index, p.Kind, p.Target, p.Warning))
		}
	}
	return strings.Join(lines, "; ")
}

// maxDetail is the maximum length of the error of an attempt in logs, the status page and
// `queue-proxy why`, in bytes. Errors of net/http quote the response of the application.
const maxDetail = 4 << 10

// detail returns the error of an attempt.
func detail(err error) string { return message.Truncate(err.Error(), maxDetail) }

func (p ProbeState) reason() string {
	s := fmt.Sprintf("probe %d (%s) %s: %s", p.Index, p.Kind, p.Phase, p.Word)
	if p.Code != 0 || p.Word == wordNotServing {
		s += " " + strconv.Itoa(p.Code)
	}
	return s
}

// notReady is the error of [Prober.Ready]. It is immutable.
type notReady struct {
	Word  Word  // wordCrowded, wordStopped, wordPending if the caller left before the first result, or ""
	State State // state at the time of the error
	cause error // cause of the context of the caller, or nil
}

// Error returns one line for the body of a 503 response. It contains the index, kind, phase, word and code of
// each probe that is not ready, such as
//
//	not ready: probe 0 (httpGet) starting: status 503
//
// It does not contain addresses, paths or header fields (docs/promises.md 2.4).
func (e *notReady) Error() string {
	var why []string
	if e.Word != "" {
		why = append(why, string(e.Word))
	}
	for _, p := range e.State.Probes {
		if p.Phase != Ready {
			why = append(why, p.reason())
		}
	}
	return "not ready: " + strings.Join(why, "; ")
}

// Unwrap returns the cause of the context of the caller if the context ended the wait. Otherwise it returns nil.
func (e *notReady) Unwrap() error { return e.cause }
