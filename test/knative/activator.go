package knative

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pkgnet "knative.dev/networking/pkg/apis/networking"
	"knative.dev/networking/pkg/certificates"
	netcfg "knative.dev/networking/pkg/config"
	netheader "knative.dev/networking/pkg/http/header"
	fakekube "knative.dev/pkg/client/injection/kube/client/fake"
	_ "knative.dev/pkg/client/injection/kube/informers/core/v1/endpoints/fake" // fake informer of the endpoints, which the throttler watches
	_ "knative.dev/pkg/client/injection/kube/informers/core/v1/service/fake"
	"knative.dev/pkg/configmap"
	_ "knative.dev/pkg/injection/clients/namespacedkube/informers/core/v1/configmap/fake" // fake informer of the ConfigMaps, which the cache of certificates watches
	_ "knative.dev/pkg/injection/clients/namespacedkube/informers/core/v1/secret/fake"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/network"
	rtesting "knative.dev/pkg/reconciler/testing"
	"knative.dev/pkg/system"
	"knative.dev/serving/pkg/activator"
	"knative.dev/serving/pkg/activator/certificate"
	activatorconfig "knative.dev/serving/pkg/activator/config"
	handler "knative.dev/serving/pkg/activator/handler"
	activatornet "knative.dev/serving/pkg/activator/net"
	"knative.dev/serving/pkg/apis/serving"
	fakeserving "knative.dev/serving/pkg/client/injection/client/fake"
	_ "knative.dev/serving/pkg/client/injection/informers/serving/v1/revision/fake"
	"knative.dev/serving/pkg/networking"
	"knative.dev/serving/pkg/queue"
	"knative.dev/serving/pkg/reconciler/serverlessservice/resources/names"
)

// An activatorProcess runs the parts of cmd/activator in front of one pod.
type activatorProcess struct {
	p      *pod
	ctx    context.Context
	url    string
	failed atomic.Int64 // number of probes with status 503 or with an error
}

// watched returns a transport that counts failed probes.
func (a *activatorProcess) watched(transport http.RoundTripper) http.RoundTripper {
	return network.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		answer, err := transport.RoundTrip(r)
		if netheader.IsProbe(r) && (err != nil || answer.StatusCode == http.StatusServiceUnavailable) {
			a.failed.Add(1)
		}
		return answer, err
	})
}

// startActivator starts the activator, which does not know the address of the pod yet. secure is
// the certificate that the activator trusts; if it is nil, the activator uses plain text.
func startActivator(p *pod, r *Release, secure *tls.Certificate) *activatorProcess {
	p.t.Helper()
	ctx, cancel, informers := rtesting.SetupFakeContextWithCancel(p.t)
	ctx = logging.WithLogger(ctx, zap.NewNop().Sugar())
	create(p, ctx, secure)
	wait, err := rtesting.RunAndSyncInformers(ctx, informers...)
	if err != nil {
		p.t.Fatal(err)
	}
	transport := network.NewProxyAutoTransport(1000, 100)
	if secure != nil {
		certs, err := certificate.NewCertCache(ctx)
		if err != nil {
			p.t.Fatal(err)
		}
		transport = network.NewProxyAutoTLSTransport(1000, 100, certs.TLSContext())
	}
	a := &activatorProcess{p: p, ctx: ctx}
	transport = a.watched(transport)
	throttler := activatornet.NewThrottler(ctx, "127.0.0.9")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		throttler.Run(ctx, transport, false, netcfg.MeshCompatibilityModeAuto)
	}()

	store := activatorconfig.NewStore(configLogger{p.t})
	store.WatchConfigs(configmap.NewStaticWatcher(slices.Collect(maps.Values(p.configMap))...))
	h := r.NewActivator(ctx, throttler, transport, logging.FromContext(ctx), secure != nil)
	s := network.NewServer("", handler.NewContextHandler(ctx, h, store))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	p.t.Cleanup(func() {
		_ = s.Close()
		cancel()
		<-ended
		wait()
	})
	a.url = "http://" + l.Addr().String()
	return a
}

// create creates the objects that the activator reads.
func create(p *pod, ctx context.Context, secure *tls.Certificate) {
	p.t.Helper()
	_, err := fakeserving.Get(ctx).ServingV1().Revisions(p.Namespace).Create(ctx, p.Revision, metav1.CreateOptions{})
	if err != nil || secure == nil {
		if err != nil {
			p.t.Fatal(err)
		}
		return
	}
	text, key := encode(p.t, *secure)
	_, err = fakekube.Get(ctx).CoreV1().Secrets(system.Namespace()).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: netcfg.ServingRoutingCertName, Namespace: system.Namespace()},
		Data:       map[string][]byte{certificates.CertName: text, certificates.PrivateKeyName: key, certificates.CaCertName: text},
	}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
}

