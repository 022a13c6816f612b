package knative

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	netheader "knative.dev/networking/pkg/http/header"
	"knative.dev/networking/pkg/ingress"
	"knative.dev/networking/pkg/status"
	"knative.dev/pkg/logging"
)

const publicHost = "plain.default.example.com"

// A gateway routes requests to one pod. It uses the rules in the Ingress, including the rules
// for the probe.
type gateway struct {
	*httptest.Server
	rules []v1alpha1.HTTPIngressPath
}

// ListProbeTargets returns the address of the gateway to the prober.
func (g *gateway) ListProbeTargets(context.Context, *v1alpha1.Ingress) ([]status.ProbeTarget, error) {
	u, err := url.Parse(g.URL)
	if err != nil {
		return nil, err
	}
	return []status.ProbeTarget{{
		PodIPs: sets.New(u.Hostname()), PodPort: u.Port(), Port: u.Port(),
		URLs: []*url.URL{{Scheme: "http", Host: publicHost}},
	}}, nil
}

// startGateway starts a gateway that applies the rules of the Ingress. These rules match a header
// and append headers.
func startGateway(p *pod, ing *v1alpha1.Ingress) *gateway {
	p.t.Helper()
	with := ing.DeepCopy()
	if _, err := ingress.InsertProbe(with); err != nil {
		p.t.Fatal(err)
	}
	g := &gateway{rules: with.Spec.Rules[0].HTTP.Paths}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: p.addr()})
		r.Out.Host = r.In.Host
		for _, rule := range g.rules {
			if m, ok := rule.Headers[netheader.HashKey]; ok && r.In.Header.Get(netheader.HashKey) != m.Exact {
				continue
			}
			for name, value := range rule.AppendHeaders {
				r.Out.Header.Set(name, value)
			}
			return
		}
	}}
	g.Server = httptest.NewServer(proxy)
	p.t.Cleanup(g.Close)
	return g
}

func ingressOf(p *pod) *v1alpha1.Ingress {
	return &v1alpha1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: "plain", Namespace: p.Namespace},
		Spec: v1alpha1.IngressSpec{Rules: []v1alpha1.IngressRule{{
			Hosts: []string{publicHost}, Visibility: v1alpha1.IngressVisibilityExternalIP,
			HTTP: &v1alpha1.HTTPIngressRuleValue{Paths: []v1alpha1.HTTPIngressPath{{
				Splits: []v1alpha1.IngressBackendSplit{{Percent: 100, IngressBackend: v1alpha1.IngressBackend{
					ServiceNamespace: p.Namespace, ServiceName: p.Name, ServicePort: intstr.FromInt32(80),
				}}},
			}}},
		}}},
	}
}

// The ingress controller considers a route ready after its probe has received the hash of the
// Ingress through the gateway and the sidecar. The app receives no request.
func ingressProberReportsRouteReady(t *testing.T, _ *Release) {
	p := newPod(t, "plain")
	p.start()
	app := startApp(p)
	ing := ingressOf(p)
	g := startGateway(p, ing)

	ready := make(chan *v1alpha1.Ingress, 1)
	log := zap.NewNop().Sugar()
	prober := status.NewProber(log, g, func(i *v1alpha1.Ingress) { ready <- i })
	stop := make(chan struct{})
	ended := prober.Start(stop)
	defer func() {
		close(stop)
		<-ended
	}()
	ctx := logging.WithLogger(context.Background(), log)
	if ok, err := prober.IsReady(ctx, ing); err != nil || ok {
		t.Fatalf("got ready %v, %v before the first probe, want false", ok, err)
	}
	receive(t, "the prober reports the Ingress as ready", ready)
	if ok, err := prober.IsReady(ctx, ing); err != nil || !ok {
		t.Errorf("got ready %v, %v, want true", ok, err)
	}
	if n := app.requests.Load(); n != 0 {
		t.Errorf("got %d requests in the app, want 0", n)
	}

	p.sidecar.terminate()
	poll(t, "the probe fails during the drain", func() error {
		answer, _, err := p.ask(g.Client(), g.URL+"/", "Host: "+publicHost, netheader.ProbeKey+": "+netheader.ProbeValue,
			netheader.HashKey+": "+netheader.HashValueOverride, "User-Agent: "+netheader.IngressReadinessUserAgent)
		if err == nil && answer.StatusCode != http.StatusServiceUnavailable {
			err = errors.New(answer.Status)
		}
		return err
	})
}
