package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// Thresholds of the rules.
const (
	errorShare   = 0.2              // minimum share of errors in the responses of the application; see QueueProxyAppReturnsErrors
	failureShare = 0.05             // minimum share of failed requests; see QueueProxyAppFails
	hangTime     = 30 * time.Second // time without a response
	slowTime     = time.Second      // time in the application that is considered long if the usual time is not known

	longFactor  = 2                      // minimum ratio of the time of a pending or slow request to the longest time of other requests; the confidence is low for smaller ratios
	firstTime   = 2 * time.Minute        // time in the application after which several requests are considered to hang if the usual time is not known
	aloneTime   = 10 * time.Minute       // time in the application after which a request is considered to hang without another symptom
	shortWait   = 200 * time.Millisecond // time in the application that is sufficient for most requests
	slowFactor  = 3                      // minimum ratio of the time of a slow request in the application to the usual time
	minSlow     = 100 * time.Millisecond // minimum median time of an application that is slower than usual
	mixShare    = 0.01                   // if at least this share of the earlier requests took about as long, a different mix of requests can explain a high median
	startTime   = time.Minute            // time after which a probe that has never succeeded is reported with high confidence
	minQueued   = 200 * time.Millisecond // minimum time in the queue that is considered long
	sameFactor  = 1.3                    // maximum ratio of two times that are considered equal
	minHung     = 10                     // minimum number of requests without a response; with fewer requests, the confidence is low during the first hangTime
	minFailures = 3                      // minimum number of failures that are a problem
	memoryShare = 0.8                    // share of the memory budget that requests use

	// Time before the expiry of the certificate, at most a quarter of its lifetime; see QueueProxyCertificateExpires.
	expiryTime  = 24 * time.Hour
	expiryShare = 4

	minEvents        = 10 // minimum number of events of a bound or client error in the last hour
	rejectingSamples = 10 // number of samples for which rejected requests are counted
)

// A confidence describes how likely it is that a problem exists and is the cause of the symptoms.
type confidence string

const (
	high   confidence = "high"
	medium confidence = "medium"
	low    confidence = "low" // a healthy application may have the same symptoms
)

// A problem describes a current problem of the pod.
type problem struct {
	Name       string     `json:"name"`    // name of the rule
	Problem    string     `json:"problem"` // without a period
	Since      time.Time  `json:"since"`
	Confidence confidence `json:"confidence"`
	Numbers    string     `json:"numbers,omitempty"`
	Action     string     `json:"action"`
}

// Names of rules.
const (
	certificate = "tls"
	hangs       = "app-hangs"
	slow        = "app-slow"
	rejected    = "rejected"
	exhausted   = "memory"
)

// A rule detects a problem.
type rule struct {
	name    string
	problem string
	action  string

	// check reports whether the problem exists. If problem or action is "" in the match, the value in the rule is
	// used. Board.mu must be held.
	check func(*evidence) (match, bool)
}

// A match describes a problem that a rule has detected. If since is zero, the problem started when the rule first
// matched.
type match struct {
	confidence      confidence
	since           time.Time
	numbers         string
	problem, action string
}

// rules contains all rules. If several rules match with the same confidence, the first of them is reported as the
// cause of the others.
var rules = [...]rule{
	{"not-http", NotHTTP,
		"Set USER_PORT to the HTTP port of the application. Databases and TLS servers are not supported.",
		func(e *evidence) (match, bool) { return match{confidence: high}, e.problem == NotHTTP }},
	{"not-listening", NotListening,
		"Check the address and port of the application, and USER_PORT.",
		func(e *evidence) (match, bool) { return match{confidence: high}, e.problem == NotListening }},
	{certificate, "the TLS certificate is not valid",
		"Renew the certificate. Check its issuer and the files in TLS_CERT_DIR.",
		checkTLS},
	{"resources", "the sidecar cannot open more connections", "", checkShortage},
	{hangs, "the application does not respond",
		"Take a thread dump of the application and restart the pod. Set a request timeout and a liveness probe.",
		checkHang},
	{"stalled", "requests without a response use the slots",
		"Check whether the application hangs on these requests.",
		checkStall},
	{"not-ready", "the readiness probe fails", "", checkReadiness},
	{"readiness-flaps", "the readiness of the application changes frequently",
		"Check whether the application fails under load. If it does not, make the probe less strict.",
		checkFlaps},
	{"app-fails", "the application is unreachable, closes connections, resets streams or sends invalid responses",
		restarted,
		failures(observation.AppUnreachable, observation.AppReset, observation.AppGarbage)},
	{"app-errors", "the application returns errors",
		"Check the application log and the dependencies of the application. If the errors started after a rollout, undo the rollout.",
		checkErrors},
	{"timeouts", "requests exceed a timeout of the sidecar",
		"If requests wait in the queue, add pods. Otherwise, fix the application or increase the timeout.",
		failures(observation.RequestTimeout, observation.ResponseStartTimeout, observation.IdleTimeout)},
	{"unanswered", "clients disconnect because the application does not respond",
		"Check whether the application hangs. Compare its response times with the timeouts of the clients.",
		checkUnanswered},
	{slow, "the application is slow",
		"Check the CPU and memory usage of the application, and its dependencies. If the load is too high, add pods.",
		checkSlow},
	{"limit-low", "the concurrency limit is too low",
		"If the application has spare CPU and memory, increase CONTAINER_CONCURRENCY. Otherwise, add pods.",
		checkLimit},
	{rejected, "requests are rejected because the queue is full",
		"Add pods. If the application has spare CPU and memory, you can increase the concurrency limit instead.",
		rejections(observation.QueueFull, observation.QueueTimeout)},
	{exhausted, "the memory budget for requests is exhausted",
		"Increase the memory limit of the sidecar, or add pods. Check whether a client sends unusual requests.",
		checkMemory},
	{"queue-wait", "requests wait in the queue for a long time",
		"Add pods, or reduce the target of the autoscaler.",
		checkQueue},
	{"client-connections", "", "", checkClients},
	{"app-connections", "",
		"Increase the limit on open files.",
		func(e *evidence) (match, bool) {
			return e.poolReached("connections to the user container", &e.connections.App, SourceFiles)
		}},
	{"bounds", "a peer exceeded a bound", "", checkBounds},
	{"log-lost", "request log lines are dropped",
		"Check the process that reads the standard output. To write fewer lines, set REQUEST_LOG_SAMPLE or REQUEST_LOG_ERRORS_ONLY.",
		losses(lostLines, "line")},
	{"spans-lost", "spans are dropped",
		"Check the collector and its address. If the collector is overloaded, reduce the sampling rate.",
		losses(lostSpans, "span")},
	{"tls-expires", "the TLS certificate expires soon",
		"Renew the certificate. If it was renewed, check the files in TLS_CERT_DIR.",
		checkExpiry},
}

