package plugin

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func after(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

// sampled returns a sample of a ready sidecar with the given number of requests and failures. Half of the requests
// took at most 0.1 s, and the others at most 1 s.
func sampled(at, requests float64, failures map[string]float64) Sample {
	yes := true
	return Sample{At: after(at), Ready: &yes, Start: 1000, Requests: &requests, Failures: failures,
		Buckets: map[float64]float64{0.1: requests / 2, 1: requests, math.Inf(1): requests}}
}

// watched returns the row of one sidecar after the samples.
func watched(window time.Duration, samples ...Sample) Row {
	w := Watch{Window: window}
	one := Sidecar{Namespace: "shop", Pod: "web", Ready: true}
	w.List([]Sidecar{one})
	for _, s := range samples {
		w.Add(one, s, nil)
	}
	return w.Rows()[0]
}

func TestRateUsesWindow(t *testing.T) {
	for name, c := range map[string]struct {
		samples []Sample
		want    string
	}{
		"one sample":            {[]Sample{sampled(0, 10, nil)}, "-"},
		"two samples":           {[]Sample{sampled(0, 10, nil), sampled(2, 30, nil)}, "10.0"},
		"no new requests":       {[]Sample{sampled(0, 10, nil), sampled(2, 10, nil)}, "0"},
		"all samples in window": {[]Sample{sampled(0, 0, nil), sampled(2, 100, nil), sampled(4, 120, nil)}, "30.0"},
		"first sample too old":  {[]Sample{sampled(0, 0, nil), sampled(2, 1000, nil), sampled(12, 1100, nil)}, "10.0"},
		"long pause":            {[]Sample{sampled(0, 0, nil), sampled(100, 1000, nil)}, "10.0"},
		"rate of the sidecar":   {[]Sample{{At: start, Rate: new(2.5)}}, "2.5"},
	} {
		harness.Equal(t, rate(watched(10*time.Second, c.samples...).Rate), c.want, name)
	}
}

func TestQuantileUsesNewValues(t *testing.T) {
	inf := math.Inf(1)
	for name, c := range map[string]struct {
		old, now map[float64]float64
		want     string
	}{
		"all in first bucket":  {nil, map[float64]float64{0.1: 100, 1: 100, inf: 100}, "99ms"},
		"most in first bucket": {nil, map[float64]float64{0.1: 98, 1: 100, inf: 100}, "550ms"},
		"only new values":      {map[float64]float64{0.1: 0, 1: 1000, inf: 1000}, map[float64]float64{0.1: 100, 1: 1100, inf: 1100}, "99ms"},
		"above highest bound":  {nil, map[float64]float64{0.1: 0, 1: 0, inf: 3}, "1.00s"},
		"no new values":        {map[float64]float64{1: 3, inf: 3}, map[float64]float64{1: 3, inf: 3}, "-"},
		"no histogram":         {nil, nil, "-"},
		"new bound":            {map[float64]float64{1: 3, inf: 3}, map[float64]float64{0.5: 2, 1: 3, inf: 3}, "-"},
		"decreasing counts":    {nil, map[float64]float64{0.1: 5, 1: 2, inf: 4}, "79ms"},
		"only infinite bound":  {nil, map[float64]float64{inf: 4}, "-"},
	} {
		harness.Equal(t, seconds(quantile(0.99, c.old, c.now)), c.want, name)
	}
}

func TestDecreasingCounterIsRestart(t *testing.T) {
	restarted := sampled(2, 5, nil)
	otherStart := sampled(2, 50, nil)
	otherStart.Start = 1002
	for name, s := range map[string]Sample{
		"fewer requests": restarted,
		"fewer failures": sampled(2, 50, map[string]float64{"app-reset": 1}),
		"later start":    otherStart,
	} {
		before := sampled(0, 10, map[string]float64{"app-reset": 2})
		if got := watched(time.Minute, before, s); got.Rate != nil || got.Note != "restarted" {
			t.Errorf("%s: got rate %v and note %q, want no rate and the note restarted", name, got.Rate, got.Note)
		}
		next := s
		n := *s.Requests + 20
		next.At, next.Requests = after(4), &n
		if got := watched(time.Minute, before, s, next); rate(got.Rate) != "10.0" {
			t.Errorf("%s: got rate %s after 2 s, want 10.0 since the restart", name, rate(got.Rate))
		}
	}
}

func TestLastFailureIsNewestReason(t *testing.T) {
	type counts = map[string]float64
	for name, c := range map[string]struct {
		samples []Sample
		want    string
	}{
		"none":                {[]Sample{sampled(0, 0, counts{"app-reset": 0}), sampled(2, 1, counts{"app-reset": 0})}, "-"},
		"before first sample": {[]Sample{sampled(0, 9, counts{"app-reset": 2, "queue-full": 7})}, "queue-full earlier"},
		"between two samples": {[]Sample{sampled(0, 9, counts{"app-reset": 2, "queue-full": 7}), sampled(2, 9, counts{"app-reset": 3, "queue-full": 7})}, "app-reset 8s ago"},
		"two new reasons":     {[]Sample{sampled(0, 9, counts{"app-reset": 2}), sampled(2, 9, counts{"app-reset": 3, "queue-full": 7})}, "queue-full 8s ago"},
		"no later failure":    {[]Sample{sampled(0, 9, counts{"app-reset": 2}), sampled(2, 9, counts{"app-reset": 3}), sampled(4, 9, counts{"app-reset": 3})}, "app-reset 8s ago"},
		"before a restart":    {[]Sample{sampled(0, 9, counts{"app-reset": 2}), sampled(2, 9, counts{"app-reset": 3}), sampled(4, 0, counts{"app-reset": 0})}, "-"},
		"equal numbers":       {[]Sample{sampled(0, 9, counts{"b": 1, "a": 1})}, "a earlier"},
	} {
		harness.Equal(t, failure(watched(time.Minute, c.samples...), after(10)), c.want, name)
	}
}

func TestRowContainsStateAndNote(t *testing.T) {
	no := false
	notReady, draining := sampled(0, 0, nil), sampled(0, 0, nil)
	notReady.Ready, notReady.Reason = &no, "refused"
	draining.Ready, draining.Draining, draining.Reason = &no, true, "draining"
	ready := sampled(0, 0, nil)
	for name, c := range map[string]struct {
		of   Sidecar
		s    *Sample
		err  error
		want string
	}{
		"ready":               {Sidecar{}, &ready, nil, "ready "},
		"not ready":           {Sidecar{Ready: true}, &notReady, nil, "not-ready not ready: refused"},
		"draining":            {Sidecar{}, &draining, nil, "draining "},
		"statistics":          {Sidecar{Ready: true}, &Sample{}, nil, "ready metrics are disabled; only statistics are shown"},
		"statistics, unready": {Sidecar{}, &Sample{}, nil, "not-ready metrics are disabled; only statistics are shown"},
		"no probe":            {Sidecar{Ready: true}, &Sample{Unprobed: true}, nil, "ready "},
		"no response":         {Sidecar{Ready: true}, nil, errors.New("no response within 3s"), "unknown no response within 3s"},
		"no sample":           {Sidecar{Ready: true}, nil, nil, "unknown "},
		"absent":              {Sidecar{Absent: "Pending"}, nil, nil, "unknown Pending"},
		"absent after ready":  {Sidecar{Absent: "CrashLoopBackOff"}, &ready, nil, "unknown CrashLoopBackOff"},
		"error after ready":   {Sidecar{}, &ready, errors.New("no response within 3s"), "unknown no response within 3s"},
	} {
		w := Watch{Window: time.Minute}
		w.List([]Sidecar{c.of})
		if c.s != nil {
			w.Add(c.of, *c.s, nil)
		}
		if c.err != nil {
			w.Add(c.of, Sample{}, c.err)
		}
		r := w.Rows()[0]
		harness.Equal(t, fmt.Sprint(r.State, " ", r.Note), c.want, name)
	}
}

func TestListRemovesOtherSidecars(t *testing.T) {
	w := Watch{Window: time.Minute}
	a, b := Sidecar{Pod: "a"}, Sidecar{Pod: "b"}
	w.List([]Sidecar{a, b})
	w.Add(a, sampled(0, 10, nil), nil)
	w.List([]Sidecar{a})
	w.Add(b, sampled(0, 10, nil), nil) // the request was sent before the sidecar was removed
	w.Add(a, sampled(2, 30, nil), nil)
	if rows := w.Rows(); len(rows) != 1 || rows[0].Pod != "a" || rate(rows[0].Rate) != "10.0" {
		t.Errorf("got %+v, want only pod a with its samples", rows)
	}
}
