package netconn

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// FuzzGoAway writes frames in pieces and calls GoAway. The frames must be written unchanged, and the Close frame must
// be sent between two of them.
func FuzzGoAway(f *testing.F) {
	f.Add([]byte("\x81\x03abc\x82\x7e\x00\x02de\x89\x00\x81\x83mask123"), 6, 1)
	f.Add([]byte("\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xffabc"), 2, 30)
	f.Fuzz(func(t *testing.T, frames []byte, asked, piece int) {
		if asked < 0 || asked > len(frames) {
			asked = len(frames)
		}
		out := &sink{}
		c := NewWebSocket(out)
		write(t, c, frames[:asked], piece)
		c.GoAway()
		write(t, c, frames[asked:], piece)

		at := 0 // offset of the first frame boundary at or after asked
		for at < asked {
			size := frameSize(frames[at:])
			if size > uint64(len(frames)-at) {
				at = -1 // the last frame is incomplete
				break
			}
			at += int(size)
		}
		want := string(frames)
		if at >= 0 {
			want = want[:at] + closeFrame
		}
		harness.Equal(t, out.String(), want, frames, "asked at", asked)
	})
}

// frameSize returns the size of the frame at the start of b, or a number greater than any length if
// b is too short (RFC 6455 section 5.2).
func frameSize(b []byte) uint64 {
	const unknown = 1 << 63
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
