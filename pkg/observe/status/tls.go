package status

import (
	"fmt"
	"strings"
	"time"
)

// TLS describes TLS on the port for requests. Sources.TLS must limit the length of all strings and lists.
type TLS struct {
	On    bool   `json:"on"` // requests over TLS are served
	Port  int    `json:"port"`
	Error string `json:"error,omitempty"` // error that prevents the use of the port or of the certificate files

	// ClientCertificates is true if each client must have a certificate.
	ClientCertificates bool `json:"clientCertificates"`

	// The following fields describe the certificate in use. Without a certificate, they are empty.
	Subject   string    `json:"subject,omitempty"`
	Names     []string  `json:"names,omitempty"` // host names and IP addresses
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"`

	// The following fields are set by describe.
	Validity string `json:"validity,omitempty"` // valid, expired or not-yet-valid
	Text     string `json:"text"`               // all fields in one line
}

// Values of TLS.Validity.
const (
	certificateValid       = "valid"
	certificateExpired     = "expired"
	certificateNotYetValid = "not-yet-valid"
)

// maxNames is the maximum number of names of the certificate in TLS.Text.
const maxNames = 2

// validityAt returns the validity of the certificate at the given time, or "" without a certificate.
func (t *TLS) validityAt(now time.Time) string {
	switch {
	case t.NotAfter.IsZero():
		return ""
	case now.After(t.NotAfter):
		return certificateExpired
	case now.Before(t.NotBefore):
		return certificateNotYetValid
	}
	return certificateValid
}

// describe sets Validity and Text.
func (t *TLS) describe(now time.Time) {
	t.Validity = t.validityAt(now)
	var b strings.Builder
	switch {
	case t.On:
		fmt.Fprintf(&b, "on, port %d", t.Port)
	case t.Error != "":
		b.WriteString("off")
	default:
		b.WriteString("off, no certificate")
	}
	if t.Validity != "" {
		name := t.Subject
		if n := len(t.Names); n > 0 {
			name = strings.Join(t.Names[:min(n, maxNames)], ", ")
			if n > maxNames {
				name += " and others"
			}
		}
		fmt.Fprintf(&b, ", certificate for %s, ", name)
		const layout = "2006-01-02 15:04 MST"
		until, from := t.NotAfter.UTC().Format(layout), t.NotBefore.UTC().Format(layout)
		switch t.Validity {
		case certificateExpired:
			fmt.Fprintf(&b, "expired %s ago (%s), rejected by clients", rounded(now.Sub(t.NotAfter)), until)
		case certificateNotYetValid:
			fmt.Fprintf(&b, "not valid until %s (in %s)", from, rounded(t.NotBefore.Sub(now)))
		default:
			fmt.Fprintf(&b, "expires in %s (%s)", rounded(t.NotAfter.Sub(now)), until)
		}
	}
	if t.ClientCertificates {
		b.WriteString(", client certificate required")
	}
	b.WriteString(t.errorText())
	t.Text = b.String()
}

// inUse returns Text without the error, because the TLS problem contains the error. It returns "" if clients reject
// the certificate, or if there is an error and no certificate, because the problem then describes the complete state.
func (t *TLS) inUse() string {
	if t.Validity == certificateExpired || t.Validity == certificateNotYetValid || t.Validity == "" && t.Error != "" {
		return ""
	}
	return strings.TrimSuffix(t.Text, t.errorText())
}

// errorText returns the error as the last part of Text, or "" if there is no error.
func (t *TLS) errorText() string {
	if t.Error == "" {
		return ""
	}
	return "; error: " + t.Error
}

// rounded returns a duration in days, or in smaller units if it is shorter than two days.
func rounded(d time.Duration) string {
	const day = 24 * time.Hour
	if d < 2*day {
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%d days", d/day)
}

// expiredAt returns the time at which the certificate expired. It returns the zero time if the certificate has not
// expired.
func (t *TLS) expiredAt(now time.Time) (at time.Time) {
	if now.After(t.NotAfter) {
		at = t.NotAfter
	}
	return at
}
