package streams_test

import (
	"strings"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// addToken adds a token to a trace. A trace lists the frames that a peer has received on a stream:
// "HEAD" for a request, the status for a response, "P" and the status and the reason for a
// response from the proxy, "=" and the content for DATA, "trailers", "END" for END_STREAM, and
// "RST" with the code. The content of consecutive DATA frames is one token, because the proxy
// may split and join them.
func addToken(trace, token string) string {
	last := trace[strings.LastIndexByte(trace, ' ')+1:]
	switch {
	case trace == "":
		return token
	case strings.HasPrefix(token, "=") && strings.HasPrefix(last, "="):
		return trace + token[1:]
	}
	return trace + " " + token
}

// addOption adds a token that may be missing to a regular expression for a trace.
func addOption(pattern, token string) string {
	if pattern == "" {
		return "(" + token + ")?"
	}
	return pattern + "( " + token + ")?"
}

// A trace records the frames that a peer receives, in the format of [addToken].
type trace string

func (t *trace) add(token string) { *t = trace(addToken(string(*t), token)) }

// frame adds a frame of a stream. head is the token for HEADERS.
func (t *trace) frame(f http2.Frame, head string) {
	end := false
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		t.add(head)
		end = f.StreamEnded()
	case *http2.DataFrame:
		own := strings.HasPrefix(string(*t), "P") || strings.Contains(string(*t), " P")
		if len(f.Data()) > 0 && !own { // the text of the proxy's responses is tested elsewhere
			t.add("=" + string(f.Data()))
		}
		end = f.StreamEnded()
	case *http2.RSTStreamFrame:
		t.add("RST " + f.ErrCode.String())
	default:
		t.add(f.Header().Type.String())
	}
	if end {
		t.add("END")
	}
}

// responseToken returns the token for the header section of a response.
func responseToken(f *http2.MetaHeadersFrame) string {
	status := f.PseudoValue("status")
	if status == "" {
		return "trailers"
	}
	if own := harness.FieldOf(f, "proxy-status"); own != "" {
		_, reason, _ := strings.Cut(own, `details="`)
		return "P" + status + "/" + strings.TrimSuffix(reason, `"`)
	}
	return status
}