// problemsLocked returns the current problems. The problem that is the cause of the others is first. b.mu must be held.
func (b *Board) problemsLocked(e *evidence) (all []problem) {
	for i := range rules {
		r := &rules[i]
		m, ok := r.check(e)
		if !ok {
			continue
		}
		all = append(all, problem{
			Name: r.name, Problem: cmp.Or(m.problem, r.problem), Since: b.sinceLocked(i, &m, e.now),
			Confidence: m.confidence, Numbers: m.numbers, Action: cmp.Or(m.action, r.action),
		})
	}
	order := []confidence{high, medium, low}
	slices.SortStableFunc(all, func(p, q problem) int {
		return cmp.Compare(slices.Index(order, p.Confidence), slices.Index(order, q.Confidence))
	})
	return all
}

// sinceLocked returns the time at which the problem of rule i started. b.mu must be held.
func (b *Board) sinceLocked(i int, m *match, now time.Time) time.Time {
	switch {
	case !b.active[i].IsZero():
		return b.active[i]
	case !m.since.IsZero():
		return m.since
	}
	return now
}

// updateLocked stores the start times of the current problems. b.mu must be held.
func (b *Board) updateLocked(e *evidence) {
	for i := range rules {
		m, ok := rules[i].check(e)
		if ok {
			b.active[i] = b.sinceLocked(i, &m, e.now)
		} else {
			b.active[i] = time.Time{}
		}
		if rules[i].name == hangs {
			b.hangs.Store(ok && m.confidence != low)
		}
	}
}

// existsLocked reports whether a problem existed at the last sample. b.mu must be held.
func (b *Board) existsLocked(name string) bool {
	i := slices.IndexFunc(rules[:], func(r rule) bool { return r.name == name })
	return !b.active[i].IsZero()
}

// evidence contains the values that the rules use.
type evidence struct {
	now         time.Time
	problem     string // result of Board.problem
	readiness   observation.Readiness
	drain       Drain
	running     int
	waiting     int
	waitingFor  time.Duration           // age of the oldest queued request
	limit       int                     // maximum number of running requests; 0 means no limit
	depth       int                     // maximum number of queued requests
	adaptive    *observation.LimitState // nil if the limit is fixed
	memory      *memoryState            // nil without a budget
	connections Connections
	tls         TLS
	bounds      []bound.State // the bound with the most events in the last hour is first
	total       tally         // events since the start

	board *Board
	inApp *observation.AppRequests // result of app; nil before the first call
	held  *heldSlots               // result of slots; nil before the first call
	latest
}

// app returns the requests in the user container. AppRequests.Long contains the requests that have waited for stallTime.
// Board.mu must be held.
func (e *evidence) app() *observation.AppRequests {
	if e.inApp == nil {
		app := e.board.sources.App(e.stallTime())
		e.inApp = &app
	}
	return e.inApp
}

// heldSlots contains the result of Sources.Slots.
type heldSlots struct {
	holders []observation.Holder
	held    int
}

// slots returns the requests with a slot.
func (e *evidence) slots() *heldSlots {
	if e.held == nil {
		holders, held := e.board.sources.Slots()
		e.held = &heldSlots{holders, held}
	}
	return e.held
}

// latest contains the values of the last samples.
type latest struct {
	samples      int           // number of samples
	events       tally         // events during these samples
	p50, p99     float64       // percentiles of the time in the application, in milliseconds; 0 if there was no response
	queued       float64       // 99th percentile of the time in the queue, in milliseconds
	waited       time.Duration // median time in the application of requests whose clients disconnected before the response; 0 if there are no such requests
	usual        time.Duration // median time in the application since the start; 0 if unknown
	longest      time.Duration // result of longestLocked
	lastResponse time.Time     // time of the last response from the application, or the start of the process
}

// fewRequests is the number of requests in a minute below which the rules use the last five minutes.
const fewRequests = 20

