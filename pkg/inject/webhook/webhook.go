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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/queue-proxy/queue-proxy/pkg/crowd"
	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// Path is where reviews are asked for.
const Path = "/inject"

// Bounds of a review.
const (
	// An API server takes objects of up to 3 MiB and wraps them in a review.
	mostBytes = 8 << 20
	// More reviews at once wait for one another, and of more than smallBytes for one
	// another's ends: each may hold mostBytes several times. Those that are shorter, as
	// nearly all are, and their answers too, wait for nobody while they arrive and while
	// they are taken, however slowly others do.
	mostReviews = 16
	smallBytes  = 32 << 10
	// An API server that follows our configuration gives up after 5 s.
	longestReview = 5 * time.Second
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

	slots chan struct{} // held by reviews that are being decided
	large chan struct{} // held by those of smallBytes, or such answers, to their end
}

// NewReviewer makes a Reviewer that says everything and admits nothing that it refuses.
func NewReviewer(said inject.Options, log *zap.Logger, m *Metrics) *Reviewer {
	return &Reviewer{
		Options: said, Log: log, Metrics: m,
		slots: make(chan struct{}, mostReviews), large: make(chan struct{}, mostReviews),
	}
}

// ServeHTTP answers one review. What is no review hears 400, 405, 413 or 415 and a line
// of text.
func (v *Reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(r.Context(), longestReview)
	defer cancel()
	text, done, status, err := v.read(ctx, w, r)
	defer func() { done() }()
	if err != nil {
		v.fail(ctx, w, status, err.Error())
		return
	}
	large := len(text) >= smallBytes
	out, text, status, err := v.decide(ctx, text)
	if err == nil && len(text) >= smallBytes && !large {
		select {
		case v.large <- struct{}{}:
			done = func() { <-v.large }
		default: // and while it waited, the answer would be held
			status, err = http.StatusServiceUnavailable, errors.New("too many large answers at once")
		}
	}
	if err != nil {
		v.fail(ctx, w, status, err.Error())
		return
	}
	v.Metrics.review(out, time.Since(begin))
	w.Header().Set("Content-Type", "application/json")
	// One who does not listen has no need of an answer.
	crowd.Waiting(ctx, func() { _, _ = w.Write(text) })
}

// decide makes an answer of a question, or says with which status there is none. It
// waits for a slot, and holds it no longer: the answer is taken when its peer likes.
func (v *Reviewer) decide(ctx context.Context, question []byte) (out inject.Outcome, text []byte, status int, err error) {
	if !enter(ctx, v.slots) {
		return out, nil, http.StatusServiceUnavailable, errors.New("too many reviews at once")
	}
	defer func() { <-v.slots }()
	review, err := parse(question)
	if err != nil {
		return out, nil, http.StatusBadRequest, err
	}
	out, review.Response = v.answer(review.Request)
	review.Request = nil
	if text, err = json.Marshal(review); err != nil {
		v.Log.Error("an answer has no JSON form", zap.Error(err))
		return out, nil, http.StatusInternalServerError, errors.New("the answer has no JSON form")
	}
	return out, text, 0, nil
}

// enter takes one of the places, unless ctx ends first.
func enter(ctx context.Context, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (v *Reviewer) fail(ctx context.Context, w http.ResponseWriter, status int, text string) {
	text = brief(text, longestText)
	v.Metrics.failure(status)
	v.Log.Warn("no review", zap.Int("status", status), zap.String("error", text))
	crowd.Waiting(ctx, func() { http.Error(w, text, status) })
}

// read reads a question, or says with which status it cannot be read. done is called
// when nothing of it is held any more.
func (v *Reviewer) read(ctx context.Context, w http.ResponseWriter, r *http.Request) (text []byte, done func(), status int, err error) {
	done = func() {}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, done, http.StatusMethodNotAllowed, fmt.Errorf("method %s: POST is wanted", r.Method)
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, done, http.StatusUnsupportedMediaType, errors.New("a body of application/json is wanted")
	}
	body := http.MaxBytesReader(w, r.Body, mostBytes)
	crowd.Waiting(ctx, func() { text, err = io.ReadAll(io.LimitReader(body, smallBytes)) })
	if err == nil && len(text) == smallBytes {
		if !enter(ctx, v.large) {
			return nil, done, http.StatusServiceUnavailable, errors.New("too many large reviews at once")
		}
		done = func() { <-v.large }
		var rest []byte
		crowd.Waiting(ctx, func() { rest, err = io.ReadAll(body) })
		text = append(text, rest...)
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, done, http.StatusRequestEntityTooLarge, fmt.Errorf("a review of more than %d bytes", mostBytes)
	case err != nil:
		return nil, done, http.StatusBadRequest, errors.New("the body ended too early")
	}
	return text, done, 0, nil
}

