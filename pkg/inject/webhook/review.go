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

// A payload is the body of a request as it came.
type payload struct {
	text   []byte
	values int // of JSON, at least as many as it has
}

// cost is what it takes to decide about a payload, in bytes of memory: measured with the
// heaviest of either kind (cmd/injector/abuse_memory_test.go).
func (p *payload) cost() int {
	const perByte, perValue = 6, 1 << 10
	return max(perByte*len(p.text)+perValue*min(p.values, mostValues), memoryOfShort/mostShort)
}

// An admissionReview is the part of an AdmissionReview that is read. What else there is, such as the
// groups of the user who asks, is passed over and not kept.
type admissionReview struct {
	metav1.TypeMeta `json:",inline"`

	Request *admissionRequest `json:"request"`
}

// An admissionRequest is the part of an AdmissionRequest that is read.
type admissionRequest struct {
	UID         types.UID                   `json:"uid"`
	Resource    metav1.GroupVersionResource `json:"resource"`
	SubResource string                      `json:"subResource"`
	Namespace   string                      `json:"namespace"`
	Operation   admissionv1.Operation       `json:"operation"`
	Object      json.RawMessage             `json:"object"`
	DryRun      bool                        `json:"dryRun"`
}

// parse takes a payload apart, or returns why it is no review.
func parse(text []byte) (*admissionReview, error) {
	if !utf8.Valid(text) { // RFC 8259 section 8.1; decoded, each such byte would become three
		return nil, errors.New("not a review: not UTF-8")
	}
	r := new(admissionReview)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("not a review: %w", err)
	}
	switch {
	case r.APIVersion != admissionv1.SchemeGroupVersion.String() || r.Kind != "AdmissionReview":
		return nil, fmt.Errorf("%.64q %.64q: %s AdmissionReview is wanted", r.APIVersion, r.Kind, admissionv1.SchemeGroupVersion)
	case r.Request == nil:
		return nil, errors.New("a review without a request")
	case r.Request.UID == "":
		return nil, errors.New("a review without a uid")
	case len(r.Request.UID) > longestName: // it is sent back, each byte as up to six
		return nil, fmt.Errorf("a review with a uid of more than %d bytes", longestName)
	}
	return r, nil
}

// A counter counts the values of JSON that are written to it, in any pieces: one for each
// opening bracket and each comma. That is never less than there are, and more by the empty
// maps and lists. It is no parser: what is no JSON has some number too, and decoding that
// ends no later.
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
