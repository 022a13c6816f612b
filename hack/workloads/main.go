// Command workloads prints facts about Kubernetes workloads in public repositories, one JSON object
// per line.
//
//	go run ./hack/workloads -list FILE -git DIRECTORY
//
// Each line of the list contains a repository and a commit: "github.com/owner/name 0123...". The
// directory contains a bare or normal clone of each repository as owner/name. The command does not
// use the network.
//
// The command selects at most -max workloads per repository. The selection depends only on -seed
// and on the repository, path and name of each object, so the same list always has the same result.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	list := flag.String("list", "", "file that contains a repository and a commit in each line")
	clones := flag.String("git", ".", "directory that contains the clones of the repositories")
	seed := flag.String("seed", "workloads", "seed of the selection")
	most := flag.Int("max", 7, "maximum number of workloads per repository")
	flag.Parse()
	if err := run(os.Stdout, *list, *clones, selection{seed: *seed, max: *most}); err != nil {
		fmt.Fprintln(os.Stderr, "workloads:", err)
		os.Exit(1)
	}
}

// run prints the facts about the repositories in a list.
func run(w io.Writer, list, clones string, s selection) error {
	repositories, err := readList(list)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for _, r := range repositories {
		objects, err := r.objects(clones)
		if err != nil {
			return err
		}
		candidates, services := sortObjects(objects)
		selected := s.choose(r, candidates)
		fmt.Fprintf(os.Stderr, "%s: %d of %d workloads\n", r.name, len(selected), len(candidates))
		for _, o := range selected {
			if err := encoder.Encode(factsOf(r, o, services)); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}

// A repository is one line of the list.
type repository struct {
	name   string // name with the host, such as github.com/owner/name
	commit string // hash of the commit: 40 hexadecimal digits
}

// readList reads a list. It ignores empty lines and lines that start with "#".
func readList(name string) ([]repository, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var all []repository
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 || strings.Count(fields[0], "/") != 2 {
			return nil, fmt.Errorf("%s: line %q: want host/owner/name and a commit", name, strings.TrimSpace(line))
		}
		all = append(all, repository{fields[0], fields[1]})
	}
	return all, nil
}
