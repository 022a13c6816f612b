package manual

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Sections of a page, in the order that man-pages(7) gives.
var sections = []string{"NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"}

// titles are the lines by which a help text begins its sections.
var titles = map[string]string{
	"Usage": "SYNOPSIS", "Example": "EXAMPLES", "Examples": "EXAMPLES", "Flags": "OPTIONS", "Options": "OPTIONS", "Exit codes": "EXIT STATUS",
}

// page is the page of a command, or of the program: "". It is in the macros of man(7).
func (p Program) page(command string) string {
	text := p.parts(command)
	var related []string
	for _, other := range append([]string{""}, p.commands()...) {
		if other != command && (command == "" || other == "") {
			related = append(related, ".BR "+escape(p.file(other))+" (1)")
		}
	}
	text["SEE ALSO"] = strings.Join(related, ",\n") + "\n"
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"%s\" \"User Commands\"\n", escape(strings.ToUpper(p.file(command))), escape(p.file("")+" "+p.Version))
	for _, s := range sections {
		if text[s] != "" {
			b.WriteString(".SH " + s + "\n" + text[s])
		}
	}
	return b.String()
}

// parts are those of the help text of a command, by the sections where they belong.
func (p Program) parts(command string) map[string]string {
	text := map[string]string{}
	add := func(section, paragraph string) {
		if text[section] != "" { // the first needs no macro
			paragraph = ".PP\n" + paragraph
		}
		text[section] += paragraph
	}
	called := strings.TrimSpace(p.Name + " " + command)
	section := "DESCRIPTION"
	for i, block := range blocks(p.Help(command)) {
		if i == 0 {
			name := strings.TrimPrefix(strings.TrimPrefix(block, called+" "), "is ")
			text["NAME"] = escape(p.file(command)) + " \\- " + escape(summary(name)) + "\n"
		}
		switch {
		case strings.HasPrefix(block, "  -"):
			text["OPTIONS"] += options(block)
		case strings.HasPrefix(block, "  "):
			add(section, ".nf\n"+lines(block, unindented)+".fi\n")
		default:
			section = "DESCRIPTION"
			if title, rest, _ := strings.Cut(block, ":"); titles[title] != "" {
				section, block = titles[title], strings.TrimSpace(rest)
			}
			if block != "" { // else it is a title alone
				add(section, lines(block, strings.TrimSpace))
			}
		}
	}
	return text
}

// summary is the beginning of a text, to its first mark: a line in a list of pages.
func summary(text string) string {
	text = strings.Join(strings.Fields(text), " ") + " "
	for _, mark := range []string{". ", ": ", ", "} {
		text, _, _ = strings.Cut(text, mark)
	}
	return text
}

// blocks are the parts of a text between its empty lines.
func blocks(text string) []string {
	all := strings.Split(strings.Trim(text, "\n"), "\n\n")
	return slices.DeleteFunc(all, func(b string) bool { return strings.TrimSpace(b) == "" })
}

// options is a list of flags. A flag's text stands behind it, after two blanks or more, and
// goes on in lines that are further indented.
func options(block string) string {
	var b strings.Builder
	for line := range strings.Lines(block) {
		text := line
		if strings.HasPrefix(line, "  -") {
			var name string
			name, text, _ = strings.Cut(strings.TrimSpace(line), "  ")
			b.WriteString(".TP\n.B " + escape(name) + "\n")
		}
		b.WriteString(lines(text, strings.TrimSpace))
	}
	return b.String()
}

// lines are those of a text, each without some of its blanks. A line cannot begin with a dot, which
// begins a macro.
func lines(text string, trim func(string) string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = escape(trim(line))
		if strings.HasPrefix(line, ".") {
			line = `\&` + line
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// unindented is a line without the first two blanks, which all lines have that stand as they are.
func unindented(line string) string {
	return strings.TrimRightFunc(strings.TrimPrefix(line, "  "), unicode.IsSpace)
}

// escape writes the characters that roff takes for others, or for its own: a dash that can be
// copied is not a hyphen.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
}
