package accesslog

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// Bounds on what a JSON line shows of a request, in bytes as they stand in the
// line. Container runtimes cut lines at 16 KiB; together these stay below.
const (
	maxTarget = 6 << 10
	maxField  = 1 << 10
	maxWord   = 128
)

// appendJSON appends a request as a line of JSON. The names are documented in
// docs/request-log.md, and every line has all of them in the same order: what a
// request has not come to is null. templateError says why the line is not what the
// template makes of it; "": there is none.
func (l *Log) appendJSON(b []byte, o *queue.Observation, traceID, templateError string) []byte {
	b = append(b, `{"timestamp":"`...)
	b = l.appendTime(b, o.Start)
	if failed(o) && o.Reason != queue.ClientGone {
		b = append(b, `","severity":"WARNING"`...)
	} else {
		b = append(b, `","severity":"INFO"`...)
	}
	b = append(b, `,"logger":"queueproxy.request","message":"request","kind":"`...)
	b = append(b, o.Kind.String()...)
	b = append(b, `","method":`...)
	b = appendString(b, o.Method, maxWord)
	b = append(b, `,"target":`...)
	b = appendString(b, o.Target, maxTarget)
	b = append(b, `,"host":`...)
	b = appendString(b, o.Host, maxField)
	b = append(b, `,"protocol":"HTTP/`...)
	b = strconv.AppendInt(b, int64(o.Major), 10)
	b = append(b, '.')
	b = strconv.AppendInt(b, int64(o.Minor), 10)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(o.Status), 10)
	b = append(b, `,"reason":"`...)
	b = append(b, o.Reason.String()...)
	b = append(b, `","phase":"`...)
	b = append(b, o.Phase.String()...)
	b = append(b, `","cutShort":`...)
	b = strconv.AppendBool(b, o.Begun && o.Reason != queue.OK)
	b = append(b, `,"upgraded":`...)
	b = strconv.AppendBool(b, o.Upgraded)
	b = append(b, `,"replayed":`...)
	b = strconv.AppendBool(b, o.Replayed)
	b = append(b, `,"activator":`...)
	b = strconv.AppendBool(b, o.Proxied)
	b = append(b, `,"requestBytes":`...)
	b = strconv.AppendInt(b, o.In, 10)
	b = append(b, `,"responseBytes":`...)
	b = strconv.AppendInt(b, o.Out, 10)
	b = appendTimes(b, o)
	b = append(b, `,"remote":`...)
	b = appendString(b, o.Remote, maxWord)
	b = append(b, `,"userAgent":`...)
	b = appendString(b, o.Exchange.Header(header.UserAgent), maxField)
	b = append(b, `,"referer":`...)
	b = appendString(b, o.Exchange.Header("Referer"), maxField)
	b = append(b, `,"traceId":`...)
	b = appendString(b, traceID, maxWord)
	if templateError != "" {
		b = append(b, `,"templateError":`...)
		b = appendString(b, templateError, maxField)
	}
	return append(b, l.tail...)
}

// appendTimes appends how long the request took, and what of it.
func appendTimes(b []byte, o *queue.Observation) []byte {
	b = append(b, `,"queueMs":`...)
	if o.Slot.IsZero() {
		b = appendMillis(b, o.End.Sub(o.Start))
		b = append(b, `,"appMs":null`...)
	} else {
		b = appendMillis(b, o.Slot.Sub(o.Start))
		b = append(b, `,"appMs":`...)
		b = appendMillis(b, o.End.Sub(o.Slot))
	}
	b = append(b, `,"firstByteMs":`...)
	if o.FirstByte.IsZero() {
		b = append(b, "null"...)
	} else {
		b = appendMillis(b, o.FirstByte.Sub(o.Start))
	}
	b = append(b, `,"totalMs":`...)
	return appendMillis(b, o.End.Sub(o.Start))
}

// appendTail appends what all lines end with.
func appendTail(b []byte, r *Revision) []byte {
	for _, f := range [...]struct{ name, value string }{
		{"namespace", r.Namespace}, {"service", r.Service}, {"configuration", r.Configuration}, {"revision", r.Name},
		{"pod", r.PodName}, {"podIp", r.PodIP},
	} {
		if f.value != "" {
			b = append(b, `,"`...)
			b = append(b, f.name...)
			b = append(b, `":`...)
			b = appendString(b, f.value, maxField)
		}
	}
	return append(b, "}\n"...)
}

// A second is the time of lines but for its fraction.
type second struct {
	unix int64
	text string
}

// appendTime appends a time in UTC to the microsecond. Its width is fixed, so that
// lines sort. Lines of the same second share what it costs to make.
func (l *Log) appendTime(b []byte, t time.Time) []byte {
	s := l.second.Load()
	if unix := t.Unix(); s == nil || s.unix != unix {
		s = &second{unix, t.UTC().Format("2006-01-02T15:04:05.")}
		l.second.Store(s)
	}
	b = append(b, s.text...)
	for us, digit := t.Nanosecond()/1000, 100_000; digit > 0; digit /= 10 {
		b = append(b, byte('0'+us/digit%10))
	}
	return append(b, 'Z')
}

// appendMillis appends a duration in milliseconds, to the microsecond; what is
// below zero, which a clock that was set can make, is zero.
func appendMillis(b []byte, d time.Duration) []byte {
	us := max(d, 0) / time.Microsecond
	b = strconv.AppendInt(b, int64(us/1000), 10)
	frac := us % 1000
	return append(b, '.', byte('0'+frac/100), byte('0'+frac/10%10), byte('0'+frac%10))
}

const hex = "0123456789abcdef"

// cut ends a string that is too long.
const cut = "…"

// appendString appends s as a JSON string (RFC 8259 section 7) of at most limit
// bytes between its quotes. Bytes that are not UTF-8 become U+FFFD.
func appendString(b []byte, s string, limit int) []byte {
	b = append(b, '"')
	if len(s) <= limit && isPlain(s) {
		return append(append(b, s...), '"')
	}
	end, tail := len(b)+limit, len(b)
	for i := 0; i < len(s); {
		size := 1
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			var r rune
			switch r, size = utf8.DecodeRuneInString(s[i:]); {
			case r == utf8.RuneError && size == 1:
				b = append(b, `\ufffd`...)
			case r < 0xa0: // to a terminal, U+009B begins a command
				b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
			case r == '\u2028' || r == '\u2029': // to some readers, ends of lines
				b = append(b, '\\', 'u', '2', '0', '2', hex[r&15])
			default:
				b = append(b, s[i:i+size]...)
			}
		}
		if len(b) > end {
			b = append(b[:tail], cut...)
			break
		}
		if len(b) <= end-len(cut) {
			tail = len(b) // a whole character, with place for the ellipsis behind it
		}
		i += size
	}
	return append(b, '"')
}

// isPlain reports whether a JSON string holds s as it is. Nearly all are such.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
