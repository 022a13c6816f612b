package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// serve starts a webhook with HTTPS.
func serve(t *testing.T, v *Reviewer) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(reviewPath, v)
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	return s
}

func newReviewer(opts inject.Options) *Reviewer {
	return NewReviewer(opts, zap.NewNop(), NewMetrics("v1.2.3", "abcdef"))
}

// ask sends a POST request and returns the status and the body of the response.
func ask(t *testing.T, s *httptest.Server, body []byte) (int, []byte) {
	t.Helper()
	r, err := s.Client().Post(s.URL+reviewPath+"?timeout=5s", "application/json", bytes.NewReader(body))
	harness.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	harness.NoError(t, err)
	return r.StatusCode, text
}

// asked returns an HTTP request with the given body for the webhook.
func asked(body io.Reader) *http.Request {
	r := httptest.NewRequest(http.MethodPost, reviewPath, body)
	r.Header.Set("Content-Type", "application/json")
	return r
}

// recorded returns a reviewer's response to a body.
func recorded(v *Reviewer, body []byte) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	v.ServeHTTP(w, asked(bytes.NewReader(body)))
	return w
}

// question returns a review for a pod that is created. change may modify the request.
func question(pod []byte, change func(*admissionv1.AdmissionRequest)) []byte {
	q := &admissionv1.AdmissionRequest{
		UID: "705ab4f5-6393-11e8-b7cc-42010a800002", Operation: admissionv1.Create, Namespace: "shop",
		Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
	}
	if q.Object.Raw = pod; len(pod) == 0 {
		q.Object.Raw = []byte("null")
	}
	if change != nil {
		change(q)
	}
	text, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: q,
	})
	if err != nil {
		panic(err)
	}
	return text
}

