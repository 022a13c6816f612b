package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// injectionTexts lists texts that clients could use for log injection.
var injectionTexts = []string{
	`"`, `\`, `"}`, `","status":200,"x":"`, `\u0022`, `\x00`, "\x1b[2J\x1b[31mred", "\u009b2J", "\u0085", "\u2028", "\u2029", "\u202e", "\ufeff", "é", "\xff\xfe", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
	"%0a%0d", "{{.Request}}", "${jndi:ldap://x}", "%s%n%x", "<script>", "\t", `'; drop table logs; --`, strings.Repeat("x", 20_000), strings.Repeat(`"`, 20_000), strings.Repeat("\u2028", 7000), strings.Repeat("\xff", 20_000),
}

// knativeTemplate is the example template of the Knative documentation.
const knativeTemplate = `{"httpRequest": {"requestMethod": "{{.Request.Method}}", "requestUrl": "{{js .Request.RequestURI}}", "requestSize": "{{.Request.ContentLength}}", "status": {{.Response.Code}}, "responseSize": "{{.Response.Size}}", "userAgent": "{{js .Request.UserAgent}}", "remoteIp": "{{js .Request.RemoteAddr}}", "serverIp": "{{.Revision.PodIP}}", "referer": "{{js .Request.Referer}}", "latency": "{{.Response.Latency}}s", "protocol": "{{.Request.Proto}}"}, "traceId": "{{index .Request.Header "X-B3-Traceid"}}"}`

// The request log contains one line for each request. Each line is a JSON object of limited
// length, even if any part of the request contains unusual characters. This also applies to log
// messages of the sidecar.
func TestLogInjectionIsPrevented(t *testing.T) {
	for name, env := range map[string][]string{
		"JSON":          {"REQUEST_LOG=true", "SERVING_ENABLE_PROBE_REQUEST_LOG=true"},
		"the app is no": {"REQUEST_LOG=true", "SERVING_ENABLE_PROBE_REQUEST_LOG=true", "CONNECT_RETRY=1ms"},
		"a template":    {"SERVING_ENABLE_REQUEST_LOG=true", "SERVING_REQUEST_LOG_TEMPLATE=" + knativeTemplate},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			if name != "the app is no" {
				p.sample()
			}
			p.start(append([]string{"SERVING_LOGGING_CONFIG={\"sampling\":null}"}, env...)...)
			before := len(requestLines(p, name))
			sent, logged := sendUnusualText(t, p)
			if name == "a template" {
				logged -= 2 * len(injectionTexts) // with a template, the log does not contain the two probes for each text
			}
			p.poll("all lines have been written", func() error {
				if got := len(requestLines(p, name)) - before; got < logged {
					return fmt.Errorf("got %d lines for %d requests of %d", got, logged, sent)
				}
				return nil
			})
			fence(t, p)
			time.Sleep(200 * time.Millisecond) // wait for additional lines, which are written every 50 ms
			lines := requestLines(p, name)
			if got := len(lines) - before; got > sent+5 {
				t.Errorf("got %d lines, want at most %d", got, sent+5)
			}
			for _, line := range lines {
				if name == "the app is no" && line["kind"] == "traffic" && line["reason"] == "ok" {
					t.Errorf("got line %v with reason ok for a request without a response, want another reason", line)
				}
			}
			t.Logf("%d requests, %d lines", sent, len(lines)-before)
		})
	}
}

// requestLines returns the lines of the request log. The test fails if a line is invalid.
func requestLines(p *proxy, name string) (lines []map[string]any) {
	all := p.logIsJSON
	if name == "a template" { // the template decides which characters are escaped, and its lines are longer
		all = func() []map[string]any { return p.logIs(64<<10, func(rune) bool { return false }) }
	}
	for _, line := range all() {
		if line["logger"] == "queueproxy.request" || line["httpRequest"] != nil {
			lines = append(lines, line)
		}
	}
	return lines
}

// sendUnusualText sends requests with unusual texts in each part. It returns the number of
// responses and the number of requests that must be logged.
func sendUnusualText(t *testing.T, p *proxy) (sent, logged int) {
	t.Helper()
	send := func(method, target string, fields ...string) {
		c := dial(t, p.addr())
		defer c.Close()
		host := "Host: a.test"
		if strings.HasPrefix(strings.Join(fields, "\n"), "Host: ") {
			host, fields = fields[0], fields[1:]
		}
		c.send(strings.Join(append([]string{method + " " + target + " HTTP/1.1", host, "Connection: close"}, fields...), "\r\n") + "\r\n\r\n")
		m, err := readResponse(c.r, method)
		if err != nil {
			t.Errorf("%s %.60q %.60q: no response: %v", method, target, fields, err)
			return
		}
		sent++
		if m.status() == 502 || m.status() == 200 {
			logged++ // requests that are rejected before they are counted do not appear in the log
		}
	}
	for _, e := range injectionTexts {
		inTarget := strings.NewReplacer(" ", "", "\t", "", "\x1b", "").Replace(e)
		send("GET", "/echo"+inTarget)
		send("GET", "/echo?q="+inTarget)
		send("GET", "/echo", "User-Agent: "+e, "Referer: "+e)
		send("GET", "/echo", "Traceparent: "+e, "Tracestate: "+e, "X-B3-Traceid: "+e, "B3: "+e)
		send("GET", "/echo", "X-Forwarded-For: "+e, "X-Forwarded-Host: "+e, "Forwarded: "+e)
		send("GET", "/echo", "K-Original-Host: "+e, "K-Kubelet-Probe: "+e)
		send("GET", "/echo", "K-Network-Probe: "+e)
		send("GET", "/echo", "K-Network-Probe: probe", "K-Network-Hash: "+e)
		send("GET", "/echo", "Host: "+e)
		send("GET", "http://"+inTarget+"/")
		send("POST", "/echo", "Content-Type: application/grpc"+e)
	}
	send(strings.Repeat("M", 20_000), "/echo")
	send("$'`|~!#", "/echo")
	h := dialH2(t, p.addr())
	for i, e := range []string{"/\n{\"a\":1}", "/\x1b[2J", "/\u2028", "/\x00", "/ HTTP/1.1"} {
		h.open(uint32(2*i+1), true, "GET", e, "User-Agent: \u009b")
		h.await("the end of the stream", func(e h2Event) bool {
			return e.stream == uint32(2*i+1) && (e.end || e.code != 0) || e.stream == 0 && e.code != 0
		})
	}
	return sent, logged
}