// latestLocked returns the values of the last minute. If there were few requests, it returns the values of the last
// five minutes. Board.mu must be held.
func (e *evidence) latestLocked() latest {
	b := e.board
	l := latest{samples: int(time.Minute / Interval), usual: b.usualLocked(), longest: b.longestLocked(), lastResponse: b.lastResponse}
	if l.events = e.eventsLocked(l.samples); l.events.requests() < fewRequests {
		l.samples = samples
		l.events = e.eventsLocked(l.samples)
	}
	l.samples = min(l.samples, max(b.taken, 1))
	var waited weighted
	var times, queued counts
	for i := max(0, b.taken-l.samples); i < b.taken; i++ {
		waited.add(b.waits[i%samples], 1)
		for j := range times {
			times[j] += uint32(b.times[i%samples][j])
			queued[j] += uint32(b.queues[i%samples][j])
		}
	}
	l.waited = inMilliseconds(waited.percentile(0.5))
	l.p50, l.p99, l.queued = times.percentile(0.5), times.percentile(0.99), queued.percentile(0.99)
	return l
}

// summary contains request counts and times for the last minute, or for the last five minutes if there were fewer than
// fewRequests requests.
type summary struct {
	Seconds   float64 `json:"seconds"` // duration of the period
	Requests  uint32  `json:"requests"`
	Responses uint32  `json:"responses"` // complete responses from the app
	Errors    uint32  `json:"errors"`    // responses from the app that are errors
	Reasons   totals  `json:"reasons"`
	P50       float64 `json:"p50"` // as in sample
	P99       float64 `json:"p99"`
	QueuedP99 float64 `json:"queuedP99"`
}

// period returns the period as text.
func (s *summary) period() string { return lastPeriod(time.Duration(s.Seconds * float64(time.Second))) }

func (l *latest) summary() summary {
	return summary{
		Seconds: (time.Duration(l.samples) * Interval).Seconds(), Requests: l.events.requests(), Responses: l.events.responses(),
		Errors: l.events[appErrors], Reasons: newTotals(func(i int) uint64 { return uint64(l.events[i]) }), P50: l.p50, P99: l.p99, QueuedP99: l.queued,
	}
}

// period returns the time that the samples cover.
func (l *latest) period() string { return "the " + lastPeriod(time.Duration(l.samples)*Interval) }

func lastPeriod(d time.Duration) string {
	switch d {
	case time.Minute:
		return "last minute"
	case History:
		return "last 5 minutes"
	default:
		return "last " + d.String()
	}
}

// onsetLocked returns the start of the last series of consecutive samples in which the ratio of part to whole is at
// least share. Samples without requests are skipped. It returns the zero time if the ratio in the newest sample is less
// than share. Board.mu must be held.
func (e *evidence) onsetLocked(share float64, part, whole func(*tally) uint32) (at time.Time) {
	b := e.board
	for i := b.taken - 1; i >= max(0, b.taken-samples); i-- {
		events := b.past[i%len(b.past)]
		if i > 0 {
			events.subtract(&b.past[(i-1)%len(b.past)])
		}
		n := part(&events)
		if float64(n) < share*float64(whole(&events)) {
			break
		}
		if n > 0 {
			at = e.now.Add(-time.Duration(b.taken-i) * Interval)
		}
	}
	return at
}

// lastTextLocked returns the age of the newest events, such as "; most recently 1m0s ago". It returns "" if the events
// are at most rejectingSamples samples old. Board.mu must be held.
func (e *evidence) lastTextLocked(events func(*tally) uint32) string {
	for n := range e.samples {
		if t := e.eventsLocked(n); events(&t) == 0 {
			continue
		}
		if n <= rejectingSamples {
			break
		}
		return fmt.Sprintf("; most recently %v ago", brief(time.Duration(n-1)*Interval))
	}
	return ""
}

// checkTLS detects a certificate that clients reject, and files or a port that the sidecar cannot use.
func checkTLS(e *evidence) (m match, ok bool) {
	t := &e.tls
	switch validity := t.validityAt(e.now); {
	case validity != "" && validity != certificateValid:
		m = match{confidence: high, since: t.expiredAt(e.now), numbers: t.Text}
		if validity == certificateNotYetValid {
			m.problem = "the TLS certificate is not valid yet"
			m.action = "Wait until the certificate is valid, or replace it. Check the clock of the node and the issuer of the certificate."
		}
		return m, true
	case t.Error == "":
		return m, false
	case t.On:
		return match{
			confidence: medium, numbers: t.Error, problem: "failed to load the new certificate files",
			action: "Fix the files in TLS_CERT_DIR and QUEUE_PROXY_TLS_CLIENT_CA. The previous certificate is still in use.",
		}, true
	}
	return match{
		confidence: high, numbers: t.Error, problem: "TLS is not served",
		action: "Check the files in TLS_CERT_DIR and QUEUE_PROXY_TLS_CLIENT_CA, and the TLS port.",
	}, true
}

// checkExpiry detects a certificate in use that was not renewed in time.
func checkExpiry(e *evidence) (m match, ok bool) {
	t := &e.tls
	left := t.NotAfter.Sub(e.now)
	renewal := min(expiryTime, t.NotAfter.Sub(t.NotBefore)/expiryShare)
	if !t.On || t.validityAt(e.now) != certificateValid || left >= renewal {
		return m, false
	}
	return match{confidence: medium, since: t.NotAfter.Add(-renewal), numbers: "in " + rounded(left)}, true
}

// failureProblems maps each reason to the problem that is reported if all failures have this reason.
var failureProblems = map[observation.Reason]string{
	observation.AppUnreachable:       "the application is unreachable",
	observation.AppReset:             "the application closes connections or resets streams before a response is complete",
	observation.AppGarbage:           "the application sends invalid responses",
	observation.RequestTimeout:       "requests exceed the request timeout",
	observation.ResponseStartTimeout: "requests exceed the response start timeout",
	observation.IdleTimeout:          "requests exceed the idle timeout",
}

