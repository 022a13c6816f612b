package streams_test

import (
	"fmt"
	"strings"

	"golang.org/x/net/http2"
)

// A phase is the progress of a message.
type phase uint8

const (
	idle phase = iota
	begun
	ended
)

// A half is the state of the stream between the proxy and one of its peers.
type half uint8

const (
	alive    half = iota
	reset         // the proxy may have sent RST_STREAM
	finished      // END_STREAM was sent in both directions
	gone          // the peer has sent RST_STREAM or has closed its connection
)

// A model predicts the frames that the proxy sends in one schedule. toClient and toApp are
// regular expressions for the frames as [trace] prints them. A model is a value: after
// returns a changed copy.
type model struct {
	http1 bool // the application uses HTTP/1.1
	alone bool // the stream has its own connections, so that connection errors affect no other schedule

	request, response phase
	client, app       half
	content           bool // the request has content
	post              bool // the method is not idempotent
	trailers          bool // the request has a trailer section
	informed          bool // the application has sent a 1xx response
	replayed          bool // the request was sent a second time
	closed            bool // the client has closed its connection
	fatal             bool // a connection error is permitted

	step                    int             // number of events so far
	counts                  [numCounts]int8 // number of events of each kind; limited, to keep the number of schedules small
	toClient, toApp, toConn string
}

// contentOf returns the content of a DATA frame that a schedule sends at this step.
func contentOf(step int) string { return string(rune('a' + step)) }

// Kinds of events whose number is limited.
const (
	violations = iota // events that RFC 9113 forbids
	clientLate        // frames that the client sends after the proxy has reset the stream
	appLate
	clientWindows
	appWindows
	clientContent
	appContent
	connections // events that affect a whole connection
	actions     // actions of the proxy
	tail        // events after both halves have ended
	numCounts
)

// most is the maximum number of events of each kind in a schedule.
var most = [numCounts]int8{
	violations: 1, clientLate: 1, appLate: 1, clientWindows: 1, appWindows: 1, clientContent: 2, appContent: 2,
	connections: 1, actions: 1, tail: 1,
}

// count counts an event, and reports whether the schedule may contain it.
func (m *model) count(kind int) bool {
	m.counts[kind]++
	return m.counts[kind] <= most[kind]
}

// after returns the state after an event. ok is false if the peer cannot send the event in
// this state, or if the schedule would contain too many events of this kind.
func (m model) after(e event) (next model, ok bool) {
	defer func() { next.step++ }()
	if m.request == idle {
		if e != clientHead && e != clientHeadEnd {
			return m, false
		}
		m.open(e == clientHeadEnd)
		return m, true
	}
	if m.client != alive && m.app != alive && !m.count(tail) {
		return m, false
	}
	if e.ofConnection() && !m.count(connections) {
		return m, false
	}
	switch {
	case e.byClient():
		ok = m.clientEvent(e)
	case e.byApp():
		ok = m.appEvent(e)
	default:
		ok = m.proxyEvent(e)
	}
	return m, ok
}

func (m *model) open(end bool) {
	m.request, m.post = begun, !end
	m.toApp = "HEAD"
	if end {
		m.request = ended
		m.toApp = "HEAD END"
	}
}

func (m *model) clientEvent(e event) bool {
	if m.closed {
		return false
	}
	switch e {
	case clientHeadEnd: // the frame differs from clientTrailers only in its fields
		return false
	case clientGoAway:
		m.toConn += "( GOAWAY NO_ERROR)?"
		return true
	case clientFIN, clientRST:
		m.closed, m.client = true, gone
		m.toConn += "( GOAWAY NO_ERROR)?( closed)?"
		m.abandon()
		return true
	case clientReset:
		switch m.client {
		case alive:
			m.client = gone
			m.abandon()
			return true
		case gone:
			return false
		}
		return m.count(clientLate)
	case clientWindow:
		return m.client != gone && m.count(clientWindows)
	case clientWindow0:
		if m.client != alive || !m.count(violations) {
			return false
		}
		m.streamError(http2.ErrCodeProtocol)
		return true
	}
	return m.clientMessage(e)
}

