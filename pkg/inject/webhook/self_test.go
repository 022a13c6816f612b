package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A fakeKube is an API server for the requests of this package. It implements optimistic
// concurrency: each object has a version, and an update based on an old version returns 409.
type fakeKube struct {
	mu            sync.Mutex
	version       int
	secret        *corev1.Secret
	configuration *admissionregv1.MutatingWebhookConfiguration
	events        []corev1.Event
	namespaces    map[string]map[string]string // labels of the namespaces, by name
	writes        int
	down          bool
	createDenied  bool                      // the service account is not allowed to create Secrets
	before        func(method, path string) // called without the lock, before a request is served
}

func newFakeKube(t *testing.T) (*fakeKube, *Kube) {
	t.Helper()
	f := &fakeKube{namespaces: map[string]map[string]string{"shop": {"queue-proxy.dev/inject": "true"}}, configuration: &admissionregv1.MutatingWebhookConfiguration{
		Webhooks: make([]admissionregv1.MutatingWebhook, 2),
	}}
	f.touch(&f.configuration.ResourceVersion)
	s := httptest.NewTLSServer(f)
	t.Cleanup(s.Close)
	return f, kubeAt(t, s)
}

func (f *fakeKube) touch(version *string) {
	f.version++
	*version = strconv.Itoa(f.version)
}

func (f *fakeKube) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.before != nil {
		f.before(r.Method, r.URL.Path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	status, answer := f.answer(r)
	if answer == nil {
		answer = map[string]string{"message": http.StatusText(status)}
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// answer returns the status and body of the response. A nil body means an error message. f.mu must
// be held.
func (f *fakeKube) answer(r *http.Request) (status int, answer any) {
	switch {
	case r.Header.Get("Authorization") != "Bearer secret-token":
		return http.StatusUnauthorized, nil
	case f.down:
		return http.StatusInternalServerError, nil
	}
	body, _ := io.ReadAll(r.Body)
	if r.Method != http.MethodGet {
		f.writes++
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v1/namespaces/qp/secrets/cert":
		if f.secret == nil {
			return http.StatusNotFound, nil
		}
		return http.StatusOK, f.secret
	case "POST /api/v1/namespaces/qp/secrets", "PUT /api/v1/namespaces/qp/secrets/cert":
		if r.Method == http.MethodPost && f.createDenied {
			return http.StatusForbidden, nil
		}
		secret := new(corev1.Secret)
		if err := json.Unmarshal(body, secret); err != nil {
			return http.StatusBadRequest, nil
		}
		if f.secret != nil && (r.Method == "POST" || secret.ResourceVersion != f.secret.ResourceVersion) {
			return http.StatusConflict, nil
		}
		f.touch(&secret.ResourceVersion)
		f.secret = secret
		return http.StatusOK, secret
	case "GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hook":
		return http.StatusOK, f.configuration
	case "PATCH /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hook":
		patch, err := jsonpatch.DecodePatch(body)
		before, _ := json.Marshal(f.configuration)
		after, err2 := patch.Apply(before)
		if err != nil || err2 != nil {
			return http.StatusUnprocessableEntity, nil
		}
		f.configuration = new(admissionregv1.MutatingWebhookConfiguration)
		_ = json.Unmarshal(after, f.configuration)
		f.touch(&f.configuration.ResourceVersion)
		return http.StatusOK, f.configuration
	}
	rest, _ := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/")
	namespace, kind, _ := strings.Cut(rest, "/")
	labels, is := f.namespaces[namespace]
	switch {
	case is && r.Method+kind == "GET":
		return http.StatusOK, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: labels}}
	case is && r.Method+kind == "POSTevents":
		var e corev1.Event
		_ = json.Unmarshal(body, &e)
		f.events = append(f.events, e)
		return http.StatusCreated, e
	}
	return http.StatusForbidden, nil
}

func newSelf(kube *Kube, now func() time.Time) *Self {
	return &Self{
		Kube: kube, Namespace: "qp", Service: "injector", Secret: "cert", Configuration: "hook",
		Log: zap.NewNop(), Metrics: NewMetrics("", "").AddAuthority(), Now: now,
	}
}

// wantTrusted checks that an API server with the current configuration trusts the certificates of
// replicas at a point in time.
func (f *fakeKube) wantTrusted(t *testing.T, now time.Time, replicas ...*Self) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, s := range replicas {
		cert, err := s.GetCertificate(nil)
		harness.NoError(t, err, "replica", i)
		for _, w := range f.configuration.Webhooks {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(w.ClientConfig.CABundle)
			_, err := cert.Leaf.Verify(x509.VerifyOptions{DNSName: "injector.qp.svc", Roots: roots, CurrentTime: now})
			harness.NoError(t, err, "replica", i, w.ClientConfig, "at", now)
		}
	}
}

func TestSyncPublishesCertificate(t *testing.T) {
	f, kube := newFakeKube(t)
	s := newSelf(kube, time.Now)
	if _, err := s.GetCertificate(nil); err == nil || !s.NotAfter().IsZero() {
		t.Error("got a certificate before the first sync")
	}
	harness.NoError(t, s.sync(t.Context()))
	f.wantTrusted(t, time.Now(), s)
	writes := f.writes
	harness.NoError(t, s.sync(t.Context()))
	if f.writes != writes {
		t.Errorf("got %d unnecessary writes", f.writes-writes)
	}

	// The test uses real TLS connections, as an API server does.
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: s.GetCertificate, MinVersion: tls.VersionTLS12})
	harness.NoError(t, err)
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_ = c.(*tls.Conn).Handshake()
			c.Close()
		}
	}()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.configuration.Webhooks[0].ClientConfig.CABundle)
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: harness.Patience}, "tcp", l.Addr().String(), &tls.Config{RootCAs: roots, ServerName: "injector.qp.svc"})
	harness.NoError(t, err, "(a handshake)")
	c.Close()
}

