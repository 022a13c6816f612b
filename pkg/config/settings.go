package config

import (
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// A Setting is one value in force, for people and logs.
type Setting struct {
	Name   string `json:"name"`             // the variable
	Value  string `json:"value"`            // as it would be written there; "" where it is not set; a secret is never shown
	Source string `json:"source"`           // one of the Sources
	From   string `json:"from,omitempty"`   // the variable that it was read from, which can be another name for Name; "" unless Source is FromEnvironment
	Secret bool   `json:"secret,omitempty"` // Value is not the value
}

// Where a setting comes from.
const (
	fromEnvironment = "environment"
	fromDefault     = "default"
	fromOthers      = "derived" // from other settings, or set by the program
)

// Settings is every setting in force, always in the same order. The user, password and
// query of URLs, header values of probes and the collector's headers are hidden.
func (c *Config) Settings() []Setting {
	var all []Setting
	bound, unset := *c, Default().fields()
	for i, f := range bound.fields() {
		s := Setting{Name: f.name, Value: shown(f), From: f.at().from, Secret: f.tag.Get("hide") == hideAll}
		switch {
		case s.From != "":
			s.Source = fromEnvironment
		case f.tag.Get("derived") == "" && f.String() == unset[i].String():
			s.Source = fromDefault
		default:
			s.Source = fromOthers
		}
		all = append(all, s)
	}
	return all
}

// Values yields the name and the value of every setting in force that has a value, as
// in [Config.Settings]. Where a value comes from is not worked out, which at start
// costs more than all the rest.
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

// Warnings says, a line each, which variables are probably misspelt, which values were
// not used as they were written, and which have no effect.
func (c *Config) Warnings() []string { return slices.Clone(c.warnings) }

// Write prints the settings in force for people: name, value and where it came from,
// and below them the warnings. Errors of w are its owner's business.
func (c *Config) Write(w io.Writer) {
	const widest = 40 // letters of a value that moves the last column; longer ones stick out
	settings := c.Settings()
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
	for i, warning := range c.warnings {
		if i == 0 {
			text.WriteByte('\n')
		}
		fmt.Fprintf(&text, "warning: %s\n", warning)
	}
	_, _ = io.WriteString(w, text.String())
}

// WriteJSON is Write for programs: an object with the lists settings and warnings.
func (c *Config) WriteJSON(w io.Writer) {
	_ = printable.JSON(w, struct {
		Settings []Setting `json:"settings"`
		Warnings []string  `json:"warnings"`
	}{c.Settings(), append([]string{}, c.warnings...)})
}
