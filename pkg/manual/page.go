package manual

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Sections of a page, in the order that man-pages(7) gives.
var sections = []string{"NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"}

// page is the page of a command, or of the program: "". It is in the macros of man(7).
func (p Program) page(command string) string {
	text := map[string]*strings.Builder{}
	for _, s := range sections {
		text[s] = new(strings.Builder)
	}
	p.fill(text, command)
	var related []string
	for _, other := range append([]string{""}, p.commands()...) {
		if other != command && (command == "" || other == "") {
			related = append(related, ".BR "+escape(p.file(other))+" (1)")
		}
	}
	text["SEE ALSO"].WriteString(strings.Join(related, ",\n") + "\n")
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"%s\" \"User Commands\"\n", escape(strings.ToUpper(p.file(command))), escape(p.file("")+" "+p.Version))
	for _, s := range sections {
		if text[s].Len() > 0 {
			b.WriteString(".SH " + s + "\n" + text[s].String())
		}
	}
	return b.String()
}

// fill writes the help text of a command into the sections where its parts belong.
func (p Program) fill(text map[string]*strings.Builder, command string) {
	called := strings.TrimSpace(p.Name + " " + command)
	section, first := "DESCRIPTION", true
	for _, block := range blocks(p.Help(command)) {
		if first {
			name := strings.TrimPrefix(strings.TrimPrefix(block, called+" "), "is ")
			text["NAME"].WriteString(escape(p.file(command)) + " \\- " + escape(summary(name)) + "\n")
			first = false
		}
		indented := strings.HasPrefix(block, "  ")
		if !indented {
			var ends bool
			if section, block, ends = begin(block); ends {
				continue
			}
		}
		switch {
		case strings.HasPrefix(block, "  -"):
			options(text["OPTIONS"], block)
		case indented:
			text[section].WriteString(".PP\n.nf\n" + literal(block) + ".fi\n")
		default:
			text[section].WriteString(".PP\n" + lines(block))
		}
	}
	for _, s := range sections { // a paragraph at the beginning of a section needs no macro
		rest := strings.TrimPrefix(text[s].String(), ".PP\n")
		text[s].Reset()
		text[s].WriteString(rest)
	}
}

// summary is the beginning of a text, to its first mark: a line in a list of pages.
func summary(text string) string {
	text = strings.Join(strings.Fields(text), " ") + " "
	for _, mark := range []string{". ", ": ", ", "} {
		text, _, _ = strings.Cut(text, mark)
	}
	return text
}

// begin says in which section a block stands that is not indented, and what of it stands there.
// ends is true of a block that is a title alone.
func begin(block string) (section, rest string, ends bool) {
	title, rest, _ := strings.Cut(block, ":")
	switch title {
	case "Usage":
		section = "SYNOPSIS"
	case "Example", "Examples":
		section = "EXAMPLES"
	case "Flags", "Options":
		section = "OPTIONS"
	case "Exit codes":
		section = "EXIT STATUS"
	default:
		return "DESCRIPTION", block, false
	}
	rest = strings.TrimSpace(rest)
	return section, rest, rest == ""
}

// blocks are the parts of a text between its empty lines.
func blocks(text string) []string {
	all := strings.Split(strings.Trim(text, "\n"), "\n\n")
	return slices.DeleteFunc(all, func(b string) bool { return strings.TrimSpace(b) == "" })
}

// options writes a list of flags. A flag's text stands behind it, after two blanks or more, and
// goes on in lines that are further indented.
func options(b *strings.Builder, block string) {
	for line := range strings.Lines(block) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "  -") {
			b.WriteString(lines(strings.TrimSpace(line)))
			continue
		}
		name, text, _ := strings.Cut(strings.TrimSpace(line), "  ")
		b.WriteString(".TP\n.B " + escape(name) + "\n")
		if text = strings.TrimSpace(text); text != "" {
			b.WriteString(lines(text))
		}
	}
}

// lines are those of a paragraph. A line cannot begin with a dot, which begins a macro.
func lines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = escape(strings.TrimSpace(line))
		if strings.HasPrefix(line, ".") {
			line = `\&` + line
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// literal are lines with their blanks, without the first two, that all of them have.
func literal(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = escape(strings.TrimRightFunc(strings.TrimPrefix(line, "  "), unicode.IsSpace))
		if strings.HasPrefix(line, ".") {
			line = `\&` + line
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// escape writes the characters that roff takes for others, or for its own: a dash that can be
// copied is not a hyphen.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
}
