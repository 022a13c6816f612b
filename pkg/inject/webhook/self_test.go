package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
)

// A fakeKube is the part of an API server that we use, with its rules for writes at the
// same time: a number of the version in each object, 409 for who is behind.
type fakeKube struct {
	mu            sync.Mutex
	version       int
	secret        *corev1.Secret
	configuration *admissionregv1.MutatingWebhookConfiguration
	events        []corev1.Event
	writes        int
	down          bool
	before        func(method, path string) // called without the lock, before a request is served
}

func newFakeKube(t *testing.T) (*fakeKube, *Kube) {
	t.Helper()
	f := &fakeKube{configuration: &admissionregv1.MutatingWebhookConfiguration{
		Webhooks: make([]admissionregv1.MutatingWebhook, 2),
	}}
	f.touch(&f.configuration.ResourceVersion)
	s := httptest.NewTLSServer(f)
	t.Cleanup(s.Close)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("secret-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	kube, err := NewKube(s.URL, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kube.client.CloseIdleConnections)
	return f, kube
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
	say := func(status int, v any) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	fail := func(status int) { say(status, map[string]string{"message": http.StatusText(status)}) }
	if r.Header.Get("Authorization") != "Bearer secret-token" {
		fail(http.StatusUnauthorized)
		return
	}
	if f.down {
		fail(http.StatusInternalServerError)
		return
	}
	body, _ := io.ReadAll(r.Body)
	if r.Method != http.MethodGet {
		f.writes++
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v1/namespaces/qp/secrets/cert":
		if f.secret == nil {
			fail(http.StatusNotFound)
			return
		}
		say(200, f.secret)
	case "POST /api/v1/namespaces/qp/secrets", "PUT /api/v1/namespaces/qp/secrets/cert":
		secret := new(corev1.Secret)
		if err := json.Unmarshal(body, secret); err != nil {
			fail(http.StatusBadRequest)
			return
		}
		if f.secret != nil && (r.Method == "POST" || secret.ResourceVersion != f.secret.ResourceVersion) {
			fail(http.StatusConflict)
			return
		}
		f.touch(&secret.ResourceVersion)
		f.secret = secret
		say(200, secret)
	case "GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hook":
		say(200, f.configuration)
	case "PATCH /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hook":
		patch, err := jsonpatch.DecodePatch(body)
		before, _ := json.Marshal(f.configuration)
		after, err2 := patch.Apply(before)
		if err != nil || err2 != nil {
			fail(http.StatusUnprocessableEntity)
			return
		}
		f.configuration = new(admissionregv1.MutatingWebhookConfiguration)
		_ = json.Unmarshal(after, f.configuration)
		f.touch(&f.configuration.ResourceVersion)
		say(200, f.configuration)
	case "POST /api/v1/namespaces/shop/events":
		var e corev1.Event
		_ = json.Unmarshal(body, &e)
		f.events = append(f.events, e)
		say(201, e)
	default:
		fail(http.StatusForbidden)
	}
}

func newSelf(kube *Kube, now func() time.Time) *Self {
	return &Self{Kube: kube, Namespace: "qp", Service: "injector", Secret: "cert", Configuration: "hook", Log: zap.NewNop(), Now: now}
}

// trusted reports whether an API server that follows the configuration would speak with
// a replica at a point in time.
func (f *fakeKube) trusted(t *testing.T, s *Self, now time.Time) error {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	cert, err := s.GetCertificate(nil)
	if err != nil {
		return err
	}
	for i, w := range f.configuration.Webhooks {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(w.ClientConfig.CABundle)
		if _, err := cert.Leaf.Verify(x509.VerifyOptions{DNSName: "injector.qp.svc", Roots: roots, CurrentTime: now}); err != nil {
			return fmt.Errorf("webhook %d: %w", i, err)
		}
	}
	return nil
}

func TestOneReplicaMakesAndPublishesACertificate(t *testing.T) {
	f, kube := newFakeKube(t)
	s := newSelf(kube, nil)
	if _, err := s.GetCertificate(nil); err == nil || !s.NotAfter().IsZero() {
		t.Error("got a certificate before the first look, want none")
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.trusted(t, s, time.Now()); err != nil {
		t.Error(err)
	}
	writes := f.writes
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.writes != writes {
		t.Errorf("got %d writes for nothing, want none", f.writes-writes)
	}

	// Real TLS, as the API server does it.
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: s.GetCertificate, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_ = c.(*tls.Conn).Handshake()
			c.Close()
		}
	}()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.configuration.Webhooks[0].ClientConfig.CABundle)
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", l.Addr().String(), &tls.Config{RootCAs: roots, ServerName: "injector.qp.svc"})
	if err != nil {
		t.Fatalf("got %v, want a handshake", err)
	}
	c.Close()
}

