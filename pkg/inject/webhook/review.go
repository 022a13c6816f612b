package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A payload is the body of a request.
type payload struct {
	text     []byte
	values   int // upper bound of the number of JSON values
	reserved int // number of bytes of Reviewer.texts that the request uses
}

// cost returns the memory in bytes that is needed to process a payload. The factors were measured
// with the most expensive payloads (cmd/injector/abuse_memory_test.go).
func (p *payload) cost() int {
	const perByte, perValue = 6, 1 << 10
	return max(perByte*len(p.text)+perValue*min(p.values, maxValues), memoryOfShort/maxShortReviews)
}

// An admissionReview contains the fields of an AdmissionReview that the webhook uses.
// Other fields, such as the groups of the user, are not kept in memory.
type admissionReview struct {
	metav1.TypeMeta `json:",inline"`

	Request *admissionRequest `json:"request"`
}

// An admissionRequest contains the fields of an AdmissionRequest that the webhook uses.
type admissionRequest struct {
	UID         types.UID                   `json:"uid"`
	Resource    metav1.GroupVersionResource `json:"resource"`
	SubResource string                      `json:"subResource"`
	Namespace   string                      `json:"namespace"`
	Operation   admissionv1.Operation       `json:"operation"`
	Object      json.RawMessage             `json:"object"`
	DryRun      bool                        `json:"dryRun"`
}

// parse decodes a payload. It returns an error if the payload is not a valid AdmissionReview.
func parse(text []byte) (*admissionReview, error) {
	if !utf8.Valid(text) { // RFC 8259 section 8.1 requires UTF-8; the decoder would replace each invalid byte with three bytes
		return nil, errors.New("invalid AdmissionReview: not UTF-8")
	}
	r := new(admissionReview)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("invalid AdmissionReview: %w", err)
	}
	switch {
	case r.APIVersion != admissionv1.SchemeGroupVersion.String() || r.Kind != "AdmissionReview":
		return nil, fmt.Errorf("apiVersion %.64q, kind %.64q: want %s AdmissionReview", r.APIVersion, r.Kind, admissionv1.SchemeGroupVersion)
	case r.Request == nil:
		return nil, errors.New("AdmissionReview has no request")
	case r.Request.UID == "":
		return nil, errors.New("AdmissionReview has no uid")
	case len(r.Request.UID) > maxNameLength: // the response contains the uid, and encoding a byte in JSON can require six bytes
		return nil, fmt.Errorf("the uid of the AdmissionReview exceeds the limit of %d bytes", maxNameLength)
	}
	return r, nil
}

// A counter counts the JSON values in the bytes that are written to it: one for each opening brace,
// opening bracket and comma. The result is an upper bound, because empty maps and lists are counted
// twice. The counter does not validate JSON. For invalid JSON, the decoder stops at the error.
type counter struct {
	values          int
	inText, escaped bool
}

// Write implements [io.Writer]. It returns no error.
func (c *counter) Write(p []byte) (int, error) {
	for _, b := range p {
		switch {
		case c.escaped:
			c.escaped = false
		case c.inText:
			switch b {
			case '"':
				c.inText = false
			case '\\':
				c.escaped = true
			}
		case b == '"':
			c.inText = true
		case b == '{' || b == '[' || b == ',':
			c.values++
		}
	}
	return len(p), nil
}