// failures returns a check that matches if the share of requests that failed for one of the reasons is at least
// failureShare.
func failures(reasons ...observation.Reason) func(*evidence) (match, bool) {
	part := func(t *tally) (n uint32) {
		for _, r := range reasons {
			n += t[r]
		}
		return n
	}
	return func(e *evidence) (m match, ok bool) {
		n, all := part(&e.events), e.events.requests()
		if n < minFailures || float64(n) < failureShare*float64(all) {
			return m, false
		}
		var words []string
		var last failure
		for _, r := range reasons {
			if e.events[r] > 0 {
				words = append(words, fmt.Sprintf("%d %s", e.events[r], r))
				m.problem = failureProblems[r]
			}
			if f := e.board.rare[r].newest(); f.number > last.number {
				last = f
			}
		}
		if len(words) > 1 {
			m.problem = "" // the problem of the rule includes all reasons
		}
		m.confidence, m.since = high, e.onsetLocked(failureShare, part, (*tally).requests)
		m.numbers = fmt.Sprintf("%s of %s in %s (%s)%s; last failure: %s", percent(n, all), message.Count(all, "request"),
			e.period(), strings.Join(words, ", "), e.lastTextLocked(part), last.request())
		if last.Detail != "" {
			m.numbers += ": " + last.Detail
		}
		return m, true
	}
}

func checkErrors(e *evidence) (m match, ok bool) {
	failed := func(t *tally) uint32 { return t[appErrors] }
	n, all := e.events[appErrors], e.events.responses()
	if n < minFailures || float64(n) < failureShare*float64(all) {
		return m, false
	}
	level, share := high, errorShare
	if float64(n) < errorShare*float64(all) {
		level, share = low, failureShare // one path may fail
	}
	return match{
		confidence: level, since: e.onsetLocked(share, failed, (*tally).responses),
		numbers: fmt.Sprintf("%s of %s in %s (5xx status or gRPC error)%s",
			percent(n, all), message.Count(all, "application response"), e.period(), e.lastTextLocked(failed)),
	}, true
}

// checkHang detects an application that has not begun a response for hangTime, although requests wait for a response
// or have ended without one.
func checkHang(e *evidence) (m match, ok bool) {
	if e.now.Sub(e.lastResponse) < hangTime {
		return m, false
	}
	app := e.app()
	last := e.lastResponse
	if app.Held.Answered.After(last) {
		last = app.Held.Answered
	}
	silent := e.now.Sub(last)
	if silent < hangTime {
		return m, false
	}
	if m, ok = e.pendingHang(app); !ok {
		m, ok = e.endedHang(app, last)
	}
	if e.total.answers() == 0 {
		m.numbers += "; no response since the start"
	} else {
		m.numbers += fmt.Sprintf("; last response %v ago", brief(silent))
	}
	return m, ok
}

// pendingHang reports a hang if a request has waited for a response for hangTime. The confidence is low if a long
// response time may be normal, for example for a long poll. It is higher if there are other symptoms, if several
// requests wait longer than usual, or if the request has waited for aloneTime.
func (e *evidence) pendingHang(app *observation.AppRequests) (m match, ok bool) {
	waited := e.now.Sub(app.Oldest)
	if app.Pending == 0 || waited < hangTime {
		return m, false
	}
	m = match{confidence: high, since: app.Oldest, numbers: fmt.Sprintf("%s in the application, the oldest for %v; %d queued",
		message.Count(app.Pending, "request"), brief(waited), e.waiting)}
	recent := e.eventsLocked(int(hangTime / Interval))
	rejected := recent[observation.QueueFull]+recent[observation.QueueTimeout] > 0
	queued := !e.slotsInUse() // otherwise, responses in progress can be the cause of queued and rejected requests
	failed := rejected && queued || e.endedWithoutResponse(&recent, e.waited) > 0
	others := failed || e.waiting > 0 && queued
	known := e.usual > 0 && e.usual < slowTime
	longest := e.longest
	if !others {
		longest = max(longest, e.board.longestUsualLocked())
	}
	switch {
	case waited < longFactor*longest:
		m.confidence = low
	case others && (e.total.answers() > 0 || waited >= firstTime):
	case failed, !others && app.Pending >= minFailures && (known || waited >= firstTime), waited >= aloneTime:
		m.confidence = medium
	default: // the usual time can be long, or is unknown
		m.confidence = low
	}
	if m.confidence == low {
		m.action = "If such requests usually need less time, take a thread dump of the application and restart the pod."
	}
	if longest >= hangTime/longFactor {
		m.numbers += fmt.Sprintf("; other requests took up to %v", brief(longest))
	}
	return m, true
}

