//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// growthGauges returns the gauges that must not grow during a row that takes an hour: metrics of
// the sidecar, and connectionsGauge.
func growthGauges() []string {
	return []string{
		"queue_proxy_process_resident_memory_bytes", "queue_proxy_process_open_fds",
		"queue_proxy_go_goroutines", connectionsGauge,
	}
}

// connectionsGauge is the name of the gauge that counts the connections to the application. It is
// not a metric of the sidecar.
const connectionsGauge = "connections to the application"

// A series contains one value per sample for each gauge.
type series map[string][]float64

// sampleGauges samples the gauges of the sidecar until stop is called. The stop function
// returns the samples.
func sampleGauges(ctx context.Context, at *parameters, every time.Duration) (stop func() series) {
	ctx, cancel := context.WithCancel(ctx)
	result := make(chan series)
	go func() {
		all := series{}
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				all.add(ctx, at)
			case <-ctx.Done():
				result <- all
				return
			}
		}
	}()
	return func() series {
		cancel()
		return <-result
	}
}

// add adds a sample. It adds nothing if the sidecar does not respond.
func (s series) add(ctx context.Context, at *parameters) {
	text, err := fetch(ctx, "http://"+at.Metrics+"/metrics")
	if err != nil {
		return
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil && slices.Contains(growthGauges(), name) {
			s[name] = append(s[name], v)
		}
	}
	s[connectionsGauge] = append(s[connectionsGauge], float64(connections(port(at.App))))
}

// A gauge grows if its maximum in the last quarter of the samples exceeds its maximum in the
// second quarter by more than the fraction growthShare and by more than growthCount.
const (
	growthShare = 0.15
	growthCount = 20
)

// growth returns a description of each gauge that grows, and the values of all gauges. It
// ignores the first quarter of the samples, during which the sidecar warms up.
func (s series) growth() (grown, values []string) {
	const least = 8 // minimum number of samples
	for _, name := range growthGauges() {
		v := s[name]
		if len(v) < least {
			grown = append(grown, fmt.Sprintf("%s: only %d samples", name, len(v)))
			continue
		}
		quarter := len(v) / 4
		before, after := slices.Max(v[quarter:2*quarter]), slices.Max(v[len(v)-quarter:])
		text := fmt.Sprintf("%s: %.0f in the second quarter, %.0f in the last quarter", name, before, after)
		values = append(values, text)
		if after > before*(1+growthShare) && after > before+growthCount {
			grown = append(grown, name+" grows")
		}
	}
	return grown, values
}
