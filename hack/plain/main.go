// Plain measures the English of this repository: comments, messages, names of tests and documents.
//
// A language model is trained on the comments of the Go standard library. All words other than
// function words are replaced with a placeholder, so that only the grammar is compared. The result
// is the average number of bits per token for each kind of text. A lower number is closer to the
// standard library.
//
// Usage, in the root of the repository:
//
//	go run ./hack/plain                     print the figures
//	go run ./hack/plain -worst 20           also print the sentences with the highest figures
//	go run ./hack/plain -change main        measure only lines that were added after a revision
//	go run ./hack/plain -check              compare the figures with hack/plain/limits.txt
//	go run ./hack/plain -update             lower the limits to the current figures
//
// With -check, the exit status is 1 if a figure is above its limit. No flag raises a limit.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const limitsFile = "hack/plain/limits.txt"

func main() {
	worst := flag.Int("worst", 0, "print the `number` of sentences with the highest figures for each kind")
	change := flag.String("change", "", "measure only lines that were added after this `revision`")
	check := flag.Bool("check", false, "compare the figures with the limits")
	update := flag.Bool("update", false, "lower the limits to the current figures")
	flag.Parse()
	if err := run(os.Stdout, *worst, *change, *check, *update); err != nil {
		fmt.Fprintln(os.Stderr, "plain:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, worst int, change string, check, update bool) error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	reference, err := standardLibrary(filepath.Join(strings.TrimSpace(string(root)), "src"))
	if err != nil {
		return err
	}
	texts, err := repository(change)
	if err != nil {
		return err
	}
	trained := train(reference)
	figures := map[kind]float64{}
	fmt.Fprintf(w, "%-10s %9s %8s %6s\n", "kind", "sentences", "tokens", "bits")
	for _, k := range kinds {
		if len(texts[k]) == 0 {
			continue
		}
		bits, tokens, scores := trained.measure(texts[k])
		figures[k] = bits
		fmt.Fprintf(w, "%-10s %9d %8d %6.2f\n", k, len(texts[k]), tokens, bits)
		printWorst(w, scores, worst)
	}
	switch {
	case update:
		return lowerLimits(limitsFile, figures)
	case check:
		return checkLimits(limitsFile, figures)
	}
	return nil
}

// printWorst prints the n sentences of at least seven tokens with the highest figures.
func printWorst(w io.Writer, scores []score, n int) {
	scores = slices.DeleteFunc(scores, func(s score) bool { return s.tokens < 7 })
	slices.SortFunc(scores, func(a, b score) int { return cmp.Compare(b.bits, a.bits) })
	for _, s := range scores[:min(n, len(scores))] {
		fmt.Fprintf(w, "    %.1f  %s: %s\n", s.bits, s.sentence.where, s.sentence.text)
	}
}
