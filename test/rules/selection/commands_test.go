package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A goTest is a go test command in a file.
type goTest struct {
	dir      string            // directory of the command, relative to the root
	patterns map[string]string // patterns by flag: run, skip, fuzz, bench
	packages []string
	tags     []string
}

// A makeCall is a call to make with variables.
type makeCall struct {
	targets   []string
	variables map[string]string // variables on the command line or in the environment
}

// readCommands returns the go test commands and the calls to make in a shell script, a workflow, a document or the
// comments of a Go file.
func readCommands(root, text string) (tests []goTest, makes []makeCall) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	for line := range strings.Lines(text) {
		line = linePrefix.ReplaceAllString(line, "")
		if strings.HasPrefix(line, "#") {
			continue
		}
		dir := "."
		for _, words := range simpleCommands(line) {
			if len(words) == 2 && words[0] == "cd" {
				dir = "."
				if _, err := os.Stat(filepath.Join(root, words[1])); err == nil {
					dir = words[1]
				}
			}
			if i := slices.Index(words, "go"); i >= 0 && i+1 < len(words) && words[i+1] == "test" {
				tests = append(tests, readGoTest(dir, words[i+2:]))
			}
			if slices.Contains(words, "make") {
				makes = append(makes, readMakeCall(words))
			}
		}
	}
	return tests, makes
}

// linePrefix matches a comment marker, a shell prompt, or the key of a workflow step at the beginning of a line.
var linePrefix = regexp.MustCompile(`^\s*(?:// ?|\$ )?\s*(?:- )?(?:run: )?`)

// simpleCommands splits a line into the words of its commands. It removes quotes and does
// not expand variables.
func simpleCommands(line string) [][]string {
	var all [][]string
	var words []string
	word, inWord, quote := "", false, rune(0)
	endWord := func() {
		if inWord {
			words = append(words, word)
		}
		word, inWord = "", false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case strings.ContainsRune(" \t\n", r):
			endWord()
		case strings.ContainsRune(";&|()`", r):
			endWord()
			all, words = append(all, words), nil
		default:
			word, inWord = word+string(r), true
		}
	}
	endWord()
	return append(all, words)
}

// readGoTest reads the arguments of go test.
func readGoTest(dir string, args []string) goTest {
	g := goTest{dir: dir, patterns: map[string]string{}}
	for i := 0; i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "-")
		name, value, hasValue := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		switch {
		case !isFlag && (args[i] == "." || strings.HasPrefix(args[i], "./")):
			g.packages = append(g.packages, args[i])
		case !isFlag || name != "tags" && kinds[name] == nil:
			continue // skip an argument of the test program, or a flag that selects nothing
		case !hasValue && i+1 < len(args):
			i++
			value = args[i]
		}
		switch {
		case name == "tags":
			g.tags = strings.Split(value, ",")
		case kinds[name] != nil && value != "":
			g.patterns[name] = value
		}
	}
	return g
}

// readMakeCall reads the words of a call to make, and its environment variables.
func readMakeCall(words []string) makeCall {
	m := makeCall{variables: map[string]string{}}
	called := false
	for _, word := range words {
		name, value, assigned := strings.Cut(word, "=")
		switch {
		case assigned:
			m.variables[name] = value
		case word == "make":
			called = true
		case called && !strings.HasPrefix(word, "-"):
			m.targets = append(m.targets, word)
		}
	}
	return m
}

func TestCommandsAreRead(t *testing.T) {
	root := "../../.."
	tests, makes := readCommands(root, strings.Join([]string{
		`step "a part" 5 go test -count=1 -run '^(TestA|TestB)$' -tags e2e,load \`,
		`	./pkg/transport/http1/wire -backends nginx`,
		`cd test/chart && go vet ./... && go test -run=TestC ./...`,
		`      - run: make fuzz FUZZ="wire Fuzz" FUZZTIME=1h`,
		`//	BENCH_ROWS=idle,tls make bench  only these rows`,
		`# go test -run TestComment`,
		`go test -bench . ./pkg/transport/http2/http2conn`,
		`go test -run`,
	}, "\n"))
	want := []goTest{
		{".", map[string]string{"run": "^(TestA|TestB)$"}, []string{"./pkg/transport/http1/wire"}, []string{"e2e", "load"}},
		{"test/chart", map[string]string{"run": "TestC"}, []string{"./..."}, nil},
		{".", map[string]string{"bench": "."}, []string{"./pkg/transport/http2/http2conn"}, nil},
		{".", map[string]string{}, nil, nil},
	}
	if len(tests) != len(want) {
		t.Fatalf("got commands %v, want %v", tests, want)
	}
	for i, w := range want {
		g := tests[i]
		if g.dir != w.dir || !maps.Equal(g.patterns, w.patterns) || !slices.Equal(g.packages, w.packages) || !slices.Equal(g.tags, w.tags) {
			t.Errorf("got command %v, want %v", g, w)
		}
	}
	if len(makes) != 2 || makes[0].variables["FUZZ"] != "wire Fuzz" || makes[0].targets[0] != "fuzz" || makes[1].variables["BENCH_ROWS"] != "idle,tls" {
		t.Errorf("got calls %v, want make fuzz with FUZZ and make bench with BENCH_ROWS", makes)
	}
}
