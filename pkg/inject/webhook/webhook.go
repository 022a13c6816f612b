// Package webhook lets an API server ask for the injection of pods.
//
// [Server] is the process's life around a [Reviewer], which answers reviews of
// admission.k8s.io/v1. What happens to a pod is decided by pkg/inject, so the webhook
// makes of a pod what the command line makes of it. The certificate comes from files or
// is made and published by the server itself ([Self]).
//
// Who asks is not known: an answer says nothing that was not in the question.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"time"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/portlimit"
	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// reviewPath is where reviews are asked for.
const reviewPath = "/inject"

// Bounds of a review.
const (
	// An API server takes objects of up to 3 MiB and wraps them in a review.
	mostBytes = 8 << 20
	// A pod of 500 containers with 20 variables each has 31 000 values of JSON; a review with
	// more than these is refused without a look at its pod. Decoded, {} takes a hundred times
	// its length.
	mostValues = 50_000
	// Reviews that are longer than smallBytes, and such answers, share memoryOfTexts from
	// their first byte until their answer is taken. Those that are shorter, as nearly all
	// are, wait for nobody while they arrive and while they are taken, however slowly others
	// do.
	smallBytes    = 32 << 10
	memoryOfTexts = 24 << 20
	// While it is decided, each review has a part of the memory, payload.cost: the long ones
	// of one, the others of another, for which they do not wait behind the long ones. No more
	// than mostShort are decided at once.
	memoryOfLong  = 48 << 20
	memoryOfShort = 16 << 20
	mostShort     = 16
	// An API server that follows our configuration gives up after 5 s.
	longestReview = 5 * time.Second
	// What holds a part of memoryOfTexts has to come, or to be taken, so fast that another
	// review can wait for it.
	longestTransfer = 2 * time.Second
	// Kubernetes cuts warnings that are longer, and all of them beyond 4 KiB.
	longestWarning, mostWarnings = 256, 8
	// What is said of a question may hold parts of it, which are as long as they like.
	longestName, longestText = 256, 4 << 10
)

// A Reviewer answers reviews. It is an [http.Handler] and may be asked concurrently.
type Reviewer struct {
	Options inject.Options // which annotations may overrule
	Lenient bool           // admit pods that are refused an injection, as they are
	Log     *zap.Logger
	Metrics *Metrics
	Events  *Events // nil: none are written

	limit time.Duration // maximum time of a review

	// Bytes of memory: of reviews that are being decided, and of long texts that are held.
	short, long, texts *budget
}

// NewReviewer makes a Reviewer that says everything and admits nothing that it refuses.
func NewReviewer(said inject.Options, log *zap.Logger, m *Metrics) *Reviewer {
	return &Reviewer{
		Options: said, Log: log, Metrics: m, limit: longestReview,
		short: newBudget(memoryOfShort), long: newBudget(memoryOfLong), texts: newBudget(memoryOfTexts),
	}
}

// ServeHTTP answers one review. What is no review is answered with 400, 405, 413 or 415 and a line
// of text.
func (v *Reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(r.Context(), v.limit)
	defer cancel()
	client := peerOf(r)
	held := 0 // of v.texts
	defer func() { v.texts.giveBack(client, held) }()
	p, failed := v.read(ctx, w, r, &held)
	if failed != nil {
		v.fail(w, failed)
		return
	}
	out, answer, failed := v.decide(ctx, client, p)
	if more := len(answer) - held; failed == nil && len(answer) > smallBytes && more > 0 {
		if v.texts.tryTake(client, more) {
			held += more
		} else { // and while it waited, the answer would be held
			failed = &failure{noAnswer, "too many large answers at once"}
		}
	}
	if failed != nil {
		v.fail(w, failed)
		return
	}
	v.Metrics.review(out, time.Since(begin))
	w.Header().Set("Content-Type", "application/json")
	if held > 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(longestTransfer))
	}
	// One who does not listen has no need of an answer.
	_, _ = w.Write(answer)
}

// A failure is why a request is answered with an HTTP error.
type failure struct {
	reason string // one of failureStatuses
	text   string
}

// late is the failure of a review that is not decided in time.
func late() *failure { return &failure{outOfTime, "out of time"} }

