package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// A level determines the color of the banner. It is the name of a class in page.html.
type level string

const (
	levelGood level = "good" // green
	levelWarn level = "warn" // amber
	levelBad  level = "bad"  // red
)

// setHeading sets the heading and the level. rate is the number of requests per second that are rejected because of
// the load, and top is the most frequent reason.
func (s *snapshot) setHeading(rate float64, top observation.Reason) {
	s.Heading, s.Level = "Not ready", s.level()
	switch {
	case s.Drain.Draining:
		s.Heading = "Draining"
	case s.Ready && rate > 0:
		s.Heading = fmt.Sprintf("Ready, rejecting %s/s: %s", perSecond(rate), strings.ReplaceAll(top.String(), "-", " "))
	case s.Ready:
		s.Heading = "Ready"
	case s.Unprobed:
		s.Heading = "No probe yet"
	}
}

// level returns the level of the page. If a ready pod rejects requests because of the load, the level is a warning,
// because the pod responds to the other requests.
func (s *snapshot) level() level {
	serious := func(p problem) bool { return p.Confidence == high && p.Name != rejected && p.Name != exhausted }
	switch {
	case s.Drain.Draining, s.Unprobed && len(s.Problems) == 0:
		return levelWarn
	case !s.Ready, slices.ContainsFunc(s.Problems, serious):
		return levelBad
	case len(s.Problems) > 0:
		return levelWarn
	}
	return levelGood
}

// perSecond formats a rate. If the rate is less than 10, the text contains one decimal place.
func perSecond(rate float64) string {
	if rate < 10 {
		return fmt.Sprintf("%.1f", rate)
	}
	return fmt.Sprintf("%.0f", rate)
}
