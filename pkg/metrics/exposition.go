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

// errGarbage says that the user container's metrics could not be read. Prometheus
// gives up a whole scrape for one line that it cannot read, so everything is
// understood before anything is passed on.
var errGarbage = errors.New("not in Prometheus' text format, nor in OpenMetrics")

// An exposition is what the user container says about itself, in Prometheus' text
// format 0.0.4 or OpenMetrics 1.0. It is read twice, first to find out what there
// is, then to write it, because keeping it in pieces would take several times its
// size in memory.
type exposition struct {
	body        string
	openMetrics bool
	families    map[string]*appFamily
	owners      map[string]*appFamily // of each name of a sample
}

// An appFamily is one metric of the user container.
type appFamily struct {
	name, kind, help, unit string // kind is "" where nobody says

	shown   string // its name in the format that is written
	typed   string // its type there; "": none is written
	prefix  string // of all its names
	written bool   // its head has been
}

// readExposition reads all of it, or returns errGarbage.
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
		return nil, errGarbage // it was cut off
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

// suffixes are what the samples of a type may have behind the name of their family.
var suffixes = map[string][]string{
	"counter":        {"_total", "_created"},
	"histogram":      {"_bucket", "_sum", "_count", "_created"},
	"gaugehistogram": {"_bucket", "_gsum", "_gcount"},
	"summary":        {"_sum", "_count", "_created"},
	"info":           {"_info"},
}

// owner finds the family of a sample.
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

// write writes everything under names that are not taken, without the end mark of
// OpenMetrics. It is called once.
func (x *exposition) write(out io.Writer, openMetrics bool, taken map[string]bool) error {
	for _, f := range x.families {
		f.translate(x, openMetrics)
	}
	x.rename(taken)
	var b []byte // what is written at once
	for line := range strings.Lines(x.body) {
		if l, _ := readLine(line, x.openMetrics); l.keyword == "" {
			f := x.owners[l.name]
			if !openMetrics && f.created(l.name) {
				continue // the text format has no such samples
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

// created reports whether a sample says when its series began.
func (f *appFamily) created(sample string) bool {
	return strings.HasSuffix(sample, "_created") && slices.Contains(suffixes[f.kind], "_created")
}

// translate finds the family's name and type in the format that is written. In
// OpenMetrics a counter is called without the _total that its samples have.
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

// rename gives a prefix to families one of whose names is taken: app_, as often as
// it needs.
func (x *exposition) rename(taken map[string]bool) {
	names := map[*appFamily][]string{}
	all := map[string]bool{} // of the user container
	for _, f := range x.families {
		names[f] = append(names[f], f.shown)
		all[f.shown] = true
	}
	for sample, f := range x.owners {
		names[f] = append(names[f], sample)
		all[sample] = true
	}
	for f, own := range names {
		clash := func(name string) bool {
			return taken[f.prefix+name] || f.prefix != "" && all[f.prefix+name]
		}
		for slices.ContainsFunc(own, clash) {
			f.prefix += "app_"
		}
	}
}

// Escapes of help texts. What is no escape stays as it is.
var (
	helpInText        = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	helpInOpenMetrics = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	helpAsItIs        = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\"`, `"`)
)

// appendHead appends what stands before the samples of a family, once.
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

// A line is one line, read. The zero keyword is a sample, "-" one that says nothing.
type line struct {
	keyword string // HELP, TYPE, UNIT, EOF, - or ""
	name    string // of the family or of the sample
	text    string // of a keyword

	labels, value, timestamp string // as they were written; labels without braces
	exemplar                 string // with its mark; OpenMetrics only
}

const blanks = " \t"

// The types of both formats.
var (
	textKinds        = []string{"counter", "gauge", "histogram", "summary", "untyped"}
	openMetricsKinds = []string{"counter", "gauge", "histogram", "summary", "unknown", "info", "stateset", "gaugehistogram"}
)

// readLine reads one line; false: it is in neither format.
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

// readComment reads what stands behind #.
func readComment(s string, openMetrics bool) (l line, ok bool) {
	keyword, rest := cutWord(s)
	if len(keyword) < len(s) && !strings.ContainsAny(s[:1], blanks) {
		keyword = "" // as in #TYPE, which means nothing
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
		l.text = helpAsItIs.Replace(l.text)
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

// cutWord cuts off the first word and the blanks around it.
func cutWord(s string) (word, rest string) {
	s = strings.TrimLeft(s, blanks)
	if i := strings.IndexAny(s, blanks); i >= 0 {
		return s[:i], strings.TrimLeft(s[i:], blanks)
	}
	return s, ""
}

// cutName cuts off a name, "" if there is none. more are letters that may be in it.
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

// properEscapes escapes the backslash of what is no escape in the value of a label.
var properEscapes = strings.NewReplacer(`\\`, `\\`, `\n`, `\n`, `\"`, `\"`, `\`, `\\`)

// readLabels reads what stands behind an opening brace up to the closing one, and
// returns it without blanks. No label may be there twice, or be the name.
func readLabels(s string) (labels, rest string, ok bool) {
	start, tidy := s, true // as it should be written
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

// cutQuoted cuts off what stands before the closing quote.
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

// readExemplar reads what stands behind the mark, and returns it with the mark.
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

// isNumber reports whether s is a value. Go reads more than Prometheus does.
func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return (err == nil || errors.Is(err, strconv.ErrRange)) && !strings.ContainsAny(s, "xXpP_")
}

// isTimestamp reports whether s is one, or none: whole milliseconds, or seconds in
// OpenMetrics.
func isTimestamp(s string, openMetrics bool) bool {
	if s == "" {
		return true
	}
	if openMetrics {
		seconds, err := strconv.ParseFloat(s, 64)
		return err == nil && math.Abs(seconds) < math.MaxInt64/1000 && isNumber(s) // which not a number isn't, either
	}
	_, err := strconv.ParseInt(s, 10, 64)
	return err == nil
}

// append appends a sample that was read in one format in the same one or another.
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

// translateTime makes seconds of milliseconds, or the other way round.
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
