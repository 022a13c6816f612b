package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A kind is a kind of text.
type kind string

const (
	comments  kind = "comments"
	testNames kind = "tests"
	messages  kind = "messages" // string literals with at least minWords words, except in tests
	documents kind = "docs"     // prose of Markdown files
	commits   kind = "commits"  // subjects of commits
)

var kinds = []kind{comments, testNames, messages, documents, commits}

const (
	minWords  = 4 // minimum number of words in a message
	minTokens = 3 // minimum number of tokens in a sentence
)

// A sentence is a sentence of a text, or the name of a test as separate words.
type sentence struct {
	where  string // file and line, or hash of the commit
	text   string
	tokens []token
}

// texts contains the sentences of each kind.
type texts map[kind][]sentence

// add splits text into sentences and adds them to t.
func (t texts) add(k kind, where, text string) {
	text = strings.Join(strings.Fields(text), " ")
	for _, s := range strings.Split(sentenceEnd.ReplaceAllString(text, "$1\n"), "\n") {
		if all := tokens(s); len(all) >= minTokens {
			t[k] = append(t[k], sentence{where, s, all})
		}
	}
}

var sentenceEnd = regexp.MustCompile(`([.;:!?]) `)

// standardLibrary returns the comments in the packages below root, except tests and commands.
func standardLibrary(root string) ([]sentence, error) {
	t := texts{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{"testdata", "vendor", "cmd"}, entry.Name()):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		return t.addGo(name, nil)
	})
	if err == nil && len(t[comments]) == 0 {
		err = fmt.Errorf("%s contains no comments", root)
	}
	return t[comments], err
}

// repository returns the texts of the tracked Go and Markdown files below the working directory,
// except testdata. If revision is not empty, it returns only the lines that were added since this
// revision, and the subjects of the commits.
func repository(revision string) (texts, error) {
	t := texts{}
	files, err := git("ls-files", "*.go", "*.md")
	if err != nil {
		return nil, err
	}
	added := map[string]lines{}
	if revision != "" {
		if added, err = addedLines(revision); err != nil {
			return nil, err
		}
		if err := t.addSubjects(revision); err != nil {
			return nil, err
		}
	}
	for _, name := range files {
		only := added[name]
		if strings.Contains(name, "testdata/") || revision != "" && only == nil {
			continue
		}
		add := t.addMarkdown
		if strings.HasSuffix(name, ".go") {
			add = t.addGo
		}
		if err := add(name, only); err != nil && !errors.Is(err, fs.ErrNotExist) { // a tracked file may not exist in the working tree
			return nil, err
		}
	}
	return t, nil
}

