package ledger

import (
	"encoding/json"
	"fmt"
	"strings"
)

// A Line contains the fields of a request log line that the tests check.
type Line struct {
	Message, Kind, Method, Target, Protocol, Reason, TraceID string

	Status                        int
	AppMs                         *float64 // application time in milliseconds; nil if the request did not get a slot
	Replayed, Upgraded, Activator bool
}

// Books contain the records of the application and of the sidecar by request ID.
type Books struct {
	Seen   map[string]int    // number of times that the application received a request
	Logged map[string][]Line // lines of the request log
}

// NewBooks returns empty books.
func NewBooks() *Books { return &Books{Seen: map[string]int{}, Logged: map[string][]Line{}} }

// App records a line in the application's log.
func (b *Books) App(line string) {
	if id, ok := strings.CutPrefix(line, "seen "); ok {
		b.Seen[id]++
	}
}

// Sidecar records a line from the sidecar's log. It returns the decoded line, or nil if the line is not part of the
// request log. Lines without an ID are recorded under the empty ID.
func (b *Books) Sidecar(line string) *Line {
	var l Line
	if json.Unmarshal([]byte(line), &l) != nil || l.Message != "request" {
		return nil
	}
	_, id, _ := strings.Cut(l.Target, "id=")
	b.Logged[id] = append(b.Logged[id], l)
	return &l
}

// Exceptions are the permitted differences between the records.
type Exceptions struct {
	Client bool // clients or their network can cause broken requests
	Log    bool // log lines can be missing
	End    bool // the sidecar has exited, so it may have closed a connection before it received the request
}

// Reconcile compares the records of a finished request, and returns its verdict. The request is lost if the records
// differ:
//
//   - the client received a response of the application, but the application did not receive the request
//   - the application received a POST request twice
//   - the line of the response is missing in the request log, or has a different status or reason
//   - the client reports a broken request and the request log reports success, unless the client or its network can be
//     the cause, or the request is a tunnel, whose end looks the same in both cases
//   - a request on an open connection is broken and has no log line, with the same exceptions
func (b *Books) Reconcile(e *Entry, x Exceptions) (Verdict, string) {
	lines, seen := b.Logged[e.ID], b.Seen[e.ID]
	lose := func(format string, args ...any) (Verdict, string) { return Lost, fmt.Sprintf(format, args...) }
	excused := x.Client || e.Left
	switch {
	case e.Verdict == Lost:
	case e.Verdict == FromApp && seen == 0:
		return lose("the application returned a response without a request")
	case e.Method == "POST" && seen > 1:
		return lose("the application received the POST request %d times, log: %+v", seen, lines)
	case x.Log:
	case e.Verdict == FromApp && (len(lines) != 1 || lines[0].Reason != "ok" || lines[0].Status != e.Status):
		return lose("response of the application with status %d, log: %+v", e.Status, lines)
	case e.Verdict == FromSidecar && (len(lines) != 1 || lines[0].Reason != e.Word || lines[0].Status != e.Status):
		return lose("response of the sidecar with status %d and reason %s, log: %+v", e.Status, e.Word, lines)
	case e.Verdict == Broken && !excused && !x.End && e.Conn && len(lines) == 0:
		return lose("broken (%s), no log line", e.Word)
	case e.Verdict == Broken && !excused && len(lines) > 0 && lines[0].Reason == "ok" && !lines[0].Upgraded:
		return lose("broken (%s), but the log reports success", e.Word)
	}
	return e.Verdict, e.Word
}