// endedHang reports a hang if requests have ended without a response since last, the time of the last response. It counts
// the requests of the last hangTime. If the limit or a low rate can be the reason for a small number of requests, it
// counts the requests of up to five minutes. The confidence is lower if short timeouts of clients or long responses may be
// the cause.
func (e *evidence) endedHang(app *observation.AppRequests, last time.Time) (m match, ok bool) {
	waited := e.waited
	expired := app.Held.Expired.After(last) // the application has not responded to a request after the client disconnected
	if expired {
		waited = max(waited, app.Held.Waited)
	}
	period := hangTime
	silent := e.now.Sub(last).Truncate(Interval)
	latest := e.eventsLocked(int(time.Minute / Interval))
	ongoing := app.Pending > 0 || e.endedWithoutResponse(&latest, waited) > 0
	if e.waiting > 0 || e.stalled() > 0 || silent >= History && ongoing {
		period = min(silent, History)
	}
	events := e.eventsLocked(int(period / Interval))
	left := e.endedWithoutResponse(&events, waited)
	if left < minFailures {
		return m, false
	}
	ended := func(t *tally) uint32 { return e.endedWithoutResponse(t, waited) }
	m = match{
		confidence: high, since: e.onsetLocked(0, ended, ended),
		numbers: fmt.Sprintf("%s did not receive a response in the last %v (timeout or client disconnect)", message.Count(left, "request"), period),
		action: "Compare the response times of the application with the timeouts of the clients. " +
			"If the application hangs, take a thread dump and restart the pod.",
	}
	if m.since.Before(last) {
		m.since = last
	}
	switch {
	case left < minHung && !expired && e.now.Sub(m.since) < hangTime:
		m.confidence = low // a few clients with short timeouts
	case app.Responding > 0, waited > 0 && waited < e.longWait(), left < minHung && silent >= History:
		m.confidence = medium
	}
	return m, true
}

// endedWithoutResponse returns the number of requests that ended without a response, although the application had
// enough time. waited is the time that such requests spent in the application, or 0 if it is not known.
func (e *evidence) endedWithoutResponse(t *tally, waited time.Duration) uint32 {
	switch {
	case waited > 0 && waited < e.needed(): // clients disconnect before the application can respond
		return min(t[noResponse], t[observation.RequestTimeout]+t[observation.ResponseStartTimeout])
	case waited >= e.longWait(), e.needed() == 0 && waited >= shortWait:
		return max(t[noResponse], t[unanswered]) // includes requests of clients with short timeouts
	}
	return t[noResponse]
}

// needed returns the median time that the application needs for a response, or 0 if there was no response.
// Board.mu must be held.
func (e *evidence) needed() time.Duration {
	return cmp.Or(inMilliseconds(e.p50), e.usual, inMilliseconds(percentile(e.board.all[:], 0.5)))
}

// longWait returns the time that a client must wait for a response before the wait is considered long.
func (e *evidence) longWait() time.Duration {
	if needed := e.needed(); needed > 0 {
		return min(slowTime, slowFactor*needed)
	}
	return slowTime
}

// leavesEarly reports whether clients disconnect before the application can respond.
func (e *evidence) leavesEarly() bool { return e.waited > 0 && e.waited < e.needed() }

// checkUnanswered detects clients that disconnect before the response. If the clients waited for less than longWait,
// this is a problem only if the application needs more time, or if there are no responses to other requests. The
// confidence is low by default. It is medium if many clients disconnect for one of these reasons: the application needs
// more time, other requests are queued, or the clients waited for stallTime. A few clients are a problem only if they
// waited for stallTime.
func checkUnanswered(e *evidence) (m match, ok bool) {
	left := func(t *tally) uint32 { return t[unanswered] }
	n, all, early := e.events[unanswered], e.events.requests(), e.leavesEarly()
	share := errorShare
	if e.waited >= e.stallTime() {
		share = failureShare
	}
	if e.waited == 0 || n < minFailures || float64(n) < share*float64(all) || !early && e.waited < e.longWait() && e.events.answers() > 0 {
		return m, false
	}
	m = match{confidence: low, since: e.onsetLocked(share, left, (*tally).requests), numbers: fmt.Sprintf(
		"%s of %s in %s: the client disconnected after %v in the application (p50)", percent(n, all), message.Count(all, "request"), e.period(), brief(e.waited))}
	if early || e.waited < slowTime {
		m.problem = "clients disconnect before the application responds"
	}
	switch {
	case early:
		m.numbers += fmt.Sprintf("; the application needs %v (p50)", brief(e.needed()))
		if !e.mayHang() {
			m.action = "Increase the timeouts of the clients, or make the application faster."
		}
	case e.events.answers() == 0:
		m.numbers += "; no other request received a response"
	}
	if paths := e.board.unansweredPathsLocked(e.now.Add(-time.Duration(e.samples) * Interval)); len(paths) > 0 {
		m.numbers += "; most recently " + strings.Join(paths, ", ")
	}
	connecting := e.now.Sub(e.connections.Clients.Reached) < time.Minute // clients may have waited for a connection
	if float64(n) >= errorShare*float64(all) && !connecting && (early || e.waiting > 0 || e.waited >= e.stallTime()) {
		m.confidence = medium
	}
	return m, true
}

// checkReadiness detects a failing readiness probe. During the drain, a failing probe is not a problem, because the
// application is also terminating.
func checkReadiness(e *evidence) (m match, ok bool) {
	if e.readiness.Ready() || !e.readiness.Probed() || e.drain.Draining {
		return m, false
	}
	m = match{confidence: high, action: readinessAction(e.readiness), since: e.readiness.Since, numbers: strings.TrimPrefix(e.readiness.Reason(), "not ready: ")}
	if e.readiness.Phase == observation.PhaseStarting && e.now.Sub(e.readiness.Since) < startTime {
		m.confidence = low
	}
	return m, true
}

// restarted is the action if the application may have crashed.
const restarted = "Check whether the container was restarted or ran out of memory (kubectl describe pod). Check the application log."