// decide makes an answer of a payload, which it releases, or returns why there is none. It waits for its part of the memory, and holds it no longer: the answer is taken
// when its peer likes.
func (v *Reviewer) decide(ctx context.Context, client netip.Addr, p *payload) (out inject.Outcome, answer []byte, failed *failure) {
	memory, cost := v.short, p.cost()
	if len(p.text) >= smallBytes {
		memory = v.long
	}
	if !memory.take(ctx, client, cost) {
		return out, nil, &failure{noDecision, "too many reviews at once"}
	}
	defer memory.giveBack(client, cost)
	asked, err := parse(p.text)
	p.text = nil
	if err != nil {
		return out, nil, &failure{noReview, err.Error()}
	}
	response := &admissionv1.AdmissionReview{TypeMeta: asked.TypeMeta}
	if out, response.Response, failed = v.answer(ctx, asked.Request, p.values); failed != nil {
		return out, nil, failed
	}
	if answer, err = json.Marshal(response); err != nil {
		v.Log.Error("an answer has no JSON form", zap.Error(err))
		return out, nil, &failure{internal, "the answer has no JSON form"}
	}
	return out, answer, nil
}

// peerOf returns the address of who asks; the zero address where it has none.
func peerOf(r *http.Request) netip.Addr {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	return peer.Addr().Unmap()
}

func (v *Reviewer) fail(w http.ResponseWriter, f *failure) {
	text, status := printable.Truncate(f.text, longestText), failureStatuses[f.reason]
	v.Metrics.failed(f.reason)
	v.Log.Warn("no review", zap.Int("status", status), zap.String("reason", f.reason), zap.String("error", text))
	http.Error(w, text, status)
}

// read reads a payload, or returns why it cannot be read. It adds to held
// what the caller gives back to v.texts.
func (v *Reviewer) read(ctx context.Context, w http.ResponseWriter, r *http.Request, held *int) (*payload, *failure) {
	long := &failure{tooLong, fmt.Sprintf("a review of more than %d bytes", mostBytes)}
	switch kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		return nil, &failure{badMethod, fmt.Sprintf("method %s: POST is wanted", r.Method)}
	case err != nil || kind != "application/json":
		return nil, &failure{badType, "a body of application/json is wanted"}
	case r.ContentLength > mostBytes:
		return nil, long
	}
	var count counter
	body := io.TeeReader(http.MaxBytesReader(w, r.Body, mostBytes), &count)
	var text []byte
	var err error
	portlimit.Waiting(ctx, func() { text, err = io.ReadAll(io.LimitReader(body, smallBytes)) })
	if err == nil && len(text) == smallBytes {
		length := int(r.ContentLength)
		if length < 0 { // an API server says it; a proxy in between may not
			length = mostBytes
		}
		if !v.texts.take(ctx, peerOf(r), length) {
			return nil, &failure{noBody, "too many large reviews at once"}
		}
		*held = length
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(longestTransfer)) // a recorder has none
		whole := bytes.NewBuffer(make([]byte, 0, length+bytes.MinRead))                    // so it does not grow
		whole.Write(text)
		portlimit.Waiting(ctx, func() { _, err = whole.ReadFrom(body) })
		text = whole.Bytes()
	}
	if _, is := errors.AsType[*http.MaxBytesError](err); is {
		return nil, long
	}
	if err != nil {
		return nil, &failure{cutOff, "the body ended too early"}
	}
	return &payload{text: text, values: 1 + count.values}, nil
}

