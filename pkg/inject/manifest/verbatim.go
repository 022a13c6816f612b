package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// The status annotation contains the original values of an object, but not their layout, such as
// comments, quotes and the order of keys. If uninject cannot restore the original bytes from the
// status, inject also stores hunks that restore the lines of the original text. In YAML, the hunks
// are in a comment at the end of the document, or in its first line if the end cannot contain a
// comment. In JSON, which has no comments, they are in the status. The value of the restored text must
// equal the value that results from the status, so that the hunks only affect the layout.

// maxHunkBytes is the maximum length of the hunks of a document in bytes. With longer hunks,
// uninject restores the values but not the layout.
const maxHunkBytes = 64 << 10

// keptMark is the beginning of the comment that contains hunks.
const keptMark = "# " + inject.Prefix + "text: "

// A hunk replaces Count lines with Text, beginning at index Line. In JSON on one line, it replaces
// members instead: see membersOf.
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

// hunksOf returns the hunks that convert the text from into the text to. It uses split to divide both texts.
func hunksOf(from, to []byte, split func([]byte) []string) (all []hunk) {
	quoted := func(text []byte) (lines []byte) { // a part can have several lines or no newline
		for _, part := range split(text) {
			lines = append(strconv.AppendQuote(lines, part), '\n')
		}
		return lines
	}
	var last *hunk // nil after a line that both texts contain
	next := 0      // index of the next part of the text from
	for line := range strings.Lines(string(diff.Diff("", quoted(from), "", quoted(to)))) {
		part, err := strconv.Unquote(strings.TrimSuffix(line[1:], "\n"))
		switch {
		case err != nil: // the header of the difference or of a chunk
			var start, length int
			if n, _ := fmt.Sscanf(line, "@@ -%d,%d", &start, &length); n == 2 {
				next, last = start-min(length, 1), nil // line numbers begin with 1; if the chunk contains no line of the text from, start is the number of the line before the chunk
			}
			continue
		case line[0] == ' ':
			next++
			last = nil
			continue
		case last == nil:
			all = append(all, hunk{Line: next})
			last = &all[len(all)-1]
		}
		if line[0] == '-' {
			next++
			last.Count++
		} else {
			last.Text += part
			if len(last.Text) > maxHunkBytes { // see encodedHunks
				return all
			}
		}
	}
	return all
}

// replace applies hunks to a text, which it divides with split. It returns false if the hunks
// do not match the text.
func replace(text []byte, hunks []hunk, split func([]byte) []string) ([]byte, bool) {
	lines := split(text)
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

// isOneLine reports whether a text has one line, apart from the white space around it.
func isOneLine(text []byte) bool { return !bytes.ContainsRune(bytes.TrimSpace(text), '\n') }

// membersOf splits JSON after each comma between two members. The number of the parts does not depend
// on the content of strings, such as the hunks in a status.
func membersOf(text []byte) []string {
	var all []string
	begin, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '"':
			quoted = !quoted
		case quoted && text[i] == '\\':
			i++
		case !quoted && text[i] == ',':
			all = append(all, string(text[begin:i+1]))
			begin = i + 1
		}
	}
	return append(all, string(text[begin:]))
}

// A parsed is a text and its value.
type parsed struct {
	text  []byte
	value any
}

// keep stores the hunks that restore was, which is the text of a document before changes were
// applied to it. It changes the nodes of the document.
func (d *document) keep(was parsed, changes []inject.Change) {
	if d.in != nil && d.in.flow != nil {
		d.lost = !d.isRestored(was) // the hunks are added to the whole List: see flowList.join
		return
	}
	isJSON, original, ended := json.Valid(was.text), was.text, d.text // the document can be YAML before the changes and JSON afterwards
	if bytes.Contains(was.text, []byte(inject.StatusAnnotation)) || bytes.Contains(was.text, []byte(keptMark)) {
		original = d.uninjectedText(was.text) // an earlier step changed the object, or another object of the document
		if bytes.Equal(original, d.uninjectedText(d.text)) {
			return
		}
	} else if d.isRestored(was) {
		return
	}
	if isJSON {
		hunks, ok := encodedHunks(ended, original, splitOf(ended))
		d.lost = !ok || !d.keepInStatus(was.text, changes, hunks)
		return
	}
	d.lost = !d.keepInComment(original, func(text []byte) error { return d.setText(text, d.value) })
}

// keepInComment adds a comment with the hunks that restore original. It calls set to replace the
// text of the document. set returns an error if the new text has another value. keepInComment
// returns false if the hunks are not stored.
func (d *document) keepInComment(original []byte, set func(text []byte) error) bool {
	ended, _ := d.kept()
	newline := lineEnding(original)
	// A comment needs a separate line, so the hunks apply to a text that ends with a newline.
	body, end := ended, []byte(nil)
	if !bytes.HasSuffix(ended, []byte("\n")) {
		body = append(slices.Clone(ended), newline...)
	}
	hunks, ok := encodedHunks(body, original, linesOf)
	// The line ... must remain the last line.
	if n := len(bytes.TrimRight(body, "\r\n")); n >= 3 && string(body[n-3:n]) == "..." && (n == 3 || body[n-4] == '\n') {
		body, end = body[:n-3], body[n-3:]
	}
	if ok && set(slices.Concat(body, []byte(keptMark+hunks+newline), end)) == nil {
		return true
	}
	if d.isItem { // a comment at the beginning of an item would belong to the previous item
		return false
	}
	// If the document ends with a block scalar and without a newline, a newline would change its value.
	// The comment is then the first line. An error means that the text cannot contain the comment.
	hunks, ok = encodedHunks(ended, original, linesOf)
	return ok && set(slices.Concat([]byte(keptMark+hunks+newline), ended)) == nil
}