// readinessAction returns the recommended action for the first probe that fails. It is at most two lines long.
func readinessAction(r observation.Readiness) string {
	i := slices.IndexFunc(r.Probes, func(p observation.ProbeReadiness) bool { return p.Phase != observation.PhaseReady })
	if i < 0 {
		return "Check the application log."
	}
	switch p := r.Probes[i]; p.Word {
	case observation.WordRefused:
		if p.Phase == observation.PhaseFailing {
			return restarted // the probe has passed before
		}
		return "Check that the application is running and listens on the port of the probe. Check the port of the probe and USER_PORT."
	case observation.WordTimeout:
		return "Check the CPU usage and the log of the application. If the probe is slow, increase its timeoutSeconds."
	case observation.WordStatus:
		return fmt.Sprintf("The application responded with status %d. Check the application log and the path of the probe.", p.Code)
	case observation.WordRedirect:
		return "Set the path of the probe to a path without redirects."
	case observation.WordReset:
		return "Check the application log. Check whether the container was restarted (kubectl describe pod)."
	case observation.WordUnreachable:
		return "Check the host of the probe. Without a host, the probe uses localhost."
	case observation.WordTLS, observation.WordGarbage:
		return "Check the port of the probe, and whether the probe and the application use the same protocol."
	case observation.WordNotServing:
		return "Check the log and the dependencies of the application. Its health service reports that it is not serving."
	case observation.WordUnimplemented:
		return "Add the gRPC health service to the application, or use another probe."
	case observation.WordLocal:
		return "Increase the limit on open files, or reduce the number of connections."
	case observation.WordPending, observation.WordThreshold:
		return "Wait for the next results of the probe. If the probe does not pass, check the application log."
	}
	return "Check the application log and the probe."
}

// checkSlow detects an application that is slower than usual. It also detects a median time of at least slowTime. The
// confidence is low if the usual time is long or unknown, or if only the mix of requests may have changed.
//
// All samples have the same weight, because a slow application sends fewer responses than a fast application.
func checkSlow(e *evidence) (m match, ok bool) {
	times50, times99 := e.board.timesLocked(e.samples)
	p50 := inMilliseconds(times50.percentile(0.5))
	if p50 < minSlow {
		return m, false
	}
	m.numbers = fmt.Sprintf("p50 %v, p99 %v in %s", brief(p50), brief(inMilliseconds(times99.percentile(0.99))), e.period())
	if threshold := max(minSlow, slowFactor*e.usual); e.usual > 0 && p50 >= threshold {
		m.confidence, m.since = high, e.slowSinceLocked(threshold)
		m.numbers += fmt.Sprintf("; usual p50 %v", brief(e.usual))
		if e.board.mayBeMixLocked(p50, inMilliseconds(times99.percentile(0.5))) {
			m.confidence = low
			m.numbers += "; the number of slow requests may have increased"
		}
		return m, true
	}
	if p50 < slowTime {
		return m, false
	}
	if app := e.app(); app.Pending <= app.Responding {
		return m, false // most of the time is spent on the transfer of responses
	}
	m.confidence, m.since = low, e.slowSinceLocked(slowTime)
	m.numbers += "; this may be normal for the application"
	return m, true
}

// slowSinceLocked returns the start of the last series of consecutive samples whose median time is at least p50.
// Board.mu must be held.
func (e *evidence) slowSinceLocked(p50 time.Duration) (at time.Time) {
	b := e.board
	for i := b.taken - 1; i >= max(0, b.taken-samples); i-- {
		switch p := inMilliseconds(b.history[i%samples].P50); {
		case p >= p50:
			at = e.now.Add(-time.Duration(b.taken-i) * Interval)
		case p > 0:
			return at
		}
	}
	return at
}

// waitsLong reports whether requests are queued, and the time in the queue is at least minQueued and not less than the
// median time in the application.
func (e *evidence) waitsLong() bool {
	queued := max(inMilliseconds(e.queued), e.waitingFor)
	return e.limit > 0 && e.waiting > 0 && queued >= max(minQueued, inMilliseconds(e.p50))
}

// slotsInUse reports whether responses in progress and upgraded connections use at least half of the slots.
func (e *evidence) slotsInUse() bool {
	app := e.app()
	return e.limit > 0 && 2*(app.Responding+app.Upgraded) >= e.limit
}

// stallTime returns the time that a request must wait for a response before the request is
// considered stalled. Board.mu must be held.
func (e *evidence) stallTime() time.Duration {
	if e.total.answers() == 0 {
		return hangTime
	}
	return max(slowTime, longFactor*max(e.longest, e.board.longestUsualLocked()))
}

// stalled returns the number of slots that are used by aborted requests, and by requests that have waited for a
// response for stallTime. It returns 0 if these are less than half of the slots. Board.mu must be held.
func (e *evidence) stalled() int {
	if e.limit == 0 {
		return 0
	}
	if n := e.app().Long + e.slots().held; 2*n >= e.limit {
		return n
	}
	return 0
}

// stalledPathLocked returns the method and the path of a request without a response, or "" if none is known. Board.mu
// must be held.
func (e *evidence) stalledPathLocked() string {
	for _, h := range e.slots().holders {
		if h.Phase == observation.Waiting.String() && !h.Uploading && e.now.Sub(h.Slot) >= e.stallTime() {
			return shorten(h.Method+" "+h.Path, maxRequest)
		}
	}
	if held := e.app().Held; e.now.Sub(held.Expired) < time.Minute {
		return shorten(held.Method+" "+held.Path, maxRequest)
	}
	for _, f := range e.board.failuresLocked() {
		if f.unanswered && f.Took-f.Queued >= milliseconds(e.longWait()) {
			return f.request()
		}
	}
	return ""
}

