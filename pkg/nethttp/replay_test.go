package nethttp_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestARequestThatIsSentTwiceIsObservedAsReplayed(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		var broken atomic.Bool
		app := serve(t, protocol == "HTTP/1.1", protocol == "HTTP/2", func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/it" && !broken.Swap(true) {
				breakOff(r)
			}
		})
		proxy := start(t, app, nil)
		client := proxy.Client(protocol)
		for _, path := range []string{"/first", "/it"} {
			r, err := client.Get("http://" + proxy.Address + path)
			harness.NoError(t, err)
			r.Body.Close()
			harness.Equal(t, r.StatusCode, 200, protocol, path)
		}
		if o := proxy.Observed(2); o[0].Replayed || !o[1].Replayed {
			t.Errorf("%s: observed as replayed: got %v, %v, want false, true", protocol, o[0].Replayed, o[1].Replayed)
		}
	}
}

// What has been swallowed in HTTP/1.1 may have been acted on by one that speaks it.
func TestAFirstRequestThatIsSwallowedIsSentInHTTP2ToOneThatSpeaksNothingElse(t *testing.T) {
	for _, both := range []bool{true, false} {
		for _, body := range []string{"", "hello"} {
			var seen atomic.Int32
			app := serve(t, both, true, func(_ http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost && seen.Add(1) == 1 && r.ProtoMajor == 1 {
					breakOff(r)
				}
			})
			proxy := start(t, app, nil)
			r, err := proxy.Client("HTTP/1.1").Post("http://"+proxy.Address+"/", "", strings.NewReader(body))
			harness.NoError(t, err)
			r.Body.Close()
			want := map[bool]int{true: 502, false: 200}[both]
			if r.StatusCode != want || seen.Load() != 1 {
				t.Errorf("speaks HTTP/1.1 too %v, body %q: got %d, sent %d times, want %d, once", both, body, r.StatusCode, seen.Load(), want)
			}
		}
	}
}