// splitOf returns the function that divides JSON for hunks in a status.
func splitOf(text []byte) func([]byte) []string {
	if isOneLine(text) {
		return membersOf
	}
	return linesOf
}

// encodedHunks returns the hunks that convert the text from into the text to, as JSON. It returns false
// if they are too long.
func encodedHunks(from, to []byte, split func([]byte) []string) (string, bool) {
	hunks, err := json.Marshal(hunksOf(from, to, split))
	return string(hunks), err == nil && len(hunks) <= maxHunkBytes
}

// isRestored reports whether Uninject restores was, the original text of a document, without hunks.
// was must not contain a status or hunks. isRestored changes the nodes of the document.
func (d *document) isRestored(was parsed) bool {
	undone := &document{text: d.text, node: d.node, value: d.value, in: d.in, isItem: d.isItem}
	undone.list(readStatus)
	changes, _ := undone.takeChanges()
	if value, err := inject.Apply(undone.value, changes); err != nil || !equal(value, was.value) {
		return false
	}
	edit := undone.editText
	if undone.becomesJSON() {
		edit = undone.encode
	}
	text, err := edit(changes)
	return err == nil && bytes.Equal(text, was.text)
}

// keepInStatus encodes JSON again with the hunks in the first status that the changes write. It does
// not modify the status of an earlier step, because a change in a pod template restarts the pods. It
// returns false if the hunks are not stored.
func (d *document) keepInStatus(was []byte, changes []inject.Change, hunks string) bool {
	i := slices.IndexFunc(changes, inject.IsStatus)
	if i < 0 {
		return false
	}
	with := slices.Clone(changes)
	with[i] = inject.WithText(with[i], hunks)
	again := &document{text: was}
	again.decode()
	split := splitOf(d.text)
	if _, err := again.change(with); err != nil || len(split(again.text)) != len(split(d.text)) {
		return false
	}
	d.text = again.text
	return true
}

// kept returns the text of a document without the last comment that contains hunks. It also returns
// these hunks. The hunks can contain the marker of the comment, so the marker is recognized only at
// the beginning of a line.
func (d *document) kept() (text []byte, hunks string) {
	i := bytes.LastIndex(d.text, []byte("\n"+keptMark)) + 1
	if i == 0 && !bytes.HasPrefix(d.text, []byte(keptMark)) {
		return d.text, ""
	}
	line, rest, _ := bytes.Cut(d.text[i:], []byte("\n"))
	return slices.Concat(d.text[:i], rest), strings.TrimSpace(string(line[len(keptMark):]))
}

// maxStatusHunks is the maximum number of statuses of a document from which hunks are read. Each
// step adds at most one of them.
const maxStatusHunks = 16

// readHunks reads the hunks in the status of an object.
func (d *document) readHunks(object any) {
	if text := inject.TextOf(object); text != "" && len(d.statusHunks) < maxStatusHunks {
		d.statusHunks = append(d.statusHunks, text)
	}
}

// revert reverts the changes of [Inject].
func (d *document) revert(changes []inject.Change) error {
	if d.restore(changes) {
		return nil
	}
	reformatted, err := d.change(changes)
	d.reformatted = reformatted
	d.text, _ = d.kept()
	return err
}

// restore reverts changes by restoring the original text. It returns false if this is not possible.
// If several steps stored hunks in a status, only the hunks of the last step have the expected
// result: the hunks of an earlier step do not remove the status of a later step.
func (d *document) restore(changes []inject.Change) bool {
	text, comment := d.kept()
	all := d.statusHunks
	if comment != "" {
		all = append([]string{comment}, all...)
	}
	if len(all) == 0 {
		return false
	}
	want, err := inject.Apply(d.value, changes)
	if err != nil {
		return false
	}
	splits := []func([]byte) []string{linesOf} // hunks in a comment, and hunks that other versions stored, always replace lines
	if isOneLine(text) {
		splits = append(splits, membersOf)
	}
	for _, stored := range all {
		var hunks []hunk
		if json.Unmarshal([]byte(stored), &hunks) != nil {
			continue
		}
		for _, split := range splits {
			if was, ok := replace(text, hunks, split); ok && d.setText(was, want) == nil {
				return true
			}
		}
	}
	return false
}

// uninjectedText returns the text that [Uninject] restores if the current text of the document is text.
func (d *document) uninjectedText(text []byte) []byte {
	injected := &document{text: text, in: d.in, isItem: d.isItem}
	Uninject([]*File{{documents: []*document{injected}}})
	return injected.text
}
