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

// maxHunkBytes is the maximum length in bytes of the hunks in a status, because Kubernetes limits
// the size of annotations. With longer hunks, uninject restores the values but not the layout. The
// length of hunks in a comment is not limited, because it is at most about twice the length of the
// document.
const maxHunkBytes = 64 << 10

// keptMark is the beginning of the comment that contains hunks.
const keptMark = "# " + inject.Prefix + "text: "

// A hunk replaces Count lines with Text, beginning at index Line. In JSON, it replaces tokens instead:
// see tokensOf.
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

// hunksOf returns the hunks that convert source to result. It uses split to divide both texts.
func hunksOf(source, result []byte, split func([]byte) []string) (all []hunk) {
	quoted := func(text []byte) (lines []byte) { // a part can have several lines or no newline
		for _, part := range split(text) {
			lines = append(strconv.AppendQuote(lines, part), '\n')
		}
		return lines
	}
	inHunk := false // the previous line of the difference belongs to the last hunk
	next := 0       // index of the next part of source
	var text []byte // Text of the last hunk
	end := func() {
		if inHunk {
			all[len(all)-1].Text = string(text)
		}
		inHunk, text = false, text[:0]
	}
	for line := range strings.Lines(string(diff.Diff("", quoted(source), "", quoted(result)))) {
		part, err := strconv.Unquote(strings.TrimSuffix(line[1:], "\n"))
		switch {
		case err != nil: // the header of the difference or of a chunk
			var start, length int
			if n, _ := fmt.Sscanf(line, "@@ -%d,%d", &start, &length); n == 2 {
				end()
				next = start - min(length, 1) // line numbers begin with 1; if the chunk contains no line of source, start is the number of the line before the chunk
			}
			continue
		case line[0] == ' ':
			end()
			next++
			continue
		case !inHunk:
			all, inHunk = append(all, hunk{Line: next}), true
		}
		if line[0] == '-' {
			next++
			all[len(all)-1].Count++
		} else {
			text = append(text, part...)
		}
	}
	end()
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

// tokensOf splits JSON before and after each string, and after each bracket, comma and colon. Therefore,
// hunks do not contain a long string if only the layout around it differs. The number of tokens does
// not depend on the content of strings, such as the hunks in a status.
func tokensOf(text []byte) []string {
	var all []string
	begin, quoted := 0, false
	split := func(end int) {
		if begin < end {
			all = append(all, string(text[begin:end]))
			begin = end
		}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' && quoted:
			quoted = false
			split(i + 1)
		case c == '"':
			quoted = true
			split(i)
		case quoted && c == '\\':
			i++
		case !quoted && bytes.IndexByte([]byte("{}[],:"), c) >= 0:
			split(i + 1)
		}
	}
	split(len(text))
	return all
}

// A parsed is a text and its value.
type parsed struct {
	text  []byte
	value any
}

// keep stores the hunks that restore the original text of the document. was contains the text and
// the value of the document before the changes were applied. keep changes the nodes of the
// document.
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
		hunks := encodedHunks(ended, original, tokensOf)
		d.lost = len(hunks) > maxHunkBytes || !d.keepInStatus(was.text, changes, hunks)
		return
	}
	d.lost = !d.keepInComment(original, func(text []byte) error { return d.setText(text, d.value) })
}

// keepInComment adds a comment with the hunks that restore original. It calls set to replace the
// text of the document. set returns an error if the new text has a different value. keepInComment
// returns false if the hunks are not stored.
func (d *document) keepInComment(original []byte, set func(text []byte) error) bool {
	ended, _ := d.kept()
	newline := lineEnding(original)
	// A comment needs a separate line, so the hunks apply to a text that ends with a newline.
	body, end := ended, []byte(nil)
	if !bytes.HasSuffix(ended, []byte("\n")) {
		body = append(slices.Clone(ended), newline...)
	}
	hunks := encodedHunks(body, original, linesOf)
	// The line ... must remain the last line.
	if n := len(bytes.TrimRight(body, "\r\n")); n >= 3 && string(body[n-3:n]) == "..." && (n == 3 || body[n-4] == '\n') {
		body, end = body[:n-3], body[n-3:]
	}
	if set(slices.Concat(body, []byte(keptMark+hunks+newline), end)) == nil {
		return true
	}
	if d.isItem { // a comment at the beginning of an item would belong to the previous item
		return false
	}
	// If the document ends with a block scalar and without a newline, a newline would change its value.
	// The comment is then the first line. An error means that the text cannot contain the comment.
	hunks = encodedHunks(ended, original, linesOf)
	return set(slices.Concat([]byte(keptMark+hunks+newline), ended)) == nil
}

// encodedHunks returns the hunks that convert source to result, encoded as JSON.
func encodedHunks(source, result []byte, split func([]byte) []string) string {
	hunks, _ := json.Marshal(hunksOf(source, result, split)) // encoding numbers and strings returns no error
	return string(hunks)
}

// isRestored reports whether Uninject restores the original text if the document contains no hunks.
// was contains the original text and value, and must not contain a status or hunks. isRestored
// changes the nodes of the document.
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

// keepInStatus adds hunks to the first status in the changes, and encodes the JSON document again.
// It does not modify the status of an earlier step, because a change in a pod template restarts the
// pods. It returns false if the hunks are not stored.
func (d *document) keepInStatus(was []byte, changes []inject.Change, hunks string) bool {
	i := slices.IndexFunc(changes, inject.IsStatus)
	if i < 0 {
		return false
	}
	with := slices.Clone(changes)
	with[i] = inject.WithText(with[i], hunks)
	again := &document{text: was}
	again.decode()
	if _, err := again.change(with); err != nil || len(tokensOf(again.text)) != len(tokensOf(d.text)) {
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
// If several steps stored hunks in a status, only the hunks of the last step restore the expected
// value, because the hunks of an earlier step do not remove the status of a later step.
func (d *document) restore(changes []inject.Change) bool {
	text, comment := d.kept()
	if comment == "" && len(d.statusHunks) == 0 {
		return false
	}
	want, err := inject.Apply(d.value, changes)
	if err != nil {
		return false
	}
	isRestored := func(stored string, split func([]byte) []string) bool {
		var hunks []hunk
		if json.Unmarshal([]byte(stored), &hunks) != nil {
			return false
		}
		was, ok := replace(text, hunks, split)
		return ok && d.setText(was, want) == nil
	}
	return isRestored(comment, linesOf) || slices.ContainsFunc(d.statusHunks, func(stored string) bool { return isRestored(stored, tokensOf) })
}

// uninjectedText returns the text that [Uninject] restores from the given text of the document.
func (d *document) uninjectedText(text []byte) []byte {
	injected := &document{text: text, in: d.in, isItem: d.isItem}
	Uninject([]*File{{documents: []*document{injected}}})
	return injected.text
}
