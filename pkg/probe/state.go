package probe

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// A Phase is where the user container, or one of its probes, is.
type Phase string

// The phases.
const (
	Starting Phase = "starting" // has never been ready since the process started
	Ready    Phase = "ready"
	Failing  Phase = "failing" // has been ready and is no longer
)

// State is what is known at a moment, also while a run is going on.
type State struct {
	At     time.Time    `json:"at"`     // when it was looked up
	Phase  Phase        `json:"phase"`  // [Ready] if and only if every probe is
	Since  time.Time    `json:"since"`  // when this phase began
	Asking bool         `json:"asking"` // a run is going on
	Askers int          `json:"askers"` // who wait for its end
	Probes []ProbeState `json:"probes"` // in the order of the probes
}

// ProbeState is what is known of one probe.
type ProbeState struct { //nolint:revive // State is that of all probes
	Index      int       `json:"index"`  // place among the probes, from 0
	Kind       string    `json:"kind"`   // httpGet, tcpSocket or grpc
	Target     string    `json:"target"` // what is asked, with address and path
	Aggressive bool      `json:"aggressive"`
	Phase      Phase     `json:"phase"`
	Since      time.Time `json:"since"` // when this phase began
	Tries      int       `json:"tries"` // since the process started

	// Why it is not ready; Word is "" while Phase is Ready.
	Word   Word   `json:"word,omitempty"`
	Code   int    `json:"code,omitempty"`   // see the words; else 0
	Detail string `json:"detail,omitempty"` // the last try's error, at most 4 KiB, for the pod's owner only

	// Warning is what the last try passed in spite of, at most 4 KiB.
	Warning string `json:"warning,omitempty"`

	// Last are the last tries, the newest last; equal ones in a row are one entry.
	Last []Tries `json:"last,omitempty"`
}

// Tries are tries in a row with one outcome.
type Tries struct {
	Count int           `json:"count"`
	From  time.Time     `json:"from"` // the start of the first
	To    time.Time     `json:"to"`   // the end of the last
	Took  time.Duration `json:"took"` // by the last
	Word  Word          `json:"word,omitempty"`
	Code  int           `json:"code,omitempty"`
}

// Ready reports whether every probe passed when it was last asked.
func (s State) Ready() bool { return s.Phase == Ready }

// Reason says in one line why not, as [notReady.Error] does; "" when ready.
func (s State) Reason() string {
	if s.Ready() {
		return ""
	}
	return (&notReady{State: s}).Error()
}

// Detail says in one line all that is known of why not, for logs: addresses,
// paths, errors; "" when ready and without warnings.
func (s State) Detail() string {
	var lines []string
	for _, p := range s.Probes {
		switch {
		case p.Phase != Ready:
			lines = append(lines, fmt.Sprintf("%s: %s, tries: %d, for %v: %s",
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
func detail(err error) string { return printable.Truncate(err.Error(), maxDetail) }

func (p ProbeState) reason() string {
	s := fmt.Sprintf("probe %d (%s) %s: %s", p.Index, p.Kind, p.Phase, p.Word)
	if p.Code != 0 || p.Word == wordNotServing {
		s += " " + strconv.Itoa(p.Code)
	}
	return s
}

// notReady is the error of [Prober.Ready]. It does not change any more.
type notReady struct {
	Word  Word  // about the asker: Crowded, Stopped, Pending (left before anything was known), or ""
	State State // what was known
	cause error
}

// Error is one line for the body of a 503: of each probe that is not ready its
// place, kind, phase, word and code, as in
//
//	not ready: probe 0 (httpGet) starting: status 503
//
// and never an address, a path or a header (docs/promises.md 2.4).
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

// Unwrap is the asker's context error when that is what ended the wait, else nil.
func (e *notReady) Unwrap() error { return e.cause }
