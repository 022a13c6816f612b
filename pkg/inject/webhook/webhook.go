// Package webhook injects queue-proxy into the pods in admission requests from an API server.
//
// [Server] runs a [Reviewer], which handles AdmissionReviews of admission.k8s.io/v1. Package inject
// makes all decisions, so the webhook and the command line produce the same results. The
// certificate is read from files, or created and published by [Self].
//
// The webhook does not authenticate its clients by default. Therefore, a response only contains
// data from the request.
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

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// reviewPath is the path of the handler for reviews.
const reviewPath = "/inject"

// Limits for reviews.
const (
	// maxReviewBytes is the maximum length of a review. An API server accepts objects of up to 3
	// MiB.
	maxReviewBytes = 8 << 20
	// maxValues is the maximum number of JSON values in a review. A pod of 500 containers with 20
	// variables each has 31 000 values. A review with more values is refused before its pod is
	// decoded, because the decoded value {} needs a hundred times as much memory as its text.
	maxValues = 50_000
	// Reviews and responses that are longer than smallBytes share memoryOfTexts until the response
	// is written. Shorter reviews and responses, which are by far the most common, do not use this
	// memory. Therefore, slow clients do not delay them.
	smallBytes    = 32 << 10
	memoryOfTexts = 24 << 20
	// Each review reserves payload.cost bytes while it is processed. Long and short reviews use
	// separate budgets, so that short reviews do not wait for long ones. At most maxShortReviews
	// short reviews are processed concurrently.
	memoryOfLong    = 48 << 20
	memoryOfShort   = 16 << 20
	maxShortReviews = 16
	// reviewTimeout is the timeout of the API server for a review. The webhook configuration sets
	// it.
	reviewTimeout = 5 * time.Second
	// transferTimeout is the maximum time to receive a long review or to write a long response. It is
	// short, because other reviews may wait for the memory that the transfer uses.
	transferTimeout = 2 * time.Second
	// Kubernetes truncates longer warnings, and warnings that exceed 4 KiB in total.
	maxWarningLength, maxWarnings = 256, 8
	// Maximum lengths of strings from the request in log entries and error messages.
	maxNameLength, maxTextLength = 256, 4 << 10
)

// A Reviewer handles reviews. It is an [http.Handler] that is safe for concurrent use.
type Reviewer struct {
	Options inject.Options // default options; annotations override them
	Lenient bool           // admit pods that cannot be injected, and return a warning; false denies these pods
	Log     *zap.Logger
	Metrics *Metrics
	Events  *Events // nil disables events

	limit time.Duration // maximum time of a review

	// Each slot is one byte of memory. short and long limit the memory of the reviews that are being
	// processed, and texts limits the memory for the content of long reviews and responses. If a
	// review needs more slots than a semaphore has, it waits until no other review holds a slot.
	// Waiting reviews are served round-robin by client address.
	short, long, texts *fair.Semaphore
}

// NewReviewer returns a Reviewer that does not write events and that denies pods that cannot be
// injected.
func NewReviewer(opts inject.Options, log *zap.Logger, m *Metrics) *Reviewer {
	return &Reviewer{
		Options: opts, Log: log, Metrics: m, limit: reviewTimeout,
		short: memory(memoryOfShort), long: memory(memoryOfLong), texts: memory(memoryOfTexts),
	}
}

// memory returns a semaphore with size slots of one byte. A connection has at most one review, so
// the queue is never full.
func memory(size int) *fair.Semaphore {
	return fair.New(fair.Options{Slots: size, Queue: maxConnections})
}

// ServeHTTP handles one review. The response to an invalid request has the status 400, 405, 413 or
// 415 and a line of text.
func (v *Reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(r.Context(), v.limit)
	defer cancel()
	client := fair.Address(r.RemoteAddr)
	p, slot, failed := v.read(ctx, w, r)
	if slot != nil {
		defer slot.Release()
	}
	if failed != nil {
		v.fail(w, failed)
		return
	}
	out, answer, failed := v.decide(ctx, client, p)
	if more := len(answer) - p.reserved; failed == nil && len(answer) > smallBytes && more > 0 {
		done, cancel := context.WithCancel(ctx)
		cancel() // do not wait for memory, because the response would occupy memory during the wait
		if slot, err := v.texts.Acquire(done, fair.Request{Client: client, Weight: more}); err == nil {
			defer slot.Release()
			p.reserved += more
		} else {
			failed = &failure{busyResponses, "too many concurrent large responses"}
		}
	}
	if failed != nil {
		v.fail(w, failed)
		return
	}
	v.Metrics.review(out, time.Since(begin))
	w.Header().Set("Content-Type", "application/json")
	if p.reserved > 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(transferTimeout))
	}
	// An error means that the client has closed the connection.
	_, _ = w.Write(answer)
}