// checkStall detects slots that are used by requests without a response, while other requests are queued or rejected. The
// confidence is medium, because the requests may be long.
func checkStall(e *evidence) (m match, ok bool) {
	if rate, _ := e.rejectedLocked(observation.QueueFull, observation.QueueTimeout); e.waiting == 0 && rate == 0 {
		return m, false
	}
	n := e.stalled()
	if n == 0 {
		return m, false
	}
	long := e.app().Long
	var parts []string
	if long > 0 {
		parts = append(parts, fmt.Sprintf("%s without a response for more than %v", message.Count(long, "request"), brief(e.stallTime())))
	}
	if n > long {
		parts = append(parts, message.Count(n-long, "aborted request"))
	}
	m = match{confidence: medium, numbers: fmt.Sprintf("%d of %s used by %s", n, message.Count(e.limit, "slot"), strings.Join(parts, " and "))}
	if path := e.stalledPathLocked(); path != "" {
		m.numbers += ", such as " + path
	}
	return m, true
}

// actionIfHangs is the action if mayHang returns true.
const actionIfHangs = "Check whether the application hangs."

// silent reports whether the time since the last response is longer than rejectingSamples samples, and much longer than
// the application usually needs.
func (e *evidence) silent() bool {
	return e.now.Sub(e.lastResponse) > max(rejectingSamples*Interval, slowFactor*e.needed())
}

// mayHang reports whether the application may hang. It returns false if long responses use at least half of the
// slots, because they may be the reason for the missing responses.
func (e *evidence) mayHang() bool {
	return e.silent() && !e.slotsInUse() && e.app().Pending+e.slots().held > 0
}

func (e *evidence) queueNumbers() string {
	times := "no response in " + e.period()
	if e.p50 > 0 {
		times = fmt.Sprintf("p99 %v in the queue, p50 %v in the application in %s",
			brief(inMilliseconds(e.queued)), brief(inMilliseconds(e.p50)), e.period())
	}
	return fmt.Sprintf("%s; %d queued, the oldest for %v; limit %d", times, e.waiting, brief(e.waitingFor), e.limit)
}

// checkLimit detects a limit that causes queuing although the application is not slower at the limit.
func checkLimit(e *evidence) (m match, ok bool) {
	if !e.waitsLong() || e.running < e.limit || e.silent() || e.stalled() > 0 {
		return m, false
	}
	m.numbers = e.queueNumbers()
	if e.adaptive != nil {
		m.confidence = medium
		m.numbers += "; the adaptive limit is at its maximum"
		return m, e.adaptive.Reason == observation.LimitCeiling
	}
	free, full := e.board.queueEffectLocked()
	m.confidence = low
	if free > 0 && full > 0 {
		m.confidence = medium
		m.numbers += fmt.Sprintf("; p50 %v below the limit", brief(inMilliseconds(free)))
	}
	return m, full <= sameFactor*free || free == 0
}

// checkQueue detects requests that spend more time in the queue than in the application. Unlike checkLimit, it also
// matches if the limit is not the cause.
func checkQueue(e *evidence) (m match, ok bool) {
	if !e.waitsLong() {
		return m, false
	}
	m = match{confidence: medium, numbers: e.queueNumbers()}
	switch {
	case e.stalled() > 0, e.mayHang():
		m.action = actionIfHangs
	case e.silent() && !e.slotsInUse():
		m.problem = "the slots are used by requests with an incomplete body"
		m.action = "Check the clients. To limit the time of an upload, set BODY_TIMEOUT."
	case e.silent():
		app := e.app()
		m.problem = "the slots are used by WebSockets or long responses"
		m.numbers += fmt.Sprintf("; slots are held by %s and %s in progress", message.Count(app.Upgraded, "upgraded connection"), message.Count(app.Responding, "response"))
		m.action = "Increase the concurrency limit, or add pods. A WebSocket uses a slot until it is closed."
	}
	return m, true
}

// rejections returns a check that detects requests rejected for one of the reasons in the last rejectingSamples
// samples. If such requests were rejected only before these samples, the confidence is medium.
func rejections(reasons ...observation.Reason) func(*evidence) (match, bool) {
	part := func(t *tally) uint32 { n, _ := t.rejected(reasons); return n }
	return func(e *evidence) (m match, ok bool) {
		rate, top := e.rejectedLocked(reasons...)
		period := min(e.samples, int(time.Minute/Interval))
		events := e.eventsLocked(period)
		n, recent := events.rejected(reasons)
		switch all := events.requests(); {
		case rate > 0:
			m = match{confidence: high, numbers: fmt.Sprintf("%.1f requests per second rejected (%s)", rate, top)}
			if top != observation.Overload && e.stalled() > 0 {
				m.confidence = medium // not the cause
			}
		case n >= minFailures && float64(n) >= failureShare*float64(all):
			top = recent
			m = match{confidence: medium, numbers: fmt.Sprintf("%s of %s rejected in %s (%s)%s",
				percent(n, all), message.Count(all, "request"), "the "+lastPeriod(time.Duration(period)*Interval), top, e.lastTextLocked(part))}
		default:
			return m, false
		}
		if top == observation.QueueTimeout {
			m.problem = "requests wait longer than the queue timeout"
		}
		if top != observation.Overload && (e.stalled() > 0 || e.mayHang() || events.answers() == 0) {
			m.action = actionIfHangs
		}
		return m, true
	}
}

// rejected returns the number of requests that were rejected for one of the reasons, and the most frequent reason.
func (t *tally) rejected(reasons []observation.Reason) (sum uint32, top observation.Reason) {
	top = reasons[0]
	for _, r := range reasons {
		sum += t[r]
		if t[r] > t[top] {
			top = r
		}
	}
	return sum, top
}

