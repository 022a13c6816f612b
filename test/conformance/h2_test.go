package conformance

import (
	"bytes"
	"fmt"
	"net"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// exchangeH2 sends one request on a fresh HTTP/2 connection exactly as given
// and returns the answer as a message. A stream that was reset is an error.
func exchangeH2(c net.Conn, method, target, scheme, authority string, fields []field, body string) (*message, error) {
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, err
	}
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.MaxHeaderListSize = 4 << 20
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}); err != nil {
		return nil, err
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range append([]field{{":method", method}, {":scheme", scheme}, {":authority", authority}, {":path", target}}, fields...) {
		encoder.WriteField(hpack.HeaderField{Name: strings.ToLower(f.Name), Value: f.Value})
	}
	const frame = 16 << 10 // the least that SETTINGS_MAX_FRAME_SIZE allows (RFC 9113 6.5.2)
	first := min(frame, block.Len())
	err := framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID:      1,
		BlockFragment: block.Next(first),
		EndStream:     body == "",
		EndHeaders:    block.Len() == 0,
	})
	for err == nil && block.Len() > 0 {
		part := block.Next(min(frame, block.Len()))
		err = framer.WriteContinuation(1, block.Len() == 0, part)
	}
	if err == nil && body != "" {
		err = framer.WriteData(1, true, []byte(body))
	}
	if err != nil {
		return nil, err
	}

	var answer *message
	var interim []*message
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return nil, err
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				framer.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			m := &message{}
			for _, h := range f.Fields {
				if h.Name == ":status" {
					m.Start = "HTTP/2 " + h.Value
					continue
				}
				m.Fields = append(m.Fields, field{h.Name, h.Value})
			}
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
				framer.WriteWindowUpdate(0, uint32(n))
			}
			if f.StreamEnded() {
				return answer, nil
			}
		case *http2.RSTStreamFrame:
			// NO_ERROR after a whole answer means only: stop sending (RFC 9113 8.1).
			return answer, fmt.Errorf("RST_STREAM %v", f.ErrCode)
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo || f.LastStreamID < 1 {
				return answer, fmt.Errorf("GOAWAY %v, last stream %d", f.ErrCode, f.LastStreamID)
			}
		}
	}
}
