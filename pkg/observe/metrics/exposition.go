package metrics

import (
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// errGarbage is returned if the metrics of the user container cannot be parsed. The metrics are parsed
// completely before they are forwarded, because Prometheus rejects a scrape that contains an invalid line.
var errGarbage = errors.New("invalid Prometheus metrics")

// An exposition contains the metrics of the user container, in the Prometheus text format 0.0.4 or in
// OpenMetrics 1.0. The body is parsed once to find the families and again to write the samples, because the
// parsed samples would need several times the memory of the body.
type exposition struct {
	body        string
	openMetrics bool
	families    map[string]*appFamily
	owners      map[string]*appFamily // family of each sample name
}

// An appFamily is a metric family of the user container.
type appFamily struct {
	name, kind, help, unit string // kind is "" if there is no TYPE line

	shown   string // name in the output format
	typed   string // type in the output format; "" omits the TYPE line
	prefix  string // added to the name of the family and its samples
	written bool   // the HELP, TYPE and UNIT lines have been written
}

// readExposition parses body. It returns errGarbage if a line is invalid.
func readExposition(body string, openMetrics bool) (*exposition, error) {
	x := &exposition{
		body:        body,
		openMetrics: openMetrics,
		families:    map[string]*appFamily{},
		owners:      map[string]*appFamily{},
	}
	ended := false
	for line := range strings.Lines(body) {
		l, ok := readLine(line, openMetrics)
		if !ok || ended || !utf8.ValidString(line) {
			return nil, errGarbage
		}
		switch l.keyword {
		case "EOF":
			ended = true
		case "HELP":
			x.family(l.name).help = l.text
		case "UNIT":
			x.family(l.name).unit = l.text
		case "TYPE":
			x.family(l.name).kind = l.text
		case "":
			x.owners[l.name] = nil
		}
	}
	if openMetrics && !ended {
		return nil, errGarbage // the body is truncated
	}
	for name := range x.owners {
		x.owners[name] = x.owner(name)
	}
	return x, nil
}

func (x *exposition) family(name string) *appFamily {
	f := x.families[name]
	if f == nil {
		f = &appFamily{name: name}
		x.families[name] = f
	}
	return f
}

// suffixes contains, for each type, the suffixes that sample names can have after the family name.
var suffixes = map[string][]string{
	"counter":        {"_total", "_created"},
	"histogram":      {"_bucket", "_sum", "_count", "_created"},
	"gaugehistogram": {"_bucket", "_gsum", "_gcount"},
	"summary":        {"_sum", "_count", "_created"},
	"info":           {"_info"},
}

// owner returns the family of a sample.
func (x *exposition) owner(sample string) *appFamily {
	if f := x.families[sample]; f != nil {
		return f
	}
	if i := strings.LastIndexByte(sample, '_'); i > 0 {
		if f := x.families[sample[:i]]; f != nil && slices.Contains(suffixes[f.kind], sample[i:]) {
			return f
		}
	}
	return x.family(sample)
}

// write writes the exposition without the EOF line of OpenMetrics. It renames families whose names are
// in taken. It must be called only once.
func (x *exposition) write(out io.Writer, openMetrics bool, taken map[string]bool) error {
	for _, f := range x.families {
		f.translate(x, openMetrics)
	}
	x.rename(taken)
	var b []byte // buffer for a sample and the comments before it
	for line := range strings.Lines(x.body) {
		if l, _ := readLine(line, x.openMetrics); l.keyword == "" {
			f := x.owners[l.name]
			if !openMetrics && f.created(l.name) {
				continue // the text format does not have _created samples
			}
			b = append(f.appendHead(b[:0], openMetrics), f.prefix...)
			b = l.append(b, x.openMetrics, openMetrics)
			if _, err := out.Write(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// created reports whether a sample contains the creation time of its series.
func (f *appFamily) created(sample string) bool {
	return strings.HasSuffix(sample, "_created") && slices.Contains(suffixes[f.kind], "_created")
}

// translate sets the name and the type of the family in the output format. In OpenMetrics, the name of a
// counter family does not contain the suffix _total of its samples.
func (f *appFamily) translate(x *exposition, openMetrics bool) {
	f.shown, f.typed = f.name, f.kind
	switch {
	case openMetrics == x.openMetrics:
	case openMetrics:
		switch f.kind {
		case "counter":
			name, ok := strings.CutSuffix(f.name, "_total")
			if _, other := x.families[name]; ok && !other {
				f.shown = name
			} else {
				f.typed = "unknown"
			}
		case "untyped":
			f.typed = "unknown"
		}
	default:
		switch f.kind {
		case "counter":
			f.shown = strings.TrimSuffix(f.name, "_total") + "_total"
		case "info":
			f.shown, f.typed = strings.TrimSuffix(f.name, "_info")+"_info", "gauge"
		case "stateset":
			f.typed = "gauge"
		case "unknown":
			f.typed = "untyped"
		case "gaugehistogram":
			f.typed = ""
		}
		if _, other := x.families[f.shown]; other && f.shown != f.name {
			f.typed = ""
		}
	}
}

// rename adds the prefix app_ to each family with a name in taken. If the new name is also in use, it adds the
// prefix again.
func (x *exposition) rename(taken map[string]bool) {
	names := map[*appFamily][]string{}
	all := map[string]bool{} // all names of the user container
	for _, f := range x.families {
		names[f] = append(names[f], f.shown)
		all[f.shown] = true
	}
	for sample, f := range x.owners {
		names[f] = append(names[f], sample)
		all[sample] = true
	}
	for f, own := range names {
		f.prefix = freePrefix(own, taken, all)
	}
}

// Replacers for the escape sequences in help texts. They do not change invalid escape sequences.
var (
	helpInText        = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	helpInOpenMetrics = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	helpUnescaper     = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\"`, `"`)
)

// appendHead appends the HELP, TYPE and UNIT lines of a family on the first call. Later calls append nothing.
func (f *appFamily) appendHead(b []byte, openMetrics bool) []byte {
	if f.written {
		return b
	}
	f.written = true
	line := func(keyword, text string) {
		if text != "" {
			b = append(b, "# "+keyword+" "+f.prefix+f.shown+" "+text+"\n"...)
		}
	}
	help := helpInText
	if openMetrics {
		help = helpInOpenMetrics
	}
	line("HELP", help.Replace(f.help))
	line("TYPE", f.typed)
	if openMetrics {
		line("UNIT", f.unit)
	}
	return b
}

// A line is a parsed line of an exposition.
type line struct {
	keyword string // HELP, TYPE, UNIT or EOF; "" for a sample; "-" for an empty line or a comment
	name    string // name of the family or the sample
	text    string // text after the name in a line with a keyword

	labels, value, timestamp string // unchanged from the input; labels without braces
	exemplar                 string // including " # "; OpenMetrics only
}

const blanks = " \t"

// Metric types of the two formats.
var (
	textKinds        = []string{"counter", "gauge", "histogram", "summary", "untyped"}
	openMetricsKinds = []string{"counter", "gauge", "histogram", "summary", "unknown", "info", "stateset", "gaugehistogram"}
)

// readLine parses a line. ok is false if the line is invalid.
func readLine(s string, openMetrics bool) (l line, ok bool) {
	s = strings.Trim(strings.TrimSuffix(s, "\n"), blanks)
	if s == "" {
		return line{keyword: "-"}, true
	}
	if s[0] == '#' {
		return readComment(s[1:], openMetrics)
	}
	if l.name, s = cutName(s, ":"); l.name == "" {
		return l, false
	}
	s = strings.TrimLeft(s, blanks)
	if strings.HasPrefix(s, "{") {
		if l.labels, s, ok = readLabels(s[1:]); !ok {
			return l, false
		}
	}
	if sample, exemplar, found := strings.Cut(s, " # "); found && openMetrics {
		if l.exemplar, ok = readExemplar(exemplar); !ok {
			return l, false
		}
		s = sample
	}
	l.value, s = cutWord(s)
	l.timestamp, s = cutWord(s)
	return l, isNumber(l.value) && isTimestamp(l.timestamp, openMetrics) && s == ""
}

// readComment parses the text after #.
func readComment(s string, openMetrics bool) (l line, ok bool) {
	keyword, rest := cutWord(s)
	if len(keyword) < len(s) && !strings.ContainsAny(s[:1], blanks) {
		keyword = "" // for example #TYPE, which is a comment
	}
	switch {
	case keyword == "EOF" && openMetrics:
		return line{keyword: keyword}, rest == ""
	case keyword != "HELP" && keyword != "TYPE" && keyword != "UNIT":
		return line{keyword: "-"}, true
	}
	l.keyword = keyword
	l.name, l.text = cutWord(rest)
	name, more := cutName(l.name, ":")
	switch {
	case name == "" || more != "":
		return l, false
	case keyword == "HELP":
		l.text = helpUnescaper.Replace(l.text)
		return l, true
	case keyword == "UNIT":
		unit, more := cutName(l.text, ":")
		return l, unit != "" && more == ""
	}
	kinds := textKinds
	if openMetrics {
		kinds = openMetricsKinds
	}
	return l, slices.Contains(kinds, l.text)
}

// cutWord returns the first word of s and the text after it, without the blanks around the word.
func cutWord(s string) (word, rest string) {
	s = strings.TrimLeft(s, blanks)
	if i := strings.IndexAny(s, blanks); i >= 0 {
		return s[:i], strings.TrimLeft(s[i:], blanks)
	}
	return s, ""
}

// cutName returns the name at the beginning of s and the rest of s. The name is empty if s does not begin
// with a name. If more is not empty, the character in more is also allowed in the name.
func cutName(s, more string) (name, rest string) {
	i := 0
	for i < len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || more != "" && c == more[0]
		if !letter && (i == 0 || c < '0' || c > '9') {
			break
		}
		i++
	}
	return s[:i], s[i:]
}

// properEscapes escapes the backslashes of invalid escape sequences in label values.
var properEscapes = strings.NewReplacer(`\\`, `\\`, `\n`, `\n`, `\"`, `\"`, `\`, `\\`)

// readLabels parses the labels after an opening brace. It returns the labels without blanks, and the text
// after the closing brace. ok is false if the labels are invalid, or if a label is a duplicate or __name__.
func readLabels(s string) (labels, rest string, ok bool) {
	start, tidy := s, true // tidy means that the input can be returned unchanged
	skipBlanks := func(s string) string {
		trimmed := strings.TrimLeft(s, blanks)
		tidy = tidy && len(trimmed) == len(s)
		return trimmed
	}
	names, values := make([]string, 0, 16), make([]string, 0, 16)
	for s = skipBlanks(s); !strings.HasPrefix(s, "}"); s = skipBlanks(s) {
		name, rest := cutName(s, "")
		rest, is := strings.CutPrefix(skipBlanks(rest), "=")
		rest, quoted := strings.CutPrefix(skipBlanks(rest), `"`)
		value, rest, ended := cutQuoted(rest)
		if !is || !quoted || !ended || name == "" || name == "__name__" || slices.Contains(names, name) {
			return "", "", false
		}
		if strings.Contains(value, `\`) {
			written := value
			value = properEscapes.Replace(value)
			tidy = tidy && value == written
		}
		names, values = append(names, name), append(values, value)
		if s = skipBlanks(rest); strings.HasPrefix(s, ",") {
			s = s[1:]
			tidy = tidy && !strings.HasPrefix(s, "}")
		} else if !strings.HasPrefix(s, "}") {
			return "", "", false
		}
	}
	if tidy {
		return start[:len(start)-len(s)], s[1:], true
	}
	for i, name := range names {
		names[i] = name + `="` + values[i] + `"`
	}
	return strings.Join(names, ","), s[1:], true
}

// cutQuoted returns the text before the closing quote and the text after it. ended is false if there is no
// closing quote.
func cutQuoted(s string) (value, rest string, ended bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return s[:i], s[i+1:], true
		case '\\':
			i++
		}
	}
	return "", "", false
}

// readExemplar parses the text after " # " and returns the exemplar including " # ".
func readExemplar(s string) (exemplar string, ok bool) {
	if !strings.HasPrefix(s, "{") {
		return "", false
	}
	labels, s, ok := readLabels(s[1:])
	value, s := cutWord(s)
	timestamp, s := cutWord(s)
	if !ok || !isNumber(value) || !isTimestamp(timestamp, true) || s != "" {
		return "", false
	}
	return strings.TrimSuffix(" # {"+labels+"} "+value+" "+timestamp, " "), true
}

// isNumber reports whether s is a valid sample value. ParseFloat accepts more formats than Prometheus.
func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return (err == nil || errors.Is(err, strconv.ErrRange)) && !strings.ContainsAny(s, "xXpP_")
}

// isTimestamp reports whether s is empty or a timestamp. A timestamp is an integer in milliseconds, or a
// number of seconds in OpenMetrics.
func isTimestamp(s string, openMetrics bool) bool {
	if s == "" {
		return true
	}
	if openMetrics {
		seconds, err := strconv.ParseFloat(s, 64)
		return err == nil && math.Abs(seconds) < math.MaxInt64/1000 && isNumber(s) // the comparison is false for NaN
	}
	_, err := strconv.ParseInt(s, 10, 64)
	return err == nil
}

// append appends a sample in the output format. from is true if the input is OpenMetrics, and to is true if
// the output is OpenMetrics.
func (l *line) append(b []byte, from, to bool) []byte {
	b = append(b, l.name...)
	if l.labels != "" {
		b = append(b, '{')
		b = append(b, l.labels...)
		b = append(b, '}')
	}
	b = append(b, ' ')
	b = append(b, l.value...)
	if l.timestamp != "" {
		b = append(b, ' ')
		b = append(b, translateTime(l.timestamp, from, to)...)
	}
	if to {
		b = append(b, l.exemplar...)
	}
	return append(b, '\n')
}

// translateTime converts a timestamp from milliseconds to seconds or vice versa.
func translateTime(s string, from, to bool) string {
	switch {
	case from == to:
		return s
	case to:
		ms, _ := strconv.ParseInt(s, 10, 64)
		return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64)
	}
	seconds, _ := strconv.ParseFloat(s, 64)
	return strconv.FormatInt(int64(math.Round(seconds*1000)), 10)
}
