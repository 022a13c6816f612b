//go:build !race

package simulation

import (
	"math"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
)

// observed is a limit whose requests are noted on a curve.
type observed struct {
	Limiter
	curve adapt.Curve
	next  time.Time
}

func (o *observed) Done(now time.Time, s adapt.Sample) {
	o.Limiter.Done(now, s)
	o.curve.Note(s.InFlight, s.Took)
	if now.After(o.next) {
		o.next = now.Add(adapt.AgeInterval)
		o.curve.Age()
	}
}

// tooHigh lists the apps whose advice is too high, by at most so many times. Who comes in
// the midst of a batch is served with the next, sooner than if the app were full.
var tooHigh = map[string]float64{"GPU batch": 2}

func TestTheAdviceIsNearTheBestFixedLimit(t *testing.T) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			var results []Result
			for _, limit := range Sweep() {
				results = append(results, c.Fixed(limit, Requests))
			}
			best, result := Best(Sweep(), results)
			wave := func(at time.Duration) float64 { // a day in two minutes, which is too much for the app at noon
				return result.Throughput * (0.65 - 0.6*math.Cos(2*math.Pi*at.Seconds()/120))
			}
			o := observed{Limiter: Fixed(60)}
			(&Run{App: c.App(), Load: Load{Rate: wave, Depth: 200}, Limiter: &o, For: 3 * time.Minute, Seed: 1}).Do()
			got := o.curve.Advice()
			high := max(1.3, tooHigh[c.Name])
			if limit := float64(got.Limit); got.Sure != adapt.High || limit < 0.75*float64(best) || limit > high*float64(best) {
				t.Errorf("got %d, sure: %s, want about %d, sure: high\n%s", got.Limit, got.Sure, best, got.Reason)
			}
		})
	}
}

func TestNothingIsAdvisedWhereNothingWasSeen(t *testing.T) {
	for name, r := range map[string]Run{
		"no requests":              {Load: Load{Rate: steady(0.1)}, Limiter: Fixed(50)},
		"far from any limit":       {Load: Load{Rate: steady(200)}, Limiter: Fixed(50)},
		"a limit that is too low":  {Load: Load{Clients: 50}, Limiter: Fixed(6)},
		"a limit that is too high": {Load: Load{Clients: 50}, Limiter: Fixed(40)},
	} {
		o := observed{Limiter: r.Limiter}
		r.App, r.Limiter, r.For, r.Seed = pool(), &o, time.Minute, 1
		r.Do()
		if got := o.curve.Advice(); got.Limit != 0 || got.Sure != adapt.No || got.Reason == "" {
			t.Errorf("%s: got %d, sure: %s, %q, want no advice and why", name, got.Limit, got.Sure, got.Reason)
		}
	}
}
