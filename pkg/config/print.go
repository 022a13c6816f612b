package config

import (
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// A Setting describes the value of a setting in output and logs.
type Setting struct {
	Name   string `json:"name"`             // name of the variable
	Value  string `json:"value"`            // value in the syntax of the variable, without secrets; "" if the setting has no value
	Source string `json:"source"`           // environment, default or derived
	From   string `json:"from,omitempty"`   // variable that contained the value, which may be another name of the setting; "" unless Source is environment
	Secret bool   `json:"secret,omitempty"` // the value is a secret, and Value does not contain it
}

// Values of Setting.Source.
const (
	fromEnvironment = "environment"
	fromDefault     = "default"
	fromOthers      = "derived" // derived from other settings, or set by the program
)

// Words returns the allowed words of a boolean or of a setting with a fixed set of words. It returns nil for
// other settings. name is the name of the variable.
func (c *Config) Words(name string) []string {
	bound := *c // fields modifies its receiver
	for _, f := range bound.fields() {
		if s, isWord := f.setting.(interface{ words() []string }); isWord && f.Name() == name {
			return s.words()
		}
	}
	return nil
}

// Settings returns all settings in a fixed order. It hides the user, password, query and fragment of
// URLs, the header values of probes, and the header fields for collectors.
func (c *Config) Settings() []Setting {
	var all []Setting
	bound, defaults := *c, defaultValues()
	for i, f := range bound.fields() {
		s := Setting{Name: f.name, Value: shown(f), From: f.at().from, Secret: f.tag.Get("hide") == hideAll}
		switch {
		case s.From != "":
			s.Source = fromEnvironment
		case f.tag.Get("derived") == "" && f.String() == defaults[i]:
			s.Source = fromDefault
		default:
			s.Source = fromOthers
		}
		all = append(all, s)
	}
	return all
}

// Values returns an iterator over the name and the value of each setting that has a value. The values are
// the same as in [Config.Settings]. Values does not determine the source of a value, because this is the
// most expensive part of Settings and the values are logged at startup.
func (c *Config) Values() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		bound := *c
		for _, f := range bound.fields() {
			if value := shown(f); value != "" && !yield(f.name, value) {
				return
			}
		}
	}
}

// Warnings returns one message for each variable that is probably misspelled, has no effect, or has a
// value that was ignored or changed.
//
// If c was returned by [Load] and hasCertificate is false, Warnings checks whether the certificate directory contains a
// certificate. The warning about a missing certificate is the first one, because `queue-proxy why` can omit the last
// warnings.
func (c *Config) Warnings(hasCertificate bool) []string {
	if hasCertificate {
		return slices.Clone(c.warnings)
	}
	return slices.Concat(c.noCertificate(), c.warnings)
}

// settingsToWrite returns all settings. If changedOnly is set, it omits a setting if its value is not from
// the environment and is equal to the value in [Default].
func (c *Config) settingsToWrite(changedOnly bool) []Setting {
	all := c.Settings()
	if !changedOnly {
		return all
	}
	changed := []Setting{}                   // not nil, so that WriteJSON writes an array
	for i, d := range Default().Settings() { // Settings returns the settings in a fixed order
		if s := all[i]; s.From != "" || s.Value != d.Value {
			changed = append(changed, s)
		}
	}
	return changed
}

// Write writes a table with the name, the value and the source of each setting, followed by
// warnings. If changedOnly is set, it omits the settings that are unset and have their default values. It
// ignores write errors.
func (c *Config) Write(w io.Writer, changedOnly bool, warnings []string) {
	const widest = 40 // in characters; longer values do not determine the column width
	settings := c.settingsToWrite(changedOnly)
	names, values := 0, 0
	for i := range settings {
		s := &settings[i]
		if s.Value == "" {
			s.Value = "-"
		}
		names = max(names, len(s.Name))
		if n := utf8.RuneCountInString(s.Value); n <= widest {
			values = max(values, n)
		}
	}
	var text strings.Builder
	for _, s := range settings {
		source := s.Source
		if s.From != "" && s.From != s.Name {
			source += " (" + s.From + ")"
		}
		fmt.Fprintf(&text, "%-*s  %-*s  %s\n", names, s.Name, values, s.Value, source)
	}
	if len(settings) == 0 {
		text.WriteString("All settings have their defaults.\n")
	}
	for i, warning := range warnings {
		if i == 0 {
			text.WriteByte('\n')
		}
		fmt.Fprintf(&text, "warning: %s\n", warning)
	}
	_, _ = io.WriteString(w, text.String())
}

// WriteJSON writes a JSON object with the arrays settings and warnings. If changedOnly is set, it omits the
// same settings as Write. It ignores write errors.
func (c *Config) WriteJSON(w io.Writer, changedOnly bool, warnings []string) {
	_ = message.JSON(w, struct {
		Settings []Setting `json:"settings"`
		Warnings []string  `json:"warnings"`
	}{c.settingsToWrite(changedOnly), append([]string{}, warnings...)})
}