func TestManyReplicasAgree(t *testing.T) {
	f, kube := newFakeKube(t)
	var replicas []*Self
	var all sync.WaitGroup
	for range 8 {
		s := newSelf(kube, nil)
		replicas = append(replicas, s)
		all.Go(func() {
			if err := s.Sync(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i, s := range replicas {
		if err := f.trusted(t, s, time.Now()); err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
	}
	if n := len(readCertificates(f.configuration.Webhooks[0].ClientConfig.CABundle)); n != 1 {
		t.Errorf("got %d authorities published, want 1", n)
	}
}

func TestAConfigurationThatWasAppliedAnewIsPublishedAgain(t *testing.T) {
	f, kube := newFakeKube(t)
	s := newSelf(kube, nil)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.configuration.Webhooks[1].ClientConfig.CABundle = []byte("rubbish")
	f.touch(&f.configuration.ResourceVersion)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.trusted(t, s, time.Now()); err != nil {
		t.Error(err)
	}
}

// Ten years of two replicas that look each ten days, one of them half as often: at no
// point may the API server meet a certificate that it does not trust.
func TestCertificatesRenewThemselvesForTenYears(t *testing.T) {
	f, kube := newFakeKube(t)
	now := time.Now()
	clock := func() time.Time { return now }
	a, b := newSelf(kube, clock), newSelf(kube, clock)
	authorities, certificates := map[string]bool{}, map[string]bool{}
	const step = 10 // days
	for day := 0; day < 10*365; day += step {
		now = now.Add(step * 24 * time.Hour)
		if err := a.Sync(t.Context()); err != nil {
			t.Fatalf("day %d: %v", day, err)
		}
		if day%(2*step) == 0 {
			if err := b.Sync(t.Context()); err != nil {
				t.Fatalf("day %d: %v", day, err)
			}
		}
		for name, s := range map[string]*Self{"a": a, "b": b} {
			if err := f.trusted(t, s, now); err != nil {
				t.Fatalf("day %d: replica %s: %v", day, name, err)
			}
		}
		authorities[string(f.secret.Data[authorityCert])] = true
		certificates[string(f.secret.Data[serverCert])] = true
	}
	if n := len(authorities); n < 2 || n > 5 {
		t.Errorf("got %d authorities in ten years, want 2 to 5", n)
	}
	if n := len(certificates); n < 50 || n > 80 {
		t.Errorf("got %d certificates in ten years, want one each 60 days", n)
	}
	if n := len(readCertificates(f.configuration.Webhooks[0].ClientConfig.CABundle)); n > 3 {
		t.Errorf("got %d authorities in the caBundle, want those that ran out gone", n)
	}
}

func TestWhoIsBehindTakesNothingAway(t *testing.T) {
	f, kube := newFakeKube(t)
	a, b := newSelf(kube, nil), newSelf(kube, nil)
	if err := a.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	// While a looks again, somebody deletes the Secret and b makes everything anew,
	// between a's reading and a's writing.
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
			if err := b.Sync(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	f.configuration.Webhooks[0].ClientConfig.CABundle = nil // so that a has something to publish
	if err := a.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*Self{"a": a, "b": b} {
		if err := f.trusted(t, s, time.Now()); err != nil {
			t.Errorf("replica %s: %v", name, err)
		}
	}
}

func TestAnAPIServerThatIsDownChangesNothing(t *testing.T) {
	f, kube := newFakeKube(t)
	s := newSelf(kube, nil)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, _ := s.GetCertificate(nil)
	f.down = true
	if err := s.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("got %v, want the API server's status", err)
	}
	if after, _ := s.GetCertificate(nil); after != before {
		t.Error("got another certificate, want the one in use kept")
	}
}

// What no API server would ask about leaves no event: it would be part of a path of
// the API, and be remembered.
func TestForgedQuestionsLeaveNoEvent(t *testing.T) {
	_, kube := newFakeKube(t)
	v := newReviewer(nil)
	v.Events = NewEvents(kube, zap.NewNop(), v.Metrics)
	s := serve(t, v)
	onHost := strings.Replace(goodPod, `"spec":{`, `"spec":{"hostNetwork":true,`, 1)
	for _, namespace := range []string{"shop/pods/x/eviction?", "../../apis", "a b", "", strings.Repeat("x", 1000)} {
		review(t, s, []byte(onHost), func(q *admissionv1.AdmissionRequest) { q.Namespace = namespace })
	}
	review(t, s, []byte(strings.Replace(onHost, `"uid":"1234"`, `"uid":"`+strings.Repeat("x", 1000)+`"`, 1)), nil)
	review(t, s, []byte(strings.Replace(onHost, `"name":"web-1"`, `"name":"`+strings.Repeat("x", 1000)+`"`, 1)), nil)
	if waiting, told := len(v.Events.waiting), len(v.Events.told); waiting > 0 || told > 0 {
		t.Errorf("got %d events and %d owners remembered, want none", waiting, told)
	}
	review(t, s, []byte(onHost), nil)
	if len(v.Events.waiting) != 1 {
		t.Errorf("got %d events for a good question, want 1", len(v.Events.waiting))
	}
}

func TestSkippedPodsLeaveAnEventWithTheirOwner(t *testing.T) {
	f, kube := newFakeKube(t)
	v := newReviewer(nil)
	v.Events = NewEvents(kube, zap.NewNop(), v.Metrics)
	now := time.Now()
	v.Events.now = func() time.Time { return now }
	ended := make(chan struct{})
	ctx := t.Context()
	go func() { defer close(ended); _ = v.Events.Run(ctx) }()
	t.Cleanup(func() { <-ended })
	s := serve(t, v)

	onHost := strings.Replace(goodPod, `"spec":{`, `"spec":{"hostNetwork":true,`, 1)
	yes := true
	review(t, s, []byte(onHost), func(q *admissionv1.AdmissionRequest) { q.DryRun = &yes })
	review(t, s, []byte(goodPod), nil)
	review(t, s, []byte(strings.Replace(onHost, "generateName", "name", 1)), nil)
	review(t, s, []byte(onHost), nil) // the same again: no news
	now = now.Add(quietTime)
	review(t, s, []byte(onHost), nil)

	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		n := len(f.events)
		f.mu.Unlock()
		if n == 2 {
			break
		}
		if n > 2 || time.Since(begin) > 5*time.Second {
			t.Fatalf("got %d events, want 2", n)
		}
	}
	e := f.events[0]
	if e.InvolvedObject.Kind != "ReplicaSet" || e.InvolvedObject.Name != "web-1" || e.Namespace != "shop" || e.Reason != "QueueProxySkipped" || !strings.Contains(e.Message, "host-network") {
		t.Errorf("got %+v, want it about the ReplicaSet, with the reason", e)
	}
}