// endpoints marks the address of the pod as ready or as not ready in Kubernetes.
func (a *activatorProcess) endpoints(ready bool) {
	a.p.t.Helper()
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{
		Name: pkgnet.ServicePortName(a.p.GetProtocol()), Port: int32(a.p.port()), Protocol: corev1.ProtocolTCP,
	}}}
	address := []corev1.EndpointAddress{{IP: podIP}}
	if ready {
		subset.Addresses = address
	} else {
		subset.NotReadyAddresses = address
	}
	e := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Name: names.PrivateService(a.p.Name), Namespace: a.p.Namespace,
			Labels: map[string]string{
				serving.RevisionUID:       string(a.p.UID),
				serving.RevisionLabelKey:  a.p.Name,
				networking.ServiceTypeKey: string(networking.ServiceTypePrivate),
			},
		},
		Subsets: []corev1.EndpointSubset{subset},
	}
	all := fakekube.Get(a.ctx).CoreV1().Endpoints(a.p.Namespace)
	_, err := all.Update(a.ctx, e, metav1.UpdateOptions{})
	if err != nil {
		_, err = all.Create(a.ctx, e, metav1.CreateOptions{})
	}
	if err != nil {
		a.p.t.Fatal(err)
	}
}

// waitForFailedProbe waits until a probe of the activator fails.
func (a *activatorProcess) waitForFailedProbe() {
	a.p.t.Helper()
	poll(a.p.t, "a probe of the activator fails", func() error {
		if a.failed.Load() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

// ask sends a request like the ingress.
func (a *activatorProcess) ask(client *http.Client, path string) (*http.Response, string, error) {
	return a.p.ask(client, a.url+path,
		activator.RevisionHeaderName+": "+a.p.Name, activator.RevisionHeaderNamespace+": "+a.p.Namespace)
}

// The activator holds a request for a pod that is not ready, and probes the sidecar. When the probe
// succeeds, it forwards the request, even if Kubernetes has not reported the pod as ready yet.
func activatorForwardsRequestWhenReady(t *testing.T, r *Release) {
	for _, service := range []string{"plain", "probe-http", "h2c", "probe-grpc", "tls"} {
		t.Run(service, func(t *testing.T) {
			p := newPod(t, service)
			var secure *tls.Certificate
			if service == "tls" {
				c := newCertificate(t, certificates.DataPlaneUserSAN(p.Namespace), certificates.LegacyFakeDnsName)
				secure = &c
				mountCertificate(t, queue.CertDirectory, c)
			}
			p.start()
			a := startActivator(p, r, secure)
			a.endpoints(false)

			type result struct {
				answer *http.Response
				body   string
				err    error
			}
			answered := make(chan result, 1)
			go func() {
				var got result
				got.answer, got.body, got.err = a.ask(p.client, "/through")
				answered <- got
			}()
			a.waitForFailedProbe()
			app := startApp(p)
			got := receive(t, "the request is answered", answered)
			if got.err != nil || got.answer.StatusCode != http.StatusOK {
				t.Fatalf("got %v, %v, %q, want 200", got.answer, got.err, got.body)
			}
			if n := app.requests.Load(); n != 1 {
				t.Errorf("the app received %d requests, want 1", n)
			}
			for _, name := range []string{"K-Proxy-Request", activator.RevisionHeaderName, activator.RevisionHeaderNamespace} {
				if v := app.lastHeader().Get(name); v != "" {
					t.Errorf("the app received the field %s: %s, want no such field", name, v)
				}
			}
			poll(t, "the statistics count a proxied request", func() error {
				s, err := p.stat()
				if err == nil && s.ProxiedRequestCount == 0 {
					err = errors.New(s.String())
					_, _, _ = a.ask(p.client, "/again") // send another request, because the statistics cover one second
				}
				return err
			})
		})
	}
}

// The activator sends no requests to a pod that drains. It probes the pod again when Kubernetes
// reports it as not ready, and the sidecar rejects the probe.
func activatorSkipsDrainingPod(t *testing.T, r *Release) {
	p := newPod(t, "plain")
	p.start()
	app := startApp(p)
	a := startActivator(p, r, nil)
	a.endpoints(true)
	if answer, body, err := a.ask(p.client, "/"); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("got %v, %v, %q, want 200", answer, err, body)
	}
	p.sidecar.terminate()
	poll(t, "the readiness probe fails", func() error {
		if p.readiness() == nil {
			return errors.New("the activator is ready, want not ready")
		}
		return nil
	})
	a.endpoints(false)
	a.waitForFailedProbe()
	brief := &http.Client{Timeout: 500 * time.Millisecond}
	poll(t, "the activator sends no requests", func() error {
		before := app.requests.Load()
		answer, _, err := a.ask(brief, "/")
		if err == nil || app.requests.Load() != before {
			return fmt.Errorf("got %v and %d requests in the app, want %d", answer, app.requests.Load(), before)
		}
		return nil
	})
}
