package manifest

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"
)

// A formatError is the error for a file or document that is not a manifest.
type formatError string

func (e formatError) Error() string { return string(e) }

const (
	errUTF16        formatError = "the file is encoded in UTF-16; convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8"
	errUTF32        formatError = "the file is encoded in UTF-32; convert it to UTF-8, for example with iconv -f UTF-32 -t UTF-8"
	errCompressed   formatError = "the file is compressed; decompress it first"
	errHelmTemplate formatError = "the document is a Helm template ({{ ... }}); inject the output of helm template instead, or use the injector as a post-renderer"
	errMarkup       formatError = "the document is HTML or XML, not a manifest; check the URL or the command that created it"
	errMessage      formatError = "the document is a message of a program, not a manifest; check the command that created it"
)

func isFormatError(err error) bool {
	_, is := errors.AsType[formatError](err)
	return is
}

// checkEncoding returns an error for a compressed file, or for a file that begins with a byte order mark
// or an ASCII character in UTF-16 or UTF-32. The editor of the text only supports UTF-8.
func checkEncoding(text []byte) error {
	for _, signature := range []string{"\x1f\x8b", "PK\x03\x04"} { // gzip (RFC 1952 section 2.3.1) and ZIP
		if bytes.HasPrefix(text, []byte(signature)) {
			return errCompressed
		}
	}
	if len(text) >= 4 {
		mark := string(text[:4])
		ascii := strings.Trim(mark, "\x00")
		if mark == "\xff\xfe\x00\x00" || mark == "\x00\x00\xfe\xff" || len(ascii) == 1 && (mark[0] != 0 || mark[3] != 0) {
			return errUTF32
		}
	}
	if len(text) < 2 {
		return nil
	}
	a, b := text[0], text[1]
	if a == 0xFE && b == 0xFF || a == 0xFF && b == 0xFE || (a == 0) != (b == 0) {
		return errUTF16
	}
	return nil
}

// format returns an error if the decoded document is not a manifest. Otherwise, it returns nil.
func (d *document) format() error {
	object, isMap := d.value.(map[string]any)
	_, isString := d.value.(string)
	switch invalid := d.err != nil && d.node == nil; {
	case (invalid || errors.Is(d.err, errKey)) && isHelmTemplate(d.text):
		return errHelmTemplate
	case d.in != nil: // an item of a List
	case (invalid || isString) && d.isMarkup():
		return errMarkup
	case isString, (invalid || isMap && len(object) == 1) && d.isMessage():
		return errMessage
	}
	return nil
}

// isHelmTemplate reports whether a text contains an action of a Go template. It returns false for
// programs and archives, which can contain the same bytes.
func isHelmTemplate(text []byte) bool {
	if bytes.ContainsRune(text, 0) || !utf8.Valid(text) {
		return false
	}
	_, rest, found := bytes.Cut(text, []byte("{{"))
	return found && bytes.Contains(rest, []byte("}}"))
}

// isMarkup reports whether the document begins with a tag, a comment or a declaration of HTML or XML.
func (d *document) isMarkup() bool {
	rest, found := bytes.CutPrefix(d.content(), []byte("<"))
	return found && len(rest) > 0 && rest[0] != '<' // << is the merge key of YAML or a conflict marker of git
}

// isMessage reports whether the document begins with an error message or a warning from Helm, kubectl or a
// similar program.
func (d *document) isMessage() bool {
	begin := strings.ToLower(string(d.content()[:min(len(d.content()), 64)]))
	for _, word := range []string{"error: ", "warning: ", "fatal: ", "error from server", "unable to connect to the server: "} {
		if strings.HasPrefix(begin, word) {
			return true
		}
	}
	return false
}

// content returns the text of the document after the --- line and the white space.
func (d *document) content() []byte {
	text := bytes.TrimPrefix(d.text, []byte(byteOrderMark))
	return bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(text), []byte("---")))
}
