package nethttp_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestARequestThatIsSentTwiceIsObservedAsReplayed(t *testing.T) {
	type key struct{}
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		var broken atomic.Bool
		app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/it" && !broken.Swap(true) {
				r.Context().Value(key{}).(net.Conn).Close()
			}
		}))
		app.Config.Protocols = new(http.Protocols)
		app.Config.Protocols.SetHTTP1(true)
		app.Config.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2")
		app.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) }
		app.Start()
		t.Cleanup(app.Close)
		proxy := start(t, app.Listener.Addr().(*net.TCPAddr).Port, nil)
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
			type key struct{}
			app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost && seen.Add(1) == 1 && r.ProtoMajor == 1 {
					r.Context().Value(key{}).(net.Conn).Close()
				}
			}))
			app.Config.Protocols = new(http.Protocols)
			app.Config.Protocols.SetHTTP1(both)
			app.Config.Protocols.SetUnencryptedHTTP2(true)
			app.Config.ErrorLog = log.New(io.Discard, "", 0)
			app.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) }
			app.Start()
			t.Cleanup(app.Close)
			proxy := start(t, app.Listener.Addr().(*net.TCPAddr).Port, nil)
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