// review sends a review of a pod and returns the response.
func review(t *testing.T, s *httptest.Server, pod []byte, change func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionResponse {
	t.Helper()
	status, text := ask(t, s, question(pod, change))
	if status != http.StatusOK {
		t.Fatalf("got status %d %s, want 200", status, text)
	}
	var got admissionv1.AdmissionReview
	harness.NoError(t, json.Unmarshal(text, &got))
	if got.APIVersion != "admission.k8s.io/v1" || got.Kind != "AdmissionReview" || got.Response == nil || got.Response.UID != "705ab4f5-6393-11e8-b7cc-42010a800002" {
		t.Fatalf("got %s, want a review with the same version and uid", text)
	}
	return got.Response
}

// patched returns a pod after the patch in a response.
func patched(t *testing.T, pod []byte, a *admissionv1.AdmissionResponse) []byte {
	t.Helper()
	if a.Patch == nil {
		return pod
	}
	if *a.PatchType != admissionv1.PatchTypeJSONPatch {
		t.Fatalf("got patch type %s, want JSONPatch", *a.PatchType)
	}
	patch, err := jsonpatch.DecodePatch(a.Patch)
	harness.NoError(t, err)
	text, err := patch.Apply(pod)
	harness.NoError(t, err)
	return text
}

func canonical(t *testing.T, text []byte) string {
	t.Helper()
	v, err := inject.Decode(text)
	harness.NoError(t, err, "in", text)
	return string(marshal(v))
}

func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

const goodPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"web-","ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-1","uid":"1234","controller":true}]},` +
	`"spec":{"containers":[{"name":"web","image":"web:1","ports":[{"name":"http","containerPort":8080}]}]}}`

// golden calls test for each pod in the golden pairs, with the options of the pair.
func golden(t *testing.T, test func(t *testing.T, pod []byte, opts inject.Options)) {
	t.Helper()
	inputs, err := filepath.Glob("../testdata/pairs/*/in.*")
	if err != nil || len(inputs) < 40 {
		t.Fatalf("got %d golden inputs, want at least 40", len(inputs))
	}
	pods := 0
	for _, name := range inputs {
		text, err := os.ReadFile(name)
		harness.NoError(t, err)
		f := manifest.Parse(name, text)
		stream, err := f.JSON()
		if err != nil {
			continue // the input is invalid
		}
		opts := optionsOf(t, filepath.Join(filepath.Dir(name), "args"))
		if opts == nil {
			continue // the pair has an argument that is not an option
		}
		for d := json.NewDecoder(bytes.NewReader(stream)); d.More(); {
			var object map[string]any
			d.UseNumber()
			harness.NoError(t, d.Decode(&object))
			items, _ := object["items"].([]any)
			for _, o := range append(items, object) {
				if pod := podOf(o); pod != nil {
					pods++
					t.Run(filepath.Base(filepath.Dir(name)), func(t *testing.T) { test(t, pod, opts) })
				}
			}
		}
	}
	if pods < 40 {
		t.Errorf("got %d pods, want at least 40", pods)
	}
}

// podOf returns the pod that a controller creates from the pod template in object.
func podOf(object any) []byte {
	m := object.(map[string]any)
	path, ok := inject.Template(m)
	if !ok {
		return nil
	}
	for _, token := range path {
		m = m[token].(map[string]any)
	}
	return marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": m["metadata"], "spec": m["spec"]})
}

func optionsOf(t *testing.T, file string) inject.Options {
	t.Helper()
	opts := inject.Options{}
	flags := flag.NewFlagSet(file, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	for _, o := range inject.Table() {
		flags.Func(o.Name, "", func(text string) error { return opts.Set(o.Name, text) })
	}
	args, err := os.ReadFile(file)
	if err == nil && flags.Parse(strings.Fields(string(args))) != nil {
		return nil
	}
	return opts
}

func TestWebhookAndCommandLineHaveSameResult(t *testing.T) {
	golden(t, func(t *testing.T, pod []byte, opts inject.Options) {
		f := manifest.Parse("pod.yaml", append([]byte("# the status of JSON can contain the original text\n"), pod...))
		results := manifest.Inject([]*manifest.File{f}, opts, inject.Services)
		want, err := f.JSON()
		harness.NoError(t, err)

		a := review(t, serve(t, newReviewer(opts)), pod, nil)
		harness.Equal(t, canonical(t, patched(t, pod, a)), canonical(t, want))
		refused := results[0].Verdict == inject.Refused
		if a.Allowed == refused {
			t.Errorf("got allowed %v, want %v: %s", a.Allowed, !refused, results[0].Text)
		}
		harness.Equal(t, a.AuditAnnotations["verdict"], string(results[0].Verdict), "the verdict", "noted")
		if refused && (a.Result == nil || !strings.Contains(a.Result.Message, results[0].Text)) {
			t.Errorf("got result %v, want it to contain %q", a.Result, results[0].Text)
		}
	})
}

func TestSecondReviewChangesNothing(t *testing.T) {
	golden(t, func(t *testing.T, pod []byte, opts inject.Options) {
		s := serve(t, newReviewer(opts))
		first := review(t, s, pod, nil)
		if first.Patch == nil {
			return
		}
		if again := review(t, s, patched(t, pod, first), nil); !again.Allowed || again.Patch != nil {
			t.Errorf("got allowed %v and patch %s, want allowed without a patch", again.Allowed, again.Patch)
		}
	})
}

func TestInvalidReviewReturnsReason(t *testing.T) {
	v := newReviewer(nil)
	s := serve(t, v)
	good := question([]byte(goodPod), nil)
	for _, c := range []struct {
		fact         string
		method, kind string
		body         string
		status       int
		want         string
	}{
		{"a GET", "GET", "application/json", "", 405, "want POST"},
		{"no type", "POST", "", string(good), 415, "Content-Type application/json"},
		{"YAML", "POST", "application/yaml", string(good), 415, "Content-Type application/json"},
		{"no body", "POST", "application/json", "", 400, "invalid AdmissionReview"},
		{"invalid bytes", "POST", "application/json", "\x00\xff{", 400, "invalid AdmissionReview"},
		{"half of a review", "POST", "application/json", string(good[:len(good)/2]), 400, "invalid AdmissionReview"},
		{"an older version", "POST", "application/json", `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}`, 400, "want admission.k8s.io/v1 AdmissionReview"},
		{"another kind", "POST", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"Pod"}`, 400, "want admission.k8s.io/v1 AdmissionReview"},
		{"no request", "POST", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400, "has no request"},
		{"no uid", "POST", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}`, 400, "has no uid"},
		{"too long", "POST", "application/json", strings.Repeat(" ", maxReviewBytes+1), 413, "exceeds the limit of 8388608 bytes"},
		{"not UTF-8", "POST", "application/json", strings.Replace(string(good), "web:1", "\xff", 1), 400, "UTF-8"},
		{"a long uid", "POST", "application/json", strings.Replace(string(good), "705ab4f5", strings.Repeat("<", 1000), 1), 400, "uid"},
		{"too deep", "POST", "application/json", strings.Repeat("[", 1<<20), 400, "invalid AdmissionReview"},
	} {
		r, err := http.NewRequest(c.method, s.URL+reviewPath, strings.NewReader(c.body))
		harness.NoError(t, err)
		if c.kind != "" {
			r.Header.Set("Content-Type", c.kind)
		}
		got, err := s.Client().Do(r)
		if err != nil {
			t.Errorf("%s: %v", c.fact, err)
			continue
		}
		text, _ := io.ReadAll(got.Body)
		got.Body.Close()
		if got.StatusCode != c.status || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: got %d %s, want %d and %q", c.fact, got.StatusCode, text, c.status, c.want)
		}
	}
	if a := review(t, s, []byte(goodPod), nil); a.Patch == nil {
		t.Error("got no patch after the invalid requests")
	}
}

func TestInvalidObjectsReturnResponse(t *testing.T) {
	s := serve(t, newReviewer(nil))
	var many strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&many, `,{"name":"c%d","readinessProbe":{"tcpSocket":{"port":1}}}`, i)
	}
	for _, c := range []struct {
		fact    string
		pod     string
		change  func(*admissionv1.AdmissionRequest)
		allowed bool
	}{
		{"no object", "", nil, false},
		{"an object that is a number", "7", nil, false},
		{"an object that is a list", "[]", nil, false},
		{"null", "null", nil, false},
		{"no spec", `{"metadata":{}}`, nil, false},
		{"ports that are a string", `{"spec":{"containers":[{"name":"a","ports":"8080"}]}}`, nil, false},
		{"an enormous pod", `{"spec":{"containers":[{"name":"a","ports":[{"containerPort":8080}]}` + many.String() + `]}}`, nil, false},
		{"a long name", `{"metadata":{"annotations":{"queue-proxy.dev/` + strings.Repeat("x", 1<<20) + `":"1"}},"spec":{"containers":[{"name":"a"}]}}`, nil, false},
		{"a Deployment", goodPod, func(q *admissionv1.AdmissionRequest) {
			q.Resource = metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
		}, true},
		{"an update", goodPod, func(q *admissionv1.AdmissionRequest) { q.Operation = admissionv1.Update }, true},
		{"a deletion", "", func(q *admissionv1.AdmissionRequest) { q.Operation = admissionv1.Delete }, true},
		{"a binding", goodPod, func(q *admissionv1.AdmissionRequest) { q.SubResource = "binding" }, true},
	} {
		a := review(t, s, []byte(c.pod), c.change)
		if a.Allowed != c.allowed || a.Patch != nil {
			t.Errorf("%s: got allowed %v and patch %s, want %v and no patch", c.fact, a.Allowed, a.Patch, c.allowed)
		}
		if !a.Allowed && (a.Result == nil || a.Result.Message == "") {
			t.Errorf("%s: got refused without a reason", c.fact)
		}
	}
}

func TestLenientWebhookAdmitsRefusedPod(t *testing.T) {
	v := newReviewer(nil)
	v.Lenient = true
	pod := strings.Replace(goodPod, `"metadata":{`, `"metadata":{"annotations":{"queue-proxy.dev/concurency":"1"},`, 1)
	a := review(t, serve(t, v), []byte(pod), nil)
	if !a.Allowed || a.Patch != nil || len(a.Warnings) != 1 || !strings.Contains(a.Warnings[0], `did you mean "queue-proxy.dev/concurrency"?`) {
		t.Errorf("got %+v, want allowed with a warning", a)
	}
}

// The test uses synctest, so that the deadline of a review does not expire. The fake clock
// of a synctest bubble does not advance while a goroutine is blocked on a network connection.
func TestConcurrentReviewsReturnSamePatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, newReviewer(nil))
		want := review(t, s, []byte(goodPod), nil).Patch
		var all sync.WaitGroup
		for range 4 * maxShortReviews {
			all.Go(func() {
				r, err := s.Client().Post(s.URL+reviewPath, "application/json", bytes.NewReader(question([]byte(goodPod), nil)))
				if err != nil {
					t.Error(err)
					return
				}
				defer r.Body.Close()
				var got admissionv1.AdmissionReview
				if err := json.NewDecoder(r.Body).Decode(&got); err != nil || !bytes.Equal(got.Response.Patch, want) {
					t.Errorf("got error %v or another patch, want the same patch for all", err)
				}
			})
		}
		all.Wait()
	})
}

// stalled sends the first bytes of a review, and keeps the connection open. length is the announced
// length of the body, and sent is the number of bytes that are sent.
func stalled(t *testing.T, s *httptest.Server, d *net.Dialer, length, sent int) *tls.Conn {
	t.Helper()
	conn, err := tls.DialWithDialer(d, "tcp", s.Listener.Addr().String(), s.Client().Transport.(*http.Transport).TLSClientConfig)
	harness.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", reviewPath, length, strings.Repeat(" ", sent))
	return conn
}

// Incomplete long reviews reserve memory, but must release it before the time limit of other long
// reviews.
func TestStalledReviewsDoNotBlockOtherClients(t *testing.T) {
	v := newReviewer(nil)
	v.limit = harness.Patience // long enough that the stalled reviews fail because of transferTimeout, even on a busy machine
	s := serve(t, v)
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range 4 * memoryOfTexts / maxReviewBytes {
		stalled(t, s, d, maxReviewBytes, smallBytes+1000)
	}
	long := strings.Replace(goodPod, "web:1", strings.Repeat("w", smallBytes), 1)
	if a := review(t, s, []byte(long), nil); a.Patch == nil {
		t.Error("got no patch, want one")
	}
}

// Slow requests must not delay other requests. The cases are many short requests, and
// long requests that use all memory for long requests.
func TestSlowRequestsDoNotDelayReviews(t *testing.T) {
	s := serve(t, newReviewer(nil))
	for name, c := range map[string]struct{ conns, sent int }{"short": {3 * maxShortReviews, 100}, "long": {maxShortReviews, smallBytes + 1000}} {
		var conn *tls.Conn
		for range c.conns {
			conn = stalled(t, s, new(net.Dialer), 1_000_000, c.sent)
		}
		if a := review(t, s, []byte(goodPod), nil); a.Patch == nil {
			t.Errorf("%s: got no patch, want one", name)
		}
		conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); !harness.IsTimeout(err) {
			t.Errorf("%s: got %v on a slow connection, want a timeout", name, err)
		}
	}
}

// Responses and log entries truncate strings from the request.
func TestResponseAndLogAreTruncated(t *testing.T) {
	core, lines := observer.New(zap.DebugLevel)
	v := newReviewer(nil)
	v.Log = zap.New(core)
	s := serve(t, v)
	long := strings.Repeat("x", 1<<20)
	for name, body := range map[string][]byte{
		"the version":   []byte(`{"apiVersion":"` + long + `","kind":"` + long + `"}`),
		"a number":      []byte(`{"request":{"uid":` + strings.Repeat("1", 1<<20) + `}}`),
		"the pod":       question([]byte(strings.Replace(goodPod, "web-", long, 1)), nil),
		"the namespace": question([]byte(goodPod), func(q *admissionv1.AdmissionRequest) { q.Namespace = long }),
		"an annotation": question([]byte(strings.Replace(goodPod, `"metadata":{`, `"metadata":{"annotations":{"queue-proxy.dev/`+long+`":"1"},`, 1)), nil),
		"a value":       question([]byte(strings.Replace(goodPod, `"metadata":{`, `"metadata":{"annotations":{"queue-proxy.dev/concurrency":"`+long+`"},`, 1)), nil),
		"no pod":        question([]byte(`"`+long+`"`), nil),
		"the image":     question([]byte(strings.Replace(goodPod, `"image":"web:1"`, `"image":{"`+long+`":1}`, 1)), nil),
	} {
		before := lines.Len()
		_, answer := ask(t, s, body)
		if len(answer) > 20_000 {
			t.Errorf("%s: got a response of %d bytes, want at most 20000", name, len(answer))
		}
		count := 0
		for _, line := range lines.All()[before:] {
			text, err := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()).EncodeEntry(line.Entry, line.Context)
			harness.NoError(t, err)
			if count++; text.Len() > 16<<10 {
				t.Errorf("%s: got a line of %d bytes, want at most 16 KiB", name, text.Len())
			}
		}
		if count == 0 {
			t.Errorf("%s: got no log entry", name)
		}
	}
}

func TestServerDrainsAfterCancel(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ours, trusting := harness.TLS(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting}}
	v := newReviewer(nil)
	hold, reserved := make(chan struct{}), make(chan struct{})
	s := &Server{
		Reviewer: v, Metrics: v.Metrics, Log: v.Log, Addr: "127.0.0.1:0", MetricsAddr: "127.0.0.1:0", Linger: time.Hour,
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &ours.Certificates[0], nil },
		NotAfter:    func() time.Time { return time.Now().Add(time.Hour) },
		Beside: []Runner{func(ctx context.Context) error {
			close(reserved)
			select {
			case <-hold:
				return io.ErrUnexpectedEOF
			case <-ctx.Done():
				return nil
			}
		}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reviews, metrics string
	listening, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, func(r, m net.Addr) { reviews, metrics = r.String(), m.String(); close(listening) })
	}()
	<-listening
	<-reserved

	get := func(path string) int {
		r, err := http.Get("http://" + metrics + path)
		harness.NoError(t, err)
		r.Body.Close()
		return r.StatusCode
	}
	post := func() (status int, closing bool) {
		r, err := client.Post("https://"+reviews+reviewPath, "application/json", bytes.NewReader(question([]byte(goodPod), nil)))
		harness.NoError(t, err)
		defer r.Body.Close()
		_, _ = io.Copy(io.Discard, r.Body)
		return r.StatusCode, r.Close
	}
	harness.Equal(t, []int{get("/healthz"), get("/readyz"), get("/metrics")}, []int{200, 200, 200}, "statuses")
	status, closing := post()
	harness.Equal(t, status, 200, "before SIGTERM")
	harness.Equal(t, closing, false, "Connection: close before SIGTERM")
	cancel()
	harness.Until(t, "503 of /readyz", func() bool { return get("/readyz") == 503 })
	for _, connection := range []string{"a kept connection", "a new connection"} {
		status, closing = post()
		harness.Equal(t, status, 200, "while lingering, on", connection)
		harness.Equal(t, closing, true, "Connection: close while lingering, on", connection)
	}
	close(hold) // the runner returns an error, which stops the server during Linger
	if err := <-ended; err == nil || !strings.Contains(err.Error(), io.ErrUnexpectedEOF.Error()) {
		t.Errorf("got %v, want the error of the runner", err)
	}
	client.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
}

func TestPortInUseReturnsError(t *testing.T) {
	l := harness.Listen(t)
	defer l.Close()
	s := &Server{Addr: l.Addr().String(), MetricsAddr: "127.0.0.1:0"}
	if err := s.Run(t.Context(), func(net.Addr, net.Addr) {}); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got %v, want an error with the address", err)
	}
}

// FuzzReview sends any body. The status must be 200 or 400. For a valid review, the response must
// be valid, and its patch must apply and be reversible.
func FuzzReview(f *testing.F) {
	f.Add(question([]byte(goodPod), nil))
	f.Add(question([]byte(goodPod), func(q *admissionv1.AdmissionRequest) { q.Operation = admissionv1.Delete }))
	f.Add(question([]byte(`{"spec":{"containers":[{"name":"a"},{"name":"b","ports":[{"containerPort":8012}]}]}}`), nil))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","resource":{"version":"v1","resource":"pods"},"object":{"spec":{"containers":[{"name":"/~","ports":[{"containerPort":1}]}]}}}}`))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","resource":{"version":"v1","resource":"pods"},"object":{"metadata":null,"spec":{"containers":[{"name":"a","ports":[{"containerPort":1e0}]}],"containers":[]}}}}`))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}`))
	v := newReviewer(nil)
	f.Fuzz(func(t *testing.T, body []byte) {
		w := recorded(v, body)
		if w.Code == 400 {
			return
		}
		if w.Code != 200 {
			t.Fatalf("got status %d %s, want 200 or 400", w.Code, w.Body)
		}
		var got admissionv1.AdmissionReview
		var asked admissionReview // other fields are ignored
		harness.NoError(t, json.Unmarshal(body, &asked), "answer to what is no review")
		harness.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
		a := got.Response
		switch {
		case got.TypeMeta != asked.TypeMeta || got.Request != nil || a == nil || a.UID != asked.Request.UID:
			t.Fatalf("got %s, want a response with the uid of the review", w.Body)
		case a.Allowed != (a.Result == nil) || !a.Allowed && a.Patch != nil:
			t.Errorf("got %s, want allowed or a reason", w.Body)
		case (a.Patch == nil) != (a.PatchType == nil) || (a.Patch != nil) != (a.AuditAnnotations["verdict"] == string(inject.Injected)):
			t.Errorf("got %s, want a patch only if the pod is injected", w.Body)
		case a.Patch == nil:
			return
		}
		before, err := inject.Decode(asked.Request.Object)
		harness.NoError(t, err)
		after, err := inject.Decode(patched(t, marshal(before), a))
		harness.NoError(t, err)
		restored, err := inject.Apply(after, inject.Uninject(after).Changes)
		harness.NoError(t, err)
		harness.Equal(t, string(marshal(restored)), string(marshal(before)), "undone")
	})
}
