package goaway

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// FuzzGoAway writes any frames in pieces of any size and asks for the last one on the
// way: the frames go out as they came, and it stands between two of them.
func FuzzGoAway(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x01abc"), false, 4, 3)
	f.Add([]byte("\x81\x03abc\x82\x7e\x00\x02de\x89\x00\x81\x83mask123"), true, 6, 1)
	f.Add([]byte("\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xffabc"), true, 2, 30)
	f.Fuzz(func(t *testing.T, frames []byte, webSocket bool, asked, piece int) {
		if asked < 0 || asked > len(frames) {
			asked = len(frames)
		}
		out := &sink{}
		c := HTTP2(out)
		if webSocket {
			c = WebSocket(out)
		}
		write(t, c, frames[:asked], piece)
		c.GoAway()
		write(t, c, frames[asked:], piece)

		at, begun := 0, webSocket // the first place between two frames from asked on
		for at < len(frames) && (at < asked || !begun) {
			size := frameSize(frames[at:], webSocket)
			if size > uint64(len(frames)-at) {
				at = -1 // it has not ended
				break
			}
			at += int(size)
			begun = true
		}
		want := string(frames)
		switch {
		case at < 0 || at < asked || !begun:
		case webSocket:
			want = want[:at] + closeFrame
		default:
			want = want[:at] + goAwayFrame + want[at:]
		}
		harness.Equal(t, out.String(), want, frames, "asked at", asked)
	})
}

// frameSize is the size of the frame that begins b; more than any b when b is too
// short to tell (RFC 9113 section 4.1, RFC 6455 section 5.2).
func frameSize(b []byte, webSocket bool) uint64 {
	const unknown = 1 << 63
	if !webSocket {
		if len(b) < 3 {
			return unknown
		}
		return 9 + uint64(b[0])*65536 + uint64(b[1])*256 + uint64(b[2])
	}
	if len(b) < 2 {
		return unknown
	}
	head, payload := 2, uint64(b[1]%128)
	if more := map[uint64]int{126: 2, 127: 8}[payload]; more > 0 {
		if head += more; len(b) < head {
			return unknown
		}
		payload = 0
		for _, c := range b[2:head] {
			payload = payload*256 + uint64(c)
		}
		payload = min(payload, unknown)
	}
	if b[1] >= 128 {
		head += 4
	}
	return uint64(head) + payload
}
