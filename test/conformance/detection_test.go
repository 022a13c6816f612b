package conformance

import (
	"net/http"
	"sync/atomic"
	"testing"
)

// closingCounter counts requests. If a request is for /close, it closes the connection without
// a response.
type closingCounter struct{ requests atomic.Int32 }

func (h *closingCounter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.requests.Add(1)
	if r.URL.Path == "/close" {
		panic(http.ErrAbortHandler)
	}
}

// The HTTP/1 server of net/http passes the preface of HTTP/2 to its handler as a request.
// The detection of the protocol must not call the handler of the application.
func TestProtocolDetectionReachesNoHandler(t *testing.T) {
	for _, client := range []string{"h1", "h2c"} {
		t.Run(client, func(t *testing.T) {
			p := newProxy(t)
			app := new(closingCounter)
			p.appSpeaking(app, "h1")
			p.start()
			for i, c := range []struct {
				method, path string
				want         int
			}{{"POST", "/close", 502}, {"GET", "/", 200}} {
				r, _ := http.NewRequestWithContext(t.Context(), c.method, p.url(c.path), nil)
				resp, err := httpClient(t, client).Do(r)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if got := app.requests.Load(); resp.StatusCode != c.want || int(got) != i+1 {
					t.Errorf("%s %s: got %d and %d requests at the app, want %d and %d", c.method, c.path, resp.StatusCode, got, c.want, i+1)
				}
			}
		})
	}
}

func TestProtocolDetectionFindsHTTP2(t *testing.T) {
	for protocols, versions := range map[string]map[string]int{
		"h1":   {"h1": 1, "h2c": 1},
		"h2":   {"h1": 2, "h2c": 2},
		"both": {"h1": 1, "h2c": 2},
	} {
		for client, want := range versions {
			t.Run("app "+protocols+", client "+client, func(t *testing.T) {
				p := newProxy(t)
				var version atomic.Int32
				p.appSpeaking(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { version.Store(int32(r.ProtoMajor)) }), protocols)
				p.start()
				resp, _ := get(t, httpClient(t, client), p.url("/"))
				if got := version.Load(); resp.StatusCode != 200 || int(got) != want {
					t.Errorf("got status %d and HTTP/%d at the app, want 200 and HTTP/%d", resp.StatusCode, got, want)
				}
			})
		}
	}
}
