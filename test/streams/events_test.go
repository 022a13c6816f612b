package streams_test

import (
	"slices"
	"strings"

	"golang.org/x/net/http2"
)

// An event is one step of a schedule: a frame that a peer sends, the end of a connection, or
// an action of the proxy. The first word names the sender.
type event string

// Events of the client. "+end" means that the frame has the END_STREAM flag.
const (
	clientHead     event = "client head"
	clientHeadEnd  event = "client head+end"
	clientData     event = "client data"
	clientDataEnd  event = "client data+end"
	clientTrailers event = "client trailers"
	clientReset    event = "client reset"
	clientWindow   event = "client window"
	clientWindow0  event = "client window 0" // a WINDOW_UPDATE with an increment of 0
	clientGoAway   event = "client goaway"
	clientFIN      event = "client FIN"
	clientRST      event = "client RST"
)

// Events of the application.
const (
	appInfo         event = "app info" // status 103
	appHead         event = "app head"
	appHeadEnd      event = "app head+end"
	appData         event = "app data"
	appDataEnd      event = "app data+end"
	appTrailers     event = "app trailers"
	appWindow       event = "app window"
	appWindow0      event = "app window 0"
	appGoAway       event = "app goaway"             // the code is NO_ERROR and the last stream is the highest
	appGoAwayError  event = "app goaway error"       // the code is INTERNAL_ERROR and the last stream is the stream of the schedule
	appGoAwayBefore event = "app goaway unprocessed" // the code is NO_ERROR and the last stream is 0
	appFIN          event = "app FIN"
	appRST          event = "app RST"

	appReset event = "app reset " // the name of the code follows
)

// Actions of the proxy.
const (
	proxyDrain event = "proxy drain"
	proxyAbort event = "proxy abort" // the drain reaches its deadline
)

// resetCodes are the codes of the resets by the application.
var resetCodes = []http2.ErrCode{
	http2.ErrCodeNo, http2.ErrCodeInternal, http2.ErrCodeRefusedStream, http2.ErrCodeCancel, http2.ErrCodeEnhanceYourCalm,
}

// code returns the code of a reset by the application.
func (e event) code() (code http2.ErrCode, ok bool) {
	name, ok := strings.CutPrefix(string(e), string(appReset))
	if !ok {
		return 0, false
	}
	i := slices.IndexFunc(resetCodes, func(c http2.ErrCode) bool { return c.String() == name })
	return resetCodes[i], true
}

func resetBy(code http2.ErrCode) event { return appReset + event(code.String()) }

func (e event) byClient() bool { return strings.HasPrefix(string(e), "client") }
func (e event) byApp() bool    { return strings.HasPrefix(string(e), "app") }
func (e event) byProxy() bool  { return strings.HasPrefix(string(e), "proxy") }

// ofConnection reports whether the event affects all streams of its connection.
func (e event) ofConnection() bool {
	switch e {
	case clientGoAway, clientFIN, clientRST, appGoAway, appGoAwayError, appGoAwayBefore, appFIN, appRST:
		return true
	}
	return false
}

// A schedule is a list of events of one stream.
type schedule []event

func (s schedule) String() string {
	words := make([]string, len(s))
	for i, e := range s {
		words[i] = string(e)
	}
	return strings.Join(words, ", ")
}

// enumerate returns the schedules that the model allows. The maximum number of events is
// depth. A schedule is omitted if it is a prefix of another schedule. If keep is not nil,
// schedules for which keep returns false are also omitted.
func enumerate(start model, alphabet []event, depth int, keep func(schedule, model) bool) (all []schedule) {
	var walk func(m model, s schedule)
	walk = func(m model, s schedule) {
		extended := false
		for _, e := range alphabet {
			if len(s) == depth {
				break
			}
			if next, ok := m.after(e); ok {
				extended = true
				walk(next, append(slices.Clone(s), e))
			}
		}
		if !extended && (keep == nil || keep(s, m)) {
			all = append(all, s)
		}
	}
	walk(start, nil)
	return all
}