// parse takes a question apart, or says why it is none.
func parse(text []byte) (*admissionv1.AdmissionReview, error) {
	review := new(admissionv1.AdmissionReview)
	if err := json.Unmarshal(text, review); err != nil {
		return nil, fmt.Errorf("not a review: %w", err)
	}
	switch {
	case review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview":
		return nil, fmt.Errorf("%.64q %.64q: %s AdmissionReview is wanted", review.APIVersion, review.Kind, admissionv1.SchemeGroupVersion)
	case review.Request == nil:
		return nil, errors.New("a review without a request")
	case review.Request.UID == "":
		return nil, errors.New("a review without a uid")
	}
	return review, nil
}

// answer decides about one object.
func (v *Reviewer) answer(q *admissionv1.AdmissionRequest) (inject.Outcome, *admissionv1.AdmissionResponse) {
	a := &admissionv1.AdmissionResponse{UID: q.UID, Allowed: true}
	if q.Resource != (metav1.GroupVersionResource{Version: "v1", Resource: "pods"}) || q.SubResource != "" || q.Operation != admissionv1.Create {
		return inject.Outcome{Verdict: inject.Skipped, Reason: inject.NoPods}, a
	}
	pod, err := inject.Decode(q.Object.Raw)
	if err != nil {
		return v.refuse(q, a, nil, inject.Outcome{Verdict: inject.Refused, Reason: inject.Unreadable, Text: "not a pod: " + err.Error()})
	}
	out := inject.Inject(pod, v.Options)
	switch out.Verdict {
	case inject.Refused:
		return v.refuse(q, a, pod, out)
	case inject.Skipped:
		v.tell(q, pod, out)
	case inject.Injected:
		patch, err := inject.JSONPatch(pod, out.Changes)
		if err != nil {
			return v.refuse(q, a, pod, inject.Outcome{Verdict: inject.Refused, Reason: inject.Unreadable, Text: err.Error()})
		}
		kind := admissionv1.PatchTypeJSONPatch
		a.Patch, a.PatchType = patch, &kind
		if out.PortName == "" { // by name, the Services that there may be need no edit
			out.Warnings = append(out.Warnings, inject.Unserved(out))
		}
		a.Warnings = warnings(out.Warnings)
		v.log(q, pod, out)
	}
	a.AuditAnnotations = audit(out)
	return out, a
}

// refuse says no to a pod, or lets it in as it is, with a warning.
func (v *Reviewer) refuse(q *admissionv1.AdmissionRequest, a *admissionv1.AdmissionResponse, pod any, out inject.Outcome) (inject.Outcome, *admissionv1.AdmissionResponse) {
	text := brief("queue-proxy cannot be injected: "+out.Text, longestText)
	if v.Lenient {
		a.Warnings = warnings([]string{text})
	} else {
		a.Allowed = false
		a.Result = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: text}
	}
	a.AuditAnnotations = audit(out)
	v.tell(q, pod, out)
	return out, a
}

// tell logs an outcome and writes an event about it, unless somebody asked for it.
func (v *Reviewer) tell(q *admissionv1.AdmissionRequest, pod any, out inject.Outcome) {
	if out.Reason == inject.AlreadyInjected || out.Reason == inject.OptedOut {
		return
	}
	v.log(q, pod, out)
	if v.Events != nil && (q.DryRun == nil || !*q.DryRun) {
		v.Events.about(q.Namespace, pod, out)
	}
}

func (v *Reviewer) log(q *admissionv1.AdmissionRequest, pod any, out inject.Outcome) {
	v.Log.Info("reviewed", zap.String("namespace", brief(q.Namespace, longestName)), zap.String("pod", brief(nameOf(pod), longestName)), zap.String("uid", brief(string(q.UID), longestName)),
		zap.String("verdict", string(out.Verdict)), zap.String("reason", out.Reason), zap.String("text", brief(out.Text, longestText)), zap.Strings("warnings", warnings(out.Warnings)))
}

// nameOf is a pod's name, or how it will begin.
func nameOf(pod any) string {
	m, _ := pod.(map[string]any)
	metadata, _ := m["metadata"].(map[string]any)
	for _, key := range []string{"name", "generateName"} {
		if name, _ := metadata[key].(string); name != "" {
			return name
		}
	}
	return ""
}

func audit(out inject.Outcome) map[string]string {
	notes := map[string]string{"verdict": string(out.Verdict)}
	if out.Reason != "" {
		notes["reason"] = out.Reason
	}
	return notes
}

// warnings are those that Kubernetes shows whole.
func warnings(all []string) []string {
	var short []string
	for _, w := range all[:min(len(all), mostWarnings)] {
		short = append(short, brief(w, longestWarning))
	}
	return short
}

// brief is text of at most so many bytes.
func brief(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most-3], "") + "..."
	}
	return text
}
