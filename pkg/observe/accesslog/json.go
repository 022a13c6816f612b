package accesslog

import (
	"strconv"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// Maximum lengths of values in a JSON line, in bytes including escape sequences. Container runtimes split lines after
// 16 KiB. A line with all values of the maximum length is shorter.
const (
	maxTarget = 6 << 10 // request target
	maxField  = 1 << 10 // header field
	maxWord   = 128     // method, address or ID
)

// appendJSON appends the JSON line of a request. docs/request-log.md describes the fields. All lines of a sidecar have
// the same fields in the same order. A duration is null if the request did not reach the phase that the duration
// measures. If templateError is not "", the line replaces the output of a template, and also contains templateError.
func (l *Log) appendJSON(b []byte, o *observation.Observation, traceID, templateError string) []byte {
	severity := "INFO"
	if failed(o) && !o.Reason.IsClient() {
		severity = "WARNING"
	}
	b = appendTime(append(b, `{"timestamp":"`...), o.Start)
	b = append(append(b, `","severity":"`...), severity...)
	b = append(append(b, `","logger":"queueproxy.request","message":"request","kind":"`...), o.Kind.String()...)
	b = message.AppendJSONString(append(b, `","method":`...), o.Method, maxWord)
	b = message.AppendJSONString(append(b, `,"target":`...), o.Target, maxTarget)
	b = message.AppendJSONString(append(b, `,"host":`...), o.Host, maxField)
	b = strconv.AppendInt(append(b, `,"protocol":"HTTP/`...), int64(o.Major), 10)
	b = strconv.AppendInt(append(b, '.'), int64(o.Minor), 10)
	b = strconv.AppendInt(append(b, `","status":`...), int64(o.Status), 10)
	b = append(append(b, `,"grpcStatus":"`...), o.RPC.String()...)
	b = append(append(b, `","reason":"`...), o.Reason.String()...)
	b = append(append(b, `","phase":"`...), o.Phase.String()...)
	b = strconv.AppendBool(append(b, `","cutShort":`...), o.Begun && o.Reason != observation.OK)
	b = strconv.AppendBool(append(b, `,"reset":`...), o.Reset)
	b = strconv.AppendBool(append(b, `,"upgraded":`...), o.Upgraded)
	b = strconv.AppendBool(append(b, `,"replayed":`...), o.Replayed)
	b = strconv.AppendBool(append(b, `,"activator":`...), o.Proxied)
	b = strconv.AppendInt(append(b, `,"requestBytes":`...), o.In, 10)
	b = strconv.AppendInt(append(b, `,"responseBytes":`...), o.Out, 10)
	b = appendMillis(append(b, `,"queueMs":`...), o.Queued())
	b = appendSpan(append(b, `,"appMs":`...), o.Slot, o.End)
	b = appendSpan(append(b, `,"firstByteMs":`...), o.Start, o.FirstByte)
	b = appendMillis(append(b, `,"totalMs":`...), o.End.Sub(o.Start))
	b = message.AppendJSONString(append(b, `,"remote":`...), o.Remote, maxWord)
	b = message.AppendJSONString(append(b, `,"userAgent":`...), o.Exchange.Header(transport.UserAgent), maxField)
	b = message.AppendJSONString(append(b, `,"referer":`...), o.Exchange.Header("Referer"), maxField)
	b = message.AppendJSONString(append(b, `,"traceId":`...), traceID, maxWord)
	if templateError != "" {
		b = message.AppendJSONString(append(b, `,"templateError":`...), templateError, maxField)
	}
	return append(b, l.tail...)
}

// appendSpan appends the duration between two times, or null if one of them is zero.
func appendSpan(b []byte, from, to time.Time) []byte {
	if from.IsZero() || to.IsZero() {
		return append(b, "null"...)
	}
	return appendMillis(b, to.Sub(from))
}

// appendTail appends the last part of a line, which is the same in all lines.
func appendTail(b []byte, r *Revision) []byte {
	for _, f := range [...]struct{ name, value string }{
		{"namespace", r.Namespace}, {"service", r.Service}, {"configuration", r.Configuration}, {"revision", r.Name},
		{"pod", r.PodName}, {"podIp", r.PodIP},
	} {
		if f.value != "" {
			b = message.AppendJSONString(append(b, `,"`+f.name+`":`...), f.value, maxField)
		}
	}
	return append(b, "}\n"...)
}

// appendTime appends a time in UTC with microseconds. The output has a fixed width, so that lines can be sorted.
func appendTime(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(b, time.RFC3339) // faster than other layouts
	b[len(b)-1] = '.'                         // instead of Z
	for us, digit := t.Nanosecond()/1000, 100_000; digit > 0; digit /= 10 {
		b = append(b, byte('0'+us/digit%10))
	}
	return append(b, 'Z')
}

// appendMillis appends a duration in milliseconds with three decimal places. A negative duration, which may be caused
// by a change to the clock, is written as 0.
func appendMillis(b []byte, d time.Duration) []byte {
	us := max(d, 0) / time.Microsecond
	b = strconv.AppendInt(b, int64(us/1000), 10)
	frac := us % 1000
	return append(b, '.', byte('0'+frac/100), byte('0'+frac/10%10), byte('0'+frac%10))
}
