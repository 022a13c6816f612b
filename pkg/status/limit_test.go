package status

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestSettledLimitIsReported(t *testing.T) {
	b := board(probe.State{}, Drain{})
	harness.Equal(t, b.snapshot().Adaptive, nil, "a fixed limit")
	state := adapt.State{Limit: 9, Base: 8, Reason: adapt.Measuring, Missing: "a comparison"}
	b.sources.Adaptive = func() (adapt.State, bool) { return state, true }
	harness.Contains(t, b.text(), "; the limit is adaptive: measuring; not settled: a comparison")
	state.Settled, state.Missing = 8, ""
	state.Reason = adapt.NoAnswers // a word for programs, and words for people
	harness.Contains(t, b.text(), "; the limit is adaptive: no answers; settled at 8")
	harness.Equal(t, *b.snapshot().Adaptive, adaptive{Base: 8, Reason: adapt.NoAnswers, Settled: 8}, "settled")
}
