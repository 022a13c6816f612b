package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
)

// readLimits reads a file with lines of the form "kind bits".
func readLimits(name string) (map[kind]float64, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	limits := map[kind]float64{}
	for line := range strings.Lines(string(text)) {
		var k kind
		var bits float64
		if _, err := fmt.Sscan(line, &k, &bits); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", name, strings.TrimSpace(line), err)
		}
		limits[k] = bits
	}
	return limits, nil
}

// checkLimits returns an error for each figure that is above its limit.
func checkLimits(name string, figures map[kind]float64) error {
	limits, err := readLimits(name)
	if err != nil {
		return err
	}
	var high []error
	for _, k := range kinds {
		if limit, ok := limits[k]; ok && figures[k] > limit {
			high = append(high, fmt.Errorf("%s: %.3f bits per token, want at most %.2f; see CONTRIBUTING.md and run: go run ./hack/plain -worst 20", k, figures[k], limit))
		}
	}
	return errors.Join(high...)
}

// lowerLimits writes the figures as the new limits, rounded up to two decimal places. It keeps
// limits that are lower than the figures.
func lowerLimits(name string, figures map[kind]float64) error {
	limits, err := readLimits(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var text strings.Builder
	for _, k := range kinds {
		bits, ok := figures[k]
		if !ok || k == commits {
			continue
		}
		bits = math.Ceil(bits*100) / 100
		if limit, ok := limits[k]; ok {
			bits = min(bits, limit)
		}
		fmt.Fprintf(&text, "%s %.2f\n", k, bits)
	}
	return os.WriteFile(name, []byte(text.String()), 0o644)
}
