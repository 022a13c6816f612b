package http2conn

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestUploadAdmissionDependsOnWindow(t *testing.T) {
	const window = 64 << 10
	for _, tt := range []struct {
		name   string
		before []Upload // open uploads
		used   int      // number of bytes of the window that other content uses
		upload Upload
		want   bool
	}{
		{name: "no content", before: []Upload{{Client: 1, Length: -1}}, used: window, want: true},
		{name: "only upload", upload: Upload{Client: 1, Length: -1}, want: true},
		{name: "same client", before: []Upload{{Client: 1, Length: -1}}, used: window, upload: Upload{Client: 1, Length: -1}, want: true},
		{name: "other client", before: []Upload{{Client: 1, Length: -1}}, upload: Upload{Client: 2, Length: -1}},
		{name: "short content of other client", before: []Upload{{Client: 1, Length: -1}}, upload: Upload{Client: 2, Length: 1}},
		{name: "short content", before: []Upload{{Client: 1, Length: window / 2}}, upload: Upload{Client: 2, Length: window / 4}, want: true},
		{name: "content that is not short enough", before: []Upload{{Client: 1, Length: window / 2}}, upload: Upload{Client: 2, Length: window/4 + 1}},
		{name: "long content with short content", before: []Upload{{Client: 1, Length: 1}}, upload: Upload{Client: 2, Length: -1}},
		{name: "long content in used window", used: window - window/freeShare + 1, upload: Upload{Client: 2, Length: -1}},
		{name: "long content in free window", used: window - window/freeShare, upload: Upload{Client: 2, Length: -1}, want: true},
		{name: "shared", before: []Upload{{Client: 1, Length: -1}}, upload: Upload{Client: 2, Length: -1, Sharing: ShareIfFree}, want: true},
		{name: "shared without window", used: window, upload: Upload{Client: 2, Length: -1, Sharing: ShareIfFree}},
		{name: "shared always", used: window, upload: Upload{Client: 2, Length: -1, Sharing: ShareAlways}, want: true},
	} {
		a := uploads{peak: window}
		for _, u := range tt.before {
			a.begin(new(Stream), u, window)
		}
		harness.Equal(t, a.admits(tt.upload, window-tt.used), tt.want, tt.name)
	}
}

func TestUploadEndReleasesReservation(t *testing.T) {
	a := uploads{peak: 100}
	short, long := new(Stream), new(Stream)
	a.begin(short, Upload{Client: 1, Length: 40}, 100)
	a.sent(short, 30)
	harness.Equal(t, a.reserved, 10, "reserved after a part was sent")
	a.end(short)
	a.end(short)
	harness.Equal(t, a.reserved, 0, "reserved after the end")
	a.begin(long, Upload{Client: 2, Length: -1}, 100)
	a.sent(long, 100)
	harness.Equal(t, a.running, 1, "running uploads")
	a.end(long)
	a.end(long)
	harness.Equal(t, a, uploads{client: 2, peak: 100}, "uploads after the end")
}