// A failure is the reason why a request receives an HTTP error.
type failure struct {
	reason string // one of failureStatuses
	text   string
}

// timeoutFailure returns the failure of a review that exceeds its time limit.
func timeoutFailure() *failure { return &failure{outOfTime, "timeout"} }

// decide returns the response to a payload, or a failure. It waits for memory, and releases the
// memory and the payload before it returns, because the client can be slow to read the response.
func (v *Reviewer) decide(ctx context.Context, client netip.Addr, p *payload) (out inject.Outcome, answer []byte, failed *failure) {
	memory := v.short
	if len(p.text) >= smallBytes {
		memory = v.long
	}
	slot, err := memory.Acquire(ctx, fair.Request{Client: client, Weight: p.cost()})
	if err != nil {
		return out, nil, &failure{busyReviews, "too many concurrent reviews"}
	}
	defer slot.Release()
	asked, err := parse(p.text)
	p.text = nil
	if err != nil {
		return out, nil, &failure{invalidReview, err.Error()}
	}
	response := &admissionv1.AdmissionReview{TypeMeta: asked.TypeMeta}
	if out, response.Response, failed = v.answer(ctx, asked.Request, p.values); failed != nil {
		return out, nil, failed
	}
	if answer, err = json.Marshal(response); err != nil {
		v.Log.Error("failed to encode the response", zap.Error(err))
		return out, nil, &failure{internal, "failed to encode the response"}
	}
	return out, answer, nil
}

func (v *Reviewer) fail(w http.ResponseWriter, f *failure) {
	text, status := message.Truncate(f.text, maxTextLength), failureStatuses[f.reason]
	v.Metrics.failed(f.reason)
	v.Log.Warn("rejected review", zap.Int("status", status), zap.String("reason", f.reason), zap.String("error", text))
	http.Error(w, text, status)
}

// read returns the payload of a request, or a failure. In both cases, the caller must release the
// slot of v.texts, which is nil if the review is short.
func (v *Reviewer) read(ctx context.Context, w http.ResponseWriter, r *http.Request) (p *payload, slot *fair.Slot, failed *failure) {
	long := &failure{tooLong, fmt.Sprintf("the review exceeds the limit of %d bytes", maxReviewBytes)}
	switch kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		return nil, nil, &failure{badMethod, fmt.Sprintf("method %s: want POST", r.Method)}
	case err != nil || kind != "application/json":
		return nil, nil, &failure{badType, "want a body with Content-Type application/json"}
	case r.ContentLength > maxReviewBytes:
		return nil, nil, long
	}
	var count counter
	body := io.TeeReader(http.MaxBytesReader(w, r.Body, maxReviewBytes), &count)
	p = new(payload)
	var err error
	fair.Waiting(ctx, func() { p.text, err = io.ReadAll(io.LimitReader(body, smallBytes)) })
	if err == nil && len(p.text) == smallBytes {
		if p.reserved = int(r.ContentLength); p.reserved < 0 { // Content-Length is missing, for example because a proxy removed it
			p.reserved = maxReviewBytes
		}
		if slot, err = v.texts.Acquire(ctx, fair.Request{Client: fair.Address(r.RemoteAddr), Weight: p.reserved}); err != nil {
			return nil, nil, &failure{busyBodies, "too many concurrent large reviews"}
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(transferTimeout)) // not supported by the response writers of some tests
		whole := bytes.NewBuffer(make([]byte, 0, p.reserved+bytes.MinRead))                // allocate the whole buffer, so that it does not grow
		whole.Write(p.text)
		fair.Waiting(ctx, func() { _, err = whole.ReadFrom(body) })
		p.text = whole.Bytes()
	}
	if _, is := errors.AsType[*http.MaxBytesError](err); is {
		return nil, slot, long
	}
	if err != nil {
		return nil, slot, &failure{cutOff, "read request body: unexpected end"}
	}
	p.values = 1 + count.values
	return p, slot, nil
}

