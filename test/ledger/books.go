package ledger

import (
	"encoding/json"
	"fmt"
	"strings"
)

// A Line is a line of the request log, as far as it is of interest here.
type Line struct {
	Message, Kind, Method, Target, Protocol, Reason, TraceID string

	Status                        int
	AppMs                         *float64 // nil: it never got a slot
	Replayed, Upgraded, Activator bool
}

// Books are the ledgers of the app and of the sidecar, by request id.
type Books struct {
	Seen   map[string]int    // how often a request came to the app
	Logged map[string][]Line // what the request log says of it
}

// NewBooks returns books in which nothing is written yet.
func NewBooks() *Books { return &Books{Seen: map[string]int{}, Logged: map[string][]Line{}} }

// App notes a line that the app has printed.
func (b *Books) App(line string) {
	if id, ok := strings.CutPrefix(line, "seen "); ok {
		b.Seen[id]++
	}
}

// Sidecar notes a line that the sidecar has printed. It returns the line of the
// request log that it is, or nil. What has no id is noted under "".
func (b *Books) Sidecar(line string) *Line {
	var l Line
	if json.Unmarshal([]byte(line), &l) != nil || l.Message != "request" {
		return nil
	}
	_, id, _ := strings.Cut(l.Target, "id=")
	b.Logged[id] = append(b.Logged[id], l)
	return &l
}

// Exceptions are what the ledgers need not agree on.
type Exceptions struct {
	Client bool // clients, or the wire to them, are at fault
	Log    bool // the log was a victim itself, or its writer was killed: it can accuse nobody
	End    bool // the sidecar ended, and may have closed a connection on which it has not read a head
}

// Reconcile holds the three ledgers against each other when a request has ended, and
// returns what it is in the light of all. What they do not agree on is lost:
//
//   - the app's answer to a request that the app does not know;
//   - a POST that came to the app twice;
//   - an answer that the request log does not have, or has differently;
//   - an end that a client noticed and the log calls well, unless the wire between
//     them or the client itself was at fault, or it was the end of a tunnel, which
//     looks the same whoever wanted it;
//   - a request on an open connection that broke and that the log does not know,
//     with the same exceptions.
func (b *Books) Reconcile(e *Entry, x Exceptions) (Verdict, string) {
	lines, seen := b.Logged[e.ID], b.Seen[e.ID]
	lose := func(format string, args ...any) (Verdict, string) { return Lost, fmt.Sprintf(format, args...) }
	excused := x.Client || e.Left
	switch {
	case e.Verdict == Lost:
	case e.Verdict == ByApp && seen == 0:
		return lose("answered by the app, which does not know it")
	case e.Method == "POST" && seen > 1:
		return lose("a POST that came to the app %d times, logged as %+v", seen, lines)
	case x.Log:
	case e.Verdict == ByApp && (len(lines) != 1 || lines[0].Reason != "ok" || lines[0].Status != e.Status):
		return lose("answered by the app with %d, logged as %+v", e.Status, lines)
	case e.Verdict == ByUs && (len(lines) != 1 || lines[0].Reason != e.Word || lines[0].Status != e.Status):
		return lose("answered by us with %d %s, logged as %+v", e.Status, e.Word, lines)
	case e.Verdict == Broken && !excused && !x.End && e.Conn && len(lines) == 0:
		return lose("broken (%s), not in the log", e.Word)
	case e.Verdict == Broken && !excused && len(lines) > 0 && lines[0].Reason == "ok" && !lines[0].Upgraded:
		return lose("broken (%s), logged as well", e.Word)
	}
	return e.Verdict, e.Word
}
