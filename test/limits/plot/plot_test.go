//go:build amd64 && !race

// Elsewhere floating-point sums differ in the last digit, and with them the simulation.

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/limits/simulation"
)

func TestThePlotsAreWhatTheCommandWrites(t *testing.T) {
	const folder = "../../../docs/limits"
	for name, want := range plots(simulate(simulation.Cases())) {
		got, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s: got another file, want what `make plots` writes", name)
		}
		const most = 40 << 10 // bytes; a page has to load it
		if len(got) > most {
			t.Errorf("%s: got %d bytes, want %d at most", name, len(got), most)
		}
	}
}

func TestATextIsBrokenBetweenWords(t *testing.T) {
	for most, want := range map[int]string{8: "a bc def|ghij", 4: "a bc|def|ghij", 2: "a|bc|def|ghij", 100: "a bc def ghij"} {
		if got := strings.Join(lines("a bc def ghij", most), "|"); got != want {
			t.Errorf("%d letters: got %q, want %q", most, got, want)
		}
	}
}
