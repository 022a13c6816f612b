package conformance

import (
	"fmt"
	"net"
	"strings"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"golang.org/x/net/http2"
)

// exchangeH2 sends one request unchanged on a new HTTP/2 connection and returns the response as
// a message. A reset of the stream is returned as an error.
func exchangeH2(c net.Conn, method, target, scheme, authority string, fields []field, body string) (*message, error) {
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, err
	}
	frames := harness.NewFrames(c)
	frames.MaxHeaderListSize = 4 << 20
	if err := frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}); err != nil {
		return nil, err
	}
	head := []string{":method", method, ":scheme", scheme, ":authority", authority, ":path", target}
	for _, f := range fields {
		head = append(head, strings.ToLower(f.Name), f.Value)
	}
	err := frames.WriteHead(1, body == "", head...)
	if err == nil && body != "" {
		err = frames.WriteData(1, true, []byte(body))
	}
	if err != nil {
		return nil, err
	}
	return readAnswerH2(frames)
}

// readAnswerH2 reads the response on the only stream of a connection.
func readAnswerH2(frames *harness.Frames) (answer *message, err error) {
	var interim []*message
	for {
		f, err := frames.ReadFrame()
		if err != nil {
			return nil, err
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				frames.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			m := asMessage(f)
			switch {
			case m.status() >= 100 && m.status() < 200:
				interim = append(interim, m)
			case answer == nil:
				answer = m
				answer.Interim = interim
			default:
				answer.Trailers = m.Fields
			}
			if f.StreamEnded() {
				return answer, nil
			}
		case *http2.DataFrame:
			if answer == nil {
				return nil, fmt.Errorf("DATA before HEADERS")
			}
			answer.Body += string(f.Data())
			if n := len(f.Data()); n > 0 {
				frames.WriteWindowUpdate(0, uint32(n))
			}
			if f.StreamEnded() {
				return answer, nil
			}
		case *http2.RSTStreamFrame:
			// NO_ERROR after a complete response only asks the client to stop sending (RFC 9113
			// section 8.1).
			return answer, fmt.Errorf("RST_STREAM %v", f.ErrCode)
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo || f.LastStreamID < 1 {
				return answer, fmt.Errorf("GOAWAY %v, last stream %d", f.ErrCode, f.LastStreamID)
			}
		}
	}
}

// asMessage converts a header or trailer section to a message.
func asMessage(f *http2.MetaHeadersFrame) *message {
	m := &message{}
	for _, h := range f.Fields {
		if h.Name == ":status" {
			m.Start = "HTTP/2 " + h.Value
			continue
		}
		m.Fields = append(m.Fields, field{h.Name, h.Value})
	}
	return m
}
