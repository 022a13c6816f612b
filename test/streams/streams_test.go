package streams_test

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/net/http2"
)

// batchSize is the number of schedules that share a proxy. It is less than the number of
// streams that the proxy permits on a connection.
const batchSize = 100

// alphabet returns all events that satisfy accept.
func alphabet(accept func(event) bool) (all []event) {
	for _, e := range []event{
		clientHead, clientHeadEnd, clientData, clientDataEnd, clientTrailers, clientReset, clientWindow, clientWindow0, clientGoAway, clientFIN, clientRST,
		appInfo, appHead, appHeadEnd, appData, appDataEnd, appTrailers, appWindow, appWindow0,
		appGoAway, appGoAwayError, appGoAwayBefore, appFIN, appRST, proxyDrain, proxyAbort,
	} {
		if accept(e) {
			all = append(all, e)
		}
	}
	for _, code := range resetCodes {
		if e := resetBy(code); accept(e) {
			all = append(all, e)
		}
	}
	return all
}

func ofStreams(e event) bool { return !e.ofConnection() && !e.byProxy() }

// applications contains the protocols of the application. The value is true for HTTP/1.1.
var applications = map[string]bool{"http2": false, "http1": true}

// runAll runs schedules in batches.
func runAll(t *testing.T, http1, alone bool, schedules []schedule) {
	t.Helper()
	t.Logf("%d schedules", len(schedules))
	size := batchSize
	if alone {
		size = 50
	}
	for i, part := range slices.Collect(slices.Chunk(schedules, size)) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			b := &batch{t: t, http1: http1, alone: alone}
			b.run(part)
		})
	}
}

// distinct reports whether an event is used in long schedules. It excludes events that
// resemble another event, so that longer schedules can be enumerated.
func distinct(e event) bool {
	switch e {
	case clientWindow, clientWindow0, clientRST, appWindow, appWindow0, appRST, appGoAway,
		resetBy(http2.ErrCodeInternal), resetBy(http2.ErrCodeEnhanceYourCalm):
		return false
	}
	return true
}

// longer returns a filter for schedules with more than n events.
func longer(n int, keep func(schedule, model) bool) func(schedule, model) bool {
	return func(s schedule, m model) bool { return len(s) > n && (keep == nil || keep(s, m)) }
}

func TestStreamStates(t *testing.T) {
	for name, http1 := range applications {
		t.Run(name, func(t *testing.T) {
			start := model{http1: http1}
			runAll(t, http1, false, enumerate(start, alphabet(ofStreams), 5, nil))
			reduced := alphabet(func(e event) bool { return ofStreams(e) && distinct(e) })
			runAll(t, http1, false, enumerate(start, reduced, 6, longer(5, nil)))
		})
	}
}

// endsConnection selects the schedules that cannot share a connection.
func endsConnection(s schedule, m model) bool {
	return m.fatal || slices.ContainsFunc(s, event.ofConnection)
}

func TestConnectionEnds(t *testing.T) {
	for name, http1 := range applications {
		t.Run(name, func(t *testing.T) {
			start := model{http1: http1, alone: true}
			runAll(t, http1, true, enumerate(start, alphabet(func(e event) bool { return !e.byProxy() }), 4, endsConnection))
			reduced := alphabet(func(e event) bool { return !e.byProxy() && distinct(e) })
			runAll(t, http1, true, enumerate(start, reduced, 5, longer(4, endsConnection)))
		})
	}
}

// The drain begins, or reaches its deadline, at each step. All schedules of a batch have the
// same action at the same step, because the action affects all requests of the proxy.
func TestDrain(t *testing.T) {
	for name, http1 := range applications {
		all := enumerate(model{http1: http1}, alphabet(func(e event) bool { return !e.ofConnection() }), 4, nil)
		reduced := alphabet(func(e event) bool { return !e.ofConnection() && distinct(e) })
		all = append(all, enumerate(model{http1: http1}, reduced, 5, longer(4, nil))...)
		for _, action := range []event{proxyDrain, proxyAbort} {
			for at := 1; at < 5; at++ {
				t.Run(fmt.Sprintf("%s/%v/%d", name, action, at), func(t *testing.T) {
					runAll(t, http1, false, slices.DeleteFunc(slices.Clone(all), func(s schedule) bool { return slices.Index(s, action) != at }))
				})
			}
		}
	}
}