// git runs a git command and returns the lines of its output.
func git(args ...string) ([]string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// lines is a set of line numbers. nil means all lines.
type lines map[int]bool

// overlap reports whether the set contains a line in the range first to last.
func (l lines) overlap(first, last int) bool {
	for n := first; l != nil && n <= last; n++ {
		if l[n] {
			return true
		}
	}
	return l == nil
}

var hunk = regexp.MustCompile(`^@@ -\S+ \+(\d+)(?:,(\d+))? @@`)

// addedLines returns the lines of each file that were added since a revision.
func addedLines(revision string) (map[string]lines, error) {
	diff, err := git("diff", "-U0", "--no-color", "--no-ext-diff", revision, "--", "*.go", "*.md")
	if err != nil {
		return nil, err
	}
	added, name := map[string]lines{}, ""
	for _, line := range diff {
		if file, ok := strings.CutPrefix(line, "+++ b/"); ok {
			name = file
			added[name] = lines{}
		} else if m := hunk.FindStringSubmatch(line); m != nil && name != "" {
			first, _ := strconv.Atoi(m[1])
			count := 1
			if m[2] != "" {
				count, _ = strconv.Atoi(m[2])
			}
			for n := range count {
				added[name][first+n] = true
			}
		}
	}
	return added, nil
}

// addSubjects adds the subjects of the commits since a revision, without the name of the package.
func (t texts) addSubjects(revision string) error {
	log, err := git("log", "--no-merges", "--format=%h %s", revision+"..")
	if err != nil {
		return err
	}
	for _, line := range log {
		hash, subject, _ := strings.Cut(line, " ")
		if _, rest, ok := strings.Cut(subject, ": "); ok {
			subject = rest
		}
		t.add(commits, hash, subject)
	}
	return nil
}

var (
	word = regexp.MustCompile(`\b[a-zA-Z]{2,}\b`)
	verb = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`) // verb of package fmt
)

// addGo adds the comments, messages and test names of a Go file. Generated files are ignored.
func (t texts) addGo(name string, only lines) error {
	set := gotoken.NewFileSet()
	file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	if ast.IsGenerated(file) {
		return nil
	}
	add := func(k kind, n ast.Node, text string) {
		first, last := set.Position(n.Pos()).Line, set.Position(n.End()).Line
		if only.overlap(first, last) {
			t.add(k, fmt.Sprintf("%s:%d", name, first), text)
		}
	}
	for _, c := range file.Comments {
		if text := c.Text(); !strings.HasPrefix(text, "Copyright") {
			add(comments, c, text)
		}
	}
	test := strings.HasSuffix(name, "_test.go")
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.FuncDecl:
			if rest, ok := strings.CutPrefix(n.Name.Name, "Test"); test && ok && n.Recv == nil {
				add(testNames, n.Name, splitName(rest))
			}
		case *ast.BasicLit:
			if test || n.Kind != gotoken.STRING {
				break
			}
			if s, err := strconv.Unquote(n.Value); err == nil && len(word.FindAllString(s, minWords)) == minWords {
				add(messages, n, verb.ReplaceAllString(s, "X"))
			}
		}
		return true
	})
	return nil
}

// splitName separates the words of a name in camel case.
func splitName(name string) string {
	var words strings.Builder
	previous := ' '
	for _, r := range strings.ReplaceAll(name, "_", " ") {
		if unicode.IsUpper(r) && !unicode.IsUpper(previous) {
			words.WriteByte(' ')
		}
		words.WriteRune(r)
		previous = r
	}
	return words.String()
}

var (
	notProse = regexp.MustCompile(`^\s*(\||#|<|---|===|\[[^\]]+\]:)`)
	item     = regexp.MustCompile(`^\s*([-*+]|\d+\.)\s+`)
	code     = regexp.MustCompile("`[^`]*`")
	link     = regexp.MustCompile(`!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])?`)
	tag      = regexp.MustCompile(`<[^>]+>|\{\{.*?\}\}`)
	emphasis = strings.NewReplacer("*", "", "_", "")
)

// addMarkdown adds the paragraphs and list items of a Markdown file. Tables, headings and code are
// ignored, and each code span counts as one word.
func (t texts) addMarkdown(name string, only lines) error {
	source, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var paragraph []string
	first := 0
	flush := func(last int) {
		if len(paragraph) > 0 && only.overlap(first, last) {
			s := code.ReplaceAllString(strings.Join(paragraph, " "), "X")
			s = tag.ReplaceAllString(link.ReplaceAllString(s, "$1"), "")
			t.add(documents, fmt.Sprintf("%s:%d", name, first), emphasis.Replace(s))
		}
		paragraph = nil
	}
	fenced, number := false, 0
	for line := range strings.Lines(string(source)) {
		number++
		trimmed := strings.TrimSpace(line)
		indented := strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t")
		switch {
		case strings.HasPrefix(trimmed, "```"):
			flush(number - 1)
			fenced = !fenced
		case fenced:
		case trimmed == "" || notProse.MatchString(line) || indented && len(paragraph) == 0:
			flush(number - 1)
		default:
			if item.MatchString(line) {
				flush(number - 1)
			}
			if len(paragraph) == 0 {
				first = number
			}
			paragraph = append(paragraph, strings.TrimSpace(item.ReplaceAllString(line, "")))
		}
	}
	flush(number)
	return nil
}