// answer decides about one object, in a review of so many values. The failure is that of late.
func (v *Reviewer) answer(ctx context.Context, q *admissionRequest, values int) (inject.Outcome, *admissionv1.AdmissionResponse, *failure) {
	a := &admissionv1.AdmissionResponse{UID: q.UID, Allowed: true}
	if q.Resource != (metav1.GroupVersionResource{Version: "v1", Resource: "pods"}) || q.SubResource != "" || q.Operation != admissionv1.Create {
		return inject.Outcome{Verdict: inject.Skipped, Reason: inject.NoPods}, a, nil
	}
	if values > mostValues {
		return v.refuse(q, a, nil, refusal(inject.TooLarge, fmt.Sprintf("a review of more than %d values of JSON", mostValues))), a, nil
	}
	// Each step is bounded by the length of the review and its values; between them, the
	// time is looked at.
	if ctx.Err() != nil {
		return inject.Outcome{}, nil, late()
	}
	pod, err := inject.Decode(q.Object)
	if err != nil {
		return v.refuse(q, a, nil, refusal(inject.Unreadable, "not a pod: "+err.Error())), a, nil
	}
	q.Object = nil
	if ctx.Err() != nil {
		return inject.Outcome{}, nil, late()
	}
	out := inject.Inject(pod, v.Options)
	switch out.Verdict {
	case inject.Refused:
		return v.refuse(q, a, pod, out), a, nil
	case inject.Skipped:
		v.tell(q, pod, out)
	case inject.Injected:
		if ctx.Err() != nil {
			return inject.Outcome{}, nil, late()
		}
		patch, err := inject.JSONPatch(pod, out.Changes)
		if err != nil {
			return v.refuse(q, a, pod, refusal(inject.Unreadable, err.Error())), a, nil
		}
		a.Patch, a.PatchType = patch, new(admissionv1.PatchTypeJSONPatch)
		if out.PortName == "" { // by name, the Services that there may be need no edit
			out.Warnings = append(out.Warnings, inject.Unserved(out))
		}
		a.Warnings = warnings(out.Warnings)
		v.log(q, pod, out)
		if out.Confidence == inject.Low && v.Events != nil && !q.DryRun {
			v.Events.about(q.Namespace, pod, out)
		}
	}
	a.AuditAnnotations = audit(out)
	return out, a, nil
}

func refusal(reason, text string) inject.Outcome {
	return inject.Outcome{Verdict: inject.Refused, Reason: reason, Text: text}
}

// refuse refuses a pod, or admits it as it is, with a warning.
func (v *Reviewer) refuse(q *admissionRequest, a *admissionv1.AdmissionResponse, pod any, out inject.Outcome) inject.Outcome {
	text := printable.Truncate("queue-proxy cannot be injected: "+out.Text, longestText)
	if v.Lenient {
		a.Warnings = warnings([]string{text})
	} else {
		a.Allowed = false
		a.Result = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: text}
	}
	a.AuditAnnotations = audit(out)
	v.tell(q, pod, out)
	return out
}

// tell logs an outcome and writes an event about it, unless somebody asked for it.
func (v *Reviewer) tell(q *admissionRequest, pod any, out inject.Outcome) {
	if out.Reason == inject.AlreadyInjected || out.Reason == inject.OptedOut {
		return
	}
	v.log(q, pod, out)
	if v.Events != nil && !q.DryRun {
		v.Events.about(q.Namespace, pod, out)
	}
}

func (v *Reviewer) log(q *admissionRequest, pod any, out inject.Outcome) {
	v.Log.Info("reviewed", zap.String("namespace", printable.Truncate(q.Namespace, longestName)), zap.String("pod", printable.Truncate(nameOf(pod), longestName)), zap.String("uid", printable.Truncate(string(q.UID), longestName)),
		zap.String("verdict", string(out.Verdict)), zap.String("reason", out.Reason), zap.String("confidence", string(out.Confidence)), zap.String("text", printable.Truncate(out.Text, longestText)), zap.Strings("warnings", warnings(out.Warnings)))
}

// nameOf is a pod's name, or how it will begin.
func nameOf(pod any) string {
	m, _ := pod.(map[string]any)
	metadata, _ := m["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	begin, _ := metadata["generateName"].(string)
	return cmp.Or(name, begin)
}

func audit(out inject.Outcome) map[string]string {
	notes := map[string]string{"verdict": string(out.Verdict)}
	if out.Reason != "" {
		notes["reason"] = out.Reason
	}
	if out.Confidence != "" {
		notes["confidence"] = string(out.Confidence)
	}
	return notes
}

// warnings are those that Kubernetes shows whole.
func warnings(all []string) []string {
	var short []string
	for _, w := range all[:min(len(all), mostWarnings)] {
		short = append(short, printable.Truncate(w, longestWarning))
	}
	return short
}