// clientMessage handles DATA and HEADERS on a stream that was opened before.
func (m *model) clientMessage(e event) bool {
	switch {
	case m.client == reset && m.request != ended: // the client sent the frame before RST_STREAM arrived: RFC 9113 section 5.1, "closed"
		return m.count(clientLate)
	case m.client != alive: // RFC 9113 section 5.1, "closed": a connection error is permitted
		if !m.alone {
			return false
		}
		m.fatal = true
		m.counts[tail] = most[tail]
		m.toConn += "( GOAWAY STREAM_CLOSED| GOAWAY PROTOCOL_ERROR)?( closed)?"
		m.toClient = addOption(m.toClient, "RST STREAM_CLOSED")
		return m.count(violations)
	case m.request == ended: // RFC 9113 section 5.1, "half-closed (remote)"
		m.streamError(http2.ErrCodeStreamClosed)
		return m.count(violations)
	case e == clientHead: // a trailer section without END_STREAM: RFC 9113 section 8.1
		m.streamError(http2.ErrCodeProtocol)
		return m.count(violations)
	}
	if e == clientTrailers {
		m.trailers = true
		m.sendApp("trailers")
	} else {
		m.content = true
		m.sendApp("=" + contentOf(m.step))
		if !m.count(clientContent) {
			return false
		}
	}
	if e != clientData {
		m.request = ended
		m.sendApp("END")
	}
	return true
}

// sendApp adds a token to the frames that the application receives, if its stream is alive.
func (m *model) sendApp(token string) {
	if m.app == alive {
		m.toApp = addToken(m.toApp, token)
	}
}

// sendClient adds a token to the frames that the client receives, if its stream is alive.
func (m *model) sendClient(token string) {
	if m.client == alive {
		m.toClient = addToken(m.toClient, token)
	}
}

// anyError matches the codes that report a truncated response.
const anyError = "(INTERNAL_ERROR|CANCEL|PROTOCOL_ERROR|CONNECT_ERROR|STREAM_CLOSED)"

// unneeded matches the codes that stop the request of a stream after its response is complete.
const unneeded = "(CANCEL|NO_ERROR|STREAM_CLOSED)"

// abandon ends the exchange with the application, because the client has disconnected.
func (m *model) abandon() { m.resetApp("CANCEL") }

func (m *model) resetApp(codes string) {
	if m.app != alive {
		return
	}
	if m.http1 {
		m.sendApp("closed")
	} else {
		m.sendApp("RST " + codes)
	}
	m.app = reset
}

// streamError resets the stream of a client that violates the protocol.
func (m *model) streamError(code http2.ErrCode) {
	m.sendClient("RST " + code.String())
	m.client = reset
	m.abandon()
}

// cut ends a response that is incomplete. codes matches the code for the client.
func (m *model) cut(codes string) {
	m.sendClient("RST " + codes)
	m.client = reset
}

// answer records a response that the proxy generates.
func (m *model) answer(status string) {
	m.sendClient(status)
	m.end()
}

// end ends the response. RFC 9113 section 8.1 permits RST_STREAM(NO_ERROR) after a response
// to an incomplete request.
func (m *model) end() {
	m.sendClient("END")
	m.response = ended
	if m.request == ended {
		m.client = finished
		if m.app == alive {
			m.app = finished
			if m.http1 {
				m.toApp = addOption(m.toApp, "closed")
			}
		}
		return
	}
	m.toClient = addOption(m.toClient, "RST NO_ERROR")
	m.client = reset
	if m.app == alive {
		m.app = reset
		if m.http1 {
			m.toApp = addOption(m.toApp, "closed")
		} else {
			m.toApp = addOption(m.toApp, "RST "+unneeded)
		}
	}
}

func (m *model) appEvent(e event) bool {
	if e.ofConnection() {
		// After the stream has ended, another schedule may use the connection.
		return m.app == alive && m.appConnection(e)
	}
	if m.app == gone || m.app == reset && m.http1 {
		return false
	}
	if m.app == reset {
		if e == appWindow0 { // the frame can arrive before the proxy sends RST_STREAM: RFC 9113 section 6.9
			m.toApp = strings.Replace(m.toApp, unneeded, "(CANCEL|NO_ERROR|STREAM_CLOSED|PROTOCOL_ERROR)", 1)
		}
		return m.count(appLate)
	}
	if code, ok := e.code(); ok {
		return !m.http1 && (m.app == alive || m.count(appLate)) && m.refuse(code.String())
	}
	switch e {
	case appWindow:
		return !m.http1 && m.count(appWindows)
	case appWindow0:
		if m.http1 || m.app == finished || !m.count(violations) {
			return false
		}
		m.garbage(false)
		return true
	}
	return m.appMessage(e)
}