// rejectedLocked returns the number of requests per second that were rejected for one of the reasons in the last
// rejectingSamples samples, and the most frequent reason. Board.mu must be held.
func (e *evidence) rejectedLocked(reasons ...observation.Reason) (rate float64, top observation.Reason) {
	events := e.eventsLocked(rejectingSamples)
	n, top := events.rejected(reasons)
	return float64(n) / (rejectingSamples * Interval.Seconds()), top
}

// checkMemory detects requests that were rejected because of the memory budget, and requests that use at least
// memoryShare of the budget.
func checkMemory(e *evidence) (m match, ok bool) {
	if m, ok = rejections(observation.Overload)(e); ok {
		return m, true
	}
	if e.memory == nil || float64(e.memory.Used) < memoryShare*float64(e.memory.Limit) {
		return m, false
	}
	return match{confidence: high, problem: "the memory budget is almost exhausted",
		numbers: fmt.Sprintf("%s of %s", megabytes(e.memory.Used), megabytes(e.memory.Limit))}, true
}

// expected contains the bounds that checkBounds ignores, because an operator has set a limit, or because clients open
// connections in advance.
var expected = [...]bound.Name{bound.SilentConnection, bound.MaxConnections, bound.BodySize}

// checkBounds detects bounds and client errors with at least minEvents events in the last hour. The problem and the
// action are those of the bound or client error with the most events.
func checkBounds(e *evidence) (m match, ok bool) {
	var all []string
	for _, s := range e.bounds {
		if s.Recent < minEvents || slices.Contains(expected[:], s.Name) {
			continue
		}
		if len(all) == 0 {
			m = match{confidence: recentness(e.now, s.Last), since: s.First, action: s.Cause, problem: "a peer exceeded the bound " + s.Label}
			if s.Name.IsError() {
				m.problem = "client requests failed with the error " + s.Label
			}
		}
		text := fmt.Sprintf("%s: closed %s in the last hour, most recently %v ago, peer %s",
			s.Label, message.Count(s.Recent, string(s.Closes)), brief(e.now.Sub(s.Last)), s.Peer)
		if s.Error != "" {
			text += " (" + s.Error + ")"
		}
		all = append(all, text)
	}
	m.numbers = strings.Join(all, "; ")
	return m, len(all) > 0
}

// losses returns a check for lines or spans that were lost in the last five minutes. noun is the name of one item.
func losses(event int, noun string) func(*evidence) (match, bool) {
	n := func(t *tally) uint32 { return t[event] }
	return func(e *evidence) (m match, ok bool) {
		events := e.eventsLocked(samples)
		if events[event] == 0 {
			return m, false
		}
		m = match{confidence: high, since: e.onsetLocked(0, n, n), numbers: message.Count(events[event], noun) + " in the last 5 minutes"}
		if text := e.board.sources.SpanError(); event == lostSpans && text != "" {
			m.numbers += "; last error: " + text
		}
		return m, true
	}
}

// checkClients detects that the limit on client connections was reached in the last hour.
func checkClients(e *evidence) (m match, ok bool) {
	source := e.connections.ClientsLimit
	if m, ok = e.poolReached("client connections", &e.connections.Clients, source); ok {
		m.action = source.action()
	}
	return m, ok
}

// poolReached detects that the limit on the connections in p was reached in the last hour. source is the origin of the
// limit.
func (e *evidence) poolReached(name string, p *bound.Pool, source LimitSource) (m match, ok bool) {
	if e.now.Sub(p.Reached) >= recently {
		return m, false
	}
	origin := "source of the limit: " + string(source)
	switch {
	case source != SourceFiles:
	case e.connections.OpenFilesLimit > 0:
		origin = fmt.Sprintf("limit on open files: %d", e.connections.OpenFilesLimit)
	default:
		origin = "no limit on open files"
	}
	return match{
		confidence: recentness(e.now, p.Reached), since: p.Reached,
		problem: fmt.Sprintf("%s: limit of %d reached", name, p.Limit),
		numbers: fmt.Sprintf("%d open, %d waiting, %d evicted, waited %v in total; reached %v ago; %s",
			p.Open, p.Waiting, p.Evicted, brief(time.Duration(p.Waited*float64(time.Second))), brief(e.now.Sub(p.Reached)), origin),
	}, true
}

func checkShortage(e *evidence) (m match, ok bool) {
	s := &e.connections.Shortage
	if e.now.Sub(s.Time) >= recently {
		return m, false
	}
	confidence := recentness(e.now, s.Time)
	if confidence == medium {
		confidence = high // connections have failed
	}
	return match{
		confidence: confidence, since: s.Time,
		problem: fmt.Sprintf("no %s available for connections", s.Resource),
		numbers: fmt.Sprintf("%d times since the start, most recently %v ago (%s: %s)", s.Count, brief(e.now.Sub(s.Time)), s.Operation, s.Error),
		action:  s.Hint,
	}, true
}

// recentness returns the confidence that the cause of an event still exists.
func recentness(now, at time.Time) confidence {
	if now.Sub(at) < time.Minute {
		return medium
	}
	return low
}

// percent returns n as a percentage of all.
func percent(n, all uint32) string { return fmt.Sprintf("%.0f %%", 100*float64(n)/float64(all)) }

func inMilliseconds(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// brief rounds a duration for display. A negative duration becomes 0.
func brief(d time.Duration) time.Duration {
	switch d = max(d, 0); {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Microsecond)
}