func TestDeletedSecretIsCreatedAgain(t *testing.T) {
	f, kube := newFakeKube(t)
	harness.NoError(t, newSelf(kube, time.Now).sync(t.Context()))
	f.secret = nil
	restarted := newSelf(kube, time.Now)
	harness.NoError(t, restarted.sync(t.Context()))
	if f.secret == nil {
		t.Fatal("got no new Secret")
	}
	f.wantTrusted(t, time.Now(), restarted)
}

func TestForbiddenSecretErrorContainsCommand(t *testing.T) {
	f, kube := newFakeKube(t)
	f.createDenied = true
	err := newSelf(kube, time.Now).sync(t.Context())
	const want = "kubectl -n qp create secret generic cert"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("got error %v, want an error that contains %q", err, want)
	}
	f.secret = new(corev1.Secret) // the Secret that the command in the error creates
	f.touch(&f.secret.ResourceVersion)
	s := newSelf(kube, time.Now)
	harness.NoError(t, s.sync(t.Context()))
	f.wantTrusted(t, time.Now(), s)
}

func TestReplicasShareOneAuthority(t *testing.T) {
	f, kube := newFakeKube(t)
	var replicas []*Self
	var all sync.WaitGroup
	for range 8 {
		s := newSelf(kube, time.Now)
		replicas = append(replicas, s)
		all.Go(func() {
			if err := s.sync(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f.wantTrusted(t, time.Now(), replicas...)
	harness.Equal(t, len(readCertificates(f.configuration.Webhooks[0].ClientConfig.CABundle)), 1, "authorities published")
}

func TestOverwrittenConfigurationIsPublishedAgain(t *testing.T) {
	f, kube := newFakeKube(t)
	s := newSelf(kube, time.Now)
	harness.NoError(t, s.sync(t.Context()))
	f.configuration.Webhooks[1].ClientConfig.CABundle = []byte("rubbish")
	f.touch(&f.configuration.ResourceVersion)
	harness.NoError(t, s.sync(t.Context()))
	f.wantTrusted(t, time.Now(), s)
}

// Two replicas run for ten years. One syncs every ten days, and the other every twenty days. The
// API server must always trust their certificates.
func TestCertificatesAreRenewedForTenYears(t *testing.T) {
	f, kube := newFakeKube(t)
	now := time.Now()
	clock := func() time.Time { return now }
	a, b := newSelf(kube, clock), newSelf(kube, clock)
	authorities, certificates := map[string]bool{}, map[string]bool{}
	const step = 10 // the clock advances by this number of days
	for day := 0; day < 10*365; day += step {
		now = now.Add(step * 24 * time.Hour)
		harness.NoError(t, a.sync(t.Context()), "day", day)
		if day%(2*step) == 0 {
			harness.NoError(t, b.sync(t.Context()), "day", day)
		}
		f.wantTrusted(t, now, a, b)
		authorities[string(f.secret.Data[authorityCert])] = true
		certificates[string(f.secret.Data[serverCert])] = true
	}
	if n := len(authorities); n < 2 || n > 5 {
		t.Errorf("got %d authorities in ten years, want 2 to 5", n)
	}
	if n := len(certificates); n < 50 || n > 80 {
		t.Errorf("got %d certificates in ten years, want one per 60 days", n)
	}
	if n := len(readCertificates(f.configuration.Webhooks[0].ClientConfig.CABundle)); n > 3 {
		t.Errorf("got %d authorities in the caBundle, want no expired ones", n)
	}
}

func TestDelayedReplicaKeepsPublishedAuthorities(t *testing.T) {
	f, kube := newFakeKube(t)
	a, b := newSelf(kube, time.Now), newSelf(kube, time.Now)
	harness.NoError(t, a.sync(t.Context()))
	// The first call to a.sync gets a conflict. Between its read and its write, the Secret is
	// deleted, and b.sync creates a new Secret.
	once := sync.Once{}
	f.before = func(method, path string) {
		if method != http.MethodPatch {
			return
		}
		once.Do(func() {
			f.before = nil
			f.mu.Lock()
			f.secret = nil
			f.mu.Unlock()
			if err := b.sync(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	f.configuration.Webhooks[0].ClientConfig.CABundle = nil // force a to publish its authority again
	harness.NoError(t, a.sync(t.Context()))
	f.wantTrusted(t, time.Now(), a, b)
}

func TestUnavailableAPIServerKeepsCertificate(t *testing.T) {
	f, kube := newFakeKube(t)
	s := newSelf(kube, time.Now)
	harness.NoError(t, s.sync(t.Context()))
	before, _ := s.GetCertificate(nil)
	f.down = true
	if err := s.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("got %v, want the status of the API server", err)
	}
	if after, _ := s.GetCertificate(nil); after != before {
		t.Error("got another certificate, want the previous one")
	}
}
