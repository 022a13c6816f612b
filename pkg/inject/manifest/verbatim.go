package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// The status annotation says what stood in an object, and not how it was written: the order
// of a probe's keys, quotes, comments. Where uninject would not bring the bytes back by itself,
// inject keeps them: in the last line of the document, a comment, or, as JSON has none, in the
// status. They are lines of the text as it was, and which lines of the text as it is they
// replace. What they make of it must mean what the status says: they decide how it is written
// and nothing else.

// mostKept bounds what is kept of a document, in bytes. Beyond it, what the text means comes back.
const mostKept = 64 << 10

// keptMark begins the comment.
const keptMark = "# " + inject.Prefix + "text: "

// A hunk replaces lines: Count of them from Line on, counted from 0, by Text.
type hunk struct {
	Line, Count int
	Text        string
}

func (h hunk) MarshalJSON() ([]byte, error) {
	return []byte(fmt.Sprintf("[%d,%d,%s]", h.Line, h.Count, quoted(h.Text))), nil
}

func (h *hunk) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.Line, &h.Count, &h.Text})
}

// hunksOf are those that make one text of another.
func hunksOf(from, to []byte) []hunk {
	var all []hunk
	for _, l := range Compare(linesOf(from), linesOf(to)) {
		if l.Mark == ' ' {
			continue
		}
		if n := len(all); n == 0 || all[n-1].Line+all[n-1].Count < l.A { // lines stay between them
			all = append(all, hunk{Line: l.A})
		}
		last := &all[len(all)-1]
		if l.Mark == '-' {
			last.Count++
		} else {
			last.Text += l.Text
		}
	}
	return all
}

// replace makes the changes of hunks, or reports that they do not fit.
func replace(text []byte, hunks []hunk) ([]byte, bool) {
	lines := linesOf(text)
	var b bytes.Buffer
	done := 0
	for _, h := range hunks {
		if h.Line < done || h.Count < 0 || h.Line > len(lines) || h.Count > len(lines)-h.Line {
			return nil, false
		}
		b.WriteString(strings.Join(lines[done:h.Line], "") + h.Text)
		done = h.Line + h.Count
	}
	b.WriteString(strings.Join(lines[done:], ""))
	return b.Bytes(), true
}

// lineEnding returns the line ending of a text.
func lineEnding(text []byte) string {
	if bytes.Contains(text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

func linesOf(text []byte) []string { return slices.Collect(strings.Lines(string(text))) }

// keep notes in a document, which has just been injected by some changes, how it was written.
func (d *document) keep(was []byte, changes []inject.Change) {
	isJSON, original, ended := json.Valid(was), was, d.text // YAML can become JSON
	if !isJSON && bytes.Contains(was, []byte(inject.Prefix+"status")) {
		original = takenBack(Parse("", was)) // an earlier step changed another object of the document
	}
	if again := Parse("", d.text); bytes.Equal(original, takenBack(again)) {
		return
	}
	if !isJSON {
		ended, _ = d.kept()
		// A comment needs a separate line, so the hunks apply to a text that ends with a newline.
		if !bytes.HasSuffix(ended, []byte("\n")) {
			ended = append(slices.Clone(ended), lineEnding(was)...)
		}
	}
	hunks, err := json.Marshal(hunksOf(ended, original))
	if err != nil || len(hunks) > mostKept {
		return
	}
	if isJSON {
		d.keepInStatus(was, changes, string(hunks))
		return
	}
	body, end := ended, []byte(nil) // a line of ... ends it
	if n := len(bytes.TrimRight(body, "\r\n")); n >= 3 && string(body[n-3:n]) == "..." && (n == 3 || body[n-4] == '\n') {
		body, end = body[:n-3], body[n-3:]
	}
	line := keptMark + string(hunks) + lineEnding(was)
	_, value, _ := read(d.text) // which has been compared with what it should mean
	if text := slices.Concat(body, []byte(line), end); means(text, value) == nil {
		d.text = text
	}
}

// keepInStatus writes JSON with the hunks in the first status of a document. One that stands on
// one line was written by a program, for programs: nobody has laid it out.
func (d *document) keepInStatus(was []byte, changes []inject.Change, hunks string) {
	if len(linesOf(bytes.TrimSpace(was))) == 1 {
		return
	}
	i := slices.IndexFunc(changes, inject.IsStatus)
	if i < 0 {
		return
	}
	with := slices.Clone(changes)
	with[i] = inject.WithText(with[i], hunks)
	again := &document{text: was}
	again.node, _ = parse(was) // which has been read before
	if _, err := again.change(with); err == nil && len(linesOf(again.text)) == len(linesOf(d.text)) {
		d.text = again.text
	}
}

// kept returns the text of a document without the last comment that contains hunks. It also returns these hunks. The hunks
// can contain the marker of the comment, so the marker is recognized only at the beginning of a line.
func (d *document) kept() (text []byte, hunks string) {
	i := bytes.LastIndex(d.text, []byte("\n"+keptMark)) + 1
	if i == 0 && !bytes.HasPrefix(d.text, []byte(keptMark)) {
		return d.text, ""
	}
	line, rest, _ := bytes.Cut(d.text[i:], []byte("\n"))
	return slices.Concat(d.text[:i], rest), strings.TrimSpace(string(line[len(keptMark):]))
}

// restore takes changes back in the text, as it was written, and reports whether it could.
func (d *document) restore(changes []inject.Change) bool {
	text, comment := d.kept()
	var hunks []hunk
	if json.Unmarshal([]byte(cmp.Or(comment, d.inStatus)), &hunks) != nil { // "" is no JSON
		return false
	}
	want, err := d.after(changes)
	was, ok := replace(text, hunks)
	if err != nil || !ok || means(was, want) != nil {
		return false
	}
	d.text = was
	return true
}

// takenBack is the text of a file after [Uninject].
func takenBack(f *File) []byte {
	Uninject([]*File{f})
	return f.Text()
}