// appConnection handles the events that affect the connection of the application.
func (m *model) appConnection(e event) bool {
	switch e {
	case appGoAwayBefore:
		return !m.http1 && m.refuse("")
	case appFIN, appRST:
		m.appCloses()
		return true
	}
	return !m.http1
}

// appMessage handles DATA and HEADERS.
func (m *model) appMessage(e event) bool {
	if m.app == finished { // the proxy ignores the frame
		return m.count(violations)
	}
	interim, head := e == appInfo, e == appHead || e == appHeadEnd
	if m.response == idle && !interim && !head || m.response == begun && (interim || head) {
		m.garbage(e == appHeadEnd || e == appDataEnd || e == appTrailers)
		return m.count(violations) && (!m.http1 || m.response != begun)
	}
	switch e {
	case appInfo:
		if m.informed {
			return false
		}
		m.informed = true
		m.sendClient("103")
	case appHead, appHeadEnd:
		m.response = begun
		m.sendClient("200")
	case appTrailers:
		m.sendClient("trailers")
	default:
		m.sendClient("=" + contentOf(m.step))
		if !m.count(appContent) {
			return false
		}
	}
	if e == appHeadEnd || e == appDataEnd || e == appTrailers {
		m.end()
	}
	return true
}

// garbage handles a violation of the protocol by the application. end means that the frame
// has the END_STREAM flag, which may close the stream.
func (m *model) garbage(end bool) {
	const codes = "(CANCEL|PROTOCOL_ERROR|INTERNAL_ERROR|STREAM_CLOSED)"
	if end && m.request == ended && !m.http1 && m.app == alive {
		m.toApp = addOption(m.toApp, "RST "+codes)
		m.app = reset
	}
	m.resetApp(codes)
	if m.response == idle {
		m.answer("P502/app-garbage")
	} else {
		m.cut(anyError)
	}
}

// refuse handles RST_STREAM of the application. code is empty if a GOAWAY excludes the
// stream, which is the same as REFUSED_STREAM (RFC 9113 section 6.8).
func (m *model) refuse(code string) bool {
	before := m.app
	m.app = gone
	if before != alive || m.response == ended {
		return true
	}
	refused := code == "" || code == http2.ErrCodeRefusedStream.String()
	calm := code == http2.ErrCodeEnhanceYourCalm.String() && !m.post && !m.alone // the proxy replaces a shared connection and repeats the request
	switch {
	case m.response == idle && (refused || calm) && !m.informed && m.request == ended && !m.content && !m.replayed:
		m.replay()
	case m.response == idle && code == "":
		m.unprocessed()
	case m.response == idle: // docs/promises.md 3.12
		if code == http2.ErrCodeNo.String() {
			code = http2.ErrCodeInternal.String()
		}
		m.cut(code)
	case code == http2.ErrCodeNo.String() || code == "":
		m.cut(strings.Replace(anyError, "(", "(REFUSED_STREAM|", 1))
	default:
		m.cut(fmt.Sprintf("(%s|INTERNAL_ERROR)", code))
	}
	return true
}

// unprocessed handles a GOAWAY that excludes a stream without a response. Both answers are
// permitted.
func (m *model) unprocessed() { m.answerOr("P502/app-reset", "RST REFUSED_STREAM") }

// answerOr is like answer, but also accepts another token.
func (m *model) answerOr(status, other string) {
	before := m.toClient
	m.answer(status)
	m.toClient = fmt.Sprintf("(%s|%s)", m.toClient, addToken(before, other))
	m.client = reset
	m.counts[tail] = most[tail] // the state of the client depends on the answer
}

// replay sends the request a second time.
func (m *model) replay() {
	m.replayed = true
	m.app = alive
	m.toApp += " > HEAD"
	if m.trailers {
		m.sendApp("trailers")
	}
	m.sendApp("END")
}

// appCloses handles the end of the application's connection.
func (m *model) appCloses() {
	m.app = gone
	m.toApp = addOption(m.toApp, "closed")
	if m.response == idle {
		m.answer("P502/app-reset")
	} else {
		m.cut(anyError)
	}
}

func (m *model) proxyEvent(e event) bool {
	if !m.count(actions) {
		return false
	}
	m.toConn += "( GOAWAY NO_ERROR)*"
	if e == proxyDrain || m.client != alive || m.response == ended {
		return true
	}
	m.abandon()
	if m.response == idle {
		m.answer("P503/draining")
	} else {
		m.cut(anyError)
	}
	return true
}
