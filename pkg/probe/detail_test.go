package probe

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Without the limit, an app that responds to a probe with 100 KiB of another protocol would cause a log line and a
// status page of this size.
func TestDetailTruncatesInvalidResponse(t *testing.T) {
	app := newRawApp(t, "127.0.0.1:0", text(strings.Repeat("é\x00", 30<<10)+"\r\n\r\n"))
	changes := make(chan string, 1)
	p := newReal(t, Options{OnChange: func(c Change) { changes <- c.Now.Detail() }},
		fmt.Sprintf(`[{"httpGet":{"port":%d},"periodSeconds":1,"timeoutSeconds":20}]`, app.port))
	err := p.Ready(t.Context())
	wantWord(t, err, observation.WordGarbage)
	got := p.State().Probes[0].Detail
	if !strings.Contains(got, `malformed HTTP response "`) || !strings.HasSuffix(got, "…") || len(got) > maxDetail || !utf8.ValidString(got) {
		t.Errorf("got a detail of %d bytes that ends with %q, want at most %d bytes and an ellipsis", len(got), got[max(0, len(got)-20):], maxDetail)
	}
	for _, line := range []string{<-changes, err.(*notReady).State.Detail()} {
		if len(line) > maxDetail+256 {
			t.Errorf("got a line of %d bytes, want at most %d", len(line), maxDetail+256)
		}
	}
}

func TestDetailIsTruncatedBetweenCharacters(t *testing.T) {
	for n, v := range []struct{ in, want string }{
		{strings.Repeat("x", maxDetail), strings.Repeat("x", maxDetail)},
		{strings.Repeat("x", maxDetail+1), strings.Repeat("x", maxDetail-3) + "…"},
		{strings.Repeat("x", maxDetail-4) + "éé" + "y", strings.Repeat("x", maxDetail-4) + "…"},
		{strings.Repeat("\x80x", maxDetail), strings.Repeat("\uFFFDx", (maxDetail-3)/4) + "…"},
		{"a\xffb", "a\uFFFDb"},
	} {
		if got := detail(errors.New(v.in)); got != v.want {
			t.Errorf("%d: got %d bytes that end with %q, want %d bytes", n, len(got), got[max(0, len(got)-9):], len(v.want))
		}
	}
}

func TestWarningIsTruncated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := asking(t, standard(always(warning(strings.Repeat("w", 100<<10)))))
		harness.NoError(t, p.Ready(t.Context()))
		if got := p.State().Probes[0].Warning; len(got) > maxDetail || !strings.HasPrefix(got, "www") {
			t.Errorf("got a warning of %d bytes, want the first %d", len(got), maxDetail)
		}
	})
}
