package webhook

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// kubeAt returns a Kube for a test server.
func kubeAt(t *testing.T, s *httptest.Server) *Kube {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string][]byte{
		"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
		"token":  []byte("secret-token\n"),
	} {
		harness.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	kube, err := newKube(s.URL, dir)
	harness.NoError(t, err)
	t.Cleanup(kube.client.CloseIdleConnections)
	return kube
}

func TestTokenIsNotSentToRedirectTarget(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another server received the Authorization header %q", r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	s := httptest.NewTLSServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer s.Close()
	if err := kubeAt(t, s).do(t.Context(), http.MethodGet, "/x", "", nil, nil); !isStatus(err, http.StatusTemporaryRedirect) {
		t.Errorf("got %v, want status 307", err)
	}
}

func TestResponseHeaderSizeIsLimited(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("x", 4<<20))
	}))
	defer s.Close()
	if err := kubeAt(t, s).do(t.Context(), http.MethodGet, "/x", "", nil, nil); err == nil {
		t.Error("got no error for a header section of 4 MB")
	}
}