// answer injects the object of a review, if it is a pod, and returns the outcome and the response.
// values is the number of JSON values in the review. The failure is nil or the result of
// timeoutFailure.
func (v *Reviewer) answer(ctx context.Context, q *admissionRequest, values int) (inject.Outcome, *admissionv1.AdmissionResponse, *failure) {
	a := &admissionv1.AdmissionResponse{UID: q.UID, Allowed: true}
	if q.Resource != (metav1.GroupVersionResource{Version: "v1", Resource: "pods"}) || q.SubResource != "" || q.Operation != admissionv1.Create {
		return inject.Outcome{Verdict: inject.Skipped, Reason: inject.NoPods}, a, nil
	}
	if values > maxValues {
		return v.refuse(q, a, nil, refusal(inject.TooLarge, fmt.Sprintf("the review exceeds the limit of %d JSON values", maxValues))), a, nil
	}
	// The limits on the length of the review and on the number of its values bound the duration of
	// each step. Therefore, it is sufficient to check the time limit between the steps.
	if ctx.Err() != nil {
		return inject.Outcome{}, nil, timeoutFailure()
	}
	pod, err := inject.Decode(q.Object)
	if err != nil {
		return v.refuse(q, a, nil, refusal(inject.Unreadable, "invalid pod: "+err.Error())), a, nil
	}
	q.Object = nil
	if ctx.Err() != nil {
		return inject.Outcome{}, nil, timeoutFailure()
	}
	out := inject.Inject(pod, v.Options)
	switch out.Verdict {
	case inject.Refused:
		return v.refuse(q, a, pod, out), a, nil
	case inject.Skipped:
		v.record(q, pod, out)
	case inject.Injected:
		if ctx.Err() != nil {
			return inject.Outcome{}, nil, timeoutFailure()
		}
		patch, err := inject.JSONPatch(pod, out.Changes)
		if err != nil {
			return v.refuse(q, a, pod, refusal(inject.Unreadable, err.Error())), a, nil
		}
		a.Patch, a.PatchType = patch, new(admissionv1.PatchTypeJSONPatch)
		if out.PortName == "" { // if the port has a name, Services need no change
			out.Warnings = append(out.Warnings, inject.Unserved(out))
		}
		a.Warnings = warnings(out.Warnings)
		v.log(q, pod, out)
		if out.Confidence == inject.Low && v.Events != nil && !q.DryRun {
			v.Events.enqueue(q.Namespace, pod, out)
		}
	}
	a.AuditAnnotations = audit(out)
	return out, a, nil
}

func refusal(reason, text string) inject.Outcome {
	return inject.Outcome{Verdict: inject.Refused, Reason: reason, Text: text}
}

// refuse denies a pod. If v.Lenient is set, it instead admits the pod unchanged, with a warning.
func (v *Reviewer) refuse(q *admissionRequest, a *admissionv1.AdmissionResponse, pod any, out inject.Outcome) inject.Outcome {
	text := message.Truncate("failed to inject queue-proxy: "+out.Text, maxTextLength)
	if v.Lenient {
		a.Warnings = warnings([]string{text})
	} else {
		a.Allowed = false
		a.Result = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: text}
	}
	a.AuditAnnotations = audit(out)
	v.record(q, pod, out)
	return out
}

// record logs an outcome and creates an event. It ignores pods that are already injected or opted
// out.
func (v *Reviewer) record(q *admissionRequest, pod any, out inject.Outcome) {
	if out.Reason == inject.AlreadyInjected || out.Reason == inject.OptedOut {
		return
	}
	v.log(q, pod, out)
	if v.Events != nil && !q.DryRun {
		v.Events.enqueue(q.Namespace, pod, out)
	}
}

func (v *Reviewer) log(q *admissionRequest, pod any, out inject.Outcome) {
	v.Log.Info("reviewed", zap.String("namespace", message.Truncate(q.Namespace, maxNameLength)), zap.String("pod", message.Truncate(nameOf(pod), maxNameLength)), zap.String("uid", message.Truncate(string(q.UID), maxNameLength)),
		zap.String("verdict", string(out.Verdict)), zap.String("reason", out.Reason), zap.String("confidence", string(out.Confidence)), zap.String("text", message.Truncate(out.Text, maxTextLength)), zap.Strings("warnings", warnings(out.Warnings)))
}

// nameOf returns the name of a pod, or the prefix of its generated name.
func nameOf(pod any) string {
	metadata := inject.At(pod, "metadata")
	return cmp.Or(inject.Text(metadata, "name"), inject.Text(metadata, "generateName"))
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

// warnings truncates warnings to the limits of Kubernetes.
func warnings(all []string) []string {
	var short []string
	for _, w := range all[:min(len(all), maxWarnings)] {
		short = append(short, message.Truncate(w, maxWarningLength))
	}
	return short
}
