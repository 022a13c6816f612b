package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	kingress "knative.dev/networking/pkg/ingress"
)

// A table contains the routes. It is safe for concurrent use.
type table struct {
	kube   *kubernetes.Clientset
	routes atomic.Pointer[[]v1alpha1.IngressRule]
	http2  sync.Map // maps "namespace/service:port" to whether the port uses HTTP/2

	// The transports keep no idle connections. An idle connection to the address of a Service would
	// still lead to the activator after the endpoints of the Service have changed to the pods.
	h1, h2, h1TLS, h2TLS *http.Transport
}

func newTable(kube *kubernetes.Clientset, authority *x509.CertPool) *table {
	transport := func(http2, secure bool) *http.Transport {
		var speaks http.Protocols
		speaks.SetHTTP1(!http2)
		speaks.SetHTTP2(http2 && secure)
		speaks.SetUnencryptedHTTP2(http2 && !secure)
		t := &http.Transport{Protocols: &speaks, DisableKeepAlives: !http2, DisableCompression: true}
		if secure {
			// Knative's certificates contain the name of a role instead of a host, so only the
			// issuer is verified.
			t.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(c tls.ConnectionState) error {
				_, err := c.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: authority})
				return err
			}}
		}
		return t
	}
	t := &table{kube: kube, h1: transport(false, false), h2: transport(true, false), h1TLS: transport(false, true), h2TLS: transport(true, true)}
	t.routes.Store(new([]v1alpha1.IngressRule))
	return t
}

// set replaces the rules with the rules of all Ingresses, including the paths for probes.
func (t *table) set(all map[string]*v1alpha1.Ingress) {
	var rules []v1alpha1.IngressRule
	for _, i := range all {
		i = i.DeepCopy()
		if _, err := kingress.InsertProbe(i); err != nil {
			log.Print(err)
			continue
		}
		rules = append(rules, i.Spec.Rules...)
	}
	t.routes.Store(&rules)
}

// find returns the first path that matches a request, or nil if no path matches.
func (t *table) find(r *http.Request) *v1alpha1.HTTPIngressPath {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	for _, rule := range *t.routes.Load() {
		for _, h := range rule.Hosts {
			if h != host {
				continue
			}
			for i := range rule.HTTP.Paths {
				if p := &rule.HTTP.Paths[i]; fits(p, r) {
					return p
				}
			}
		}
	}
	return nil
}

func fits(p *v1alpha1.HTTPIngressPath, r *http.Request) bool {
	for name, want := range p.Headers {
		if r.Header.Get(name) != want.Exact {
			return false
		}
	}
	return strings.HasPrefix(r.URL.Path, p.Path)
}

// choose returns a random destination of a path according to the percentages.
func choose(p *v1alpha1.HTTPIngressPath) v1alpha1.IngressBackendSplit {
	n := rand.IntN(100)
	for _, s := range p.Splits {
		if n < s.Percent {
			return s
		}
		n -= s.Percent
	}
	return p.Splits[0]
}

// isHTTP2 reports whether the port name of a Service selects HTTP/2.
func (t *table) isHTTP2(ctx context.Context, s v1alpha1.IngressBackendSplit) bool {
	port := s.ServicePort.IntValue()
	key := fmt.Sprintf("%s/%s:%d", s.ServiceNamespace, s.ServiceName, port)
	if known, ok := t.http2.Load(key); ok {
		return known.(bool)
	}
	o, err := t.kube.CoreV1().Services(s.ServiceNamespace).Get(ctx, s.ServiceName, metav1.GetOptions{})
	if err != nil {
		return false
	}
	is := false
	for _, p := range o.Spec.Ports {
		// With TLS, the port is named https for all protocols, so the name of the plain port is
		// checked.
		if (int(p.Port) == port || port == 443) && (p.Name == "http2" || p.Name == "h2c" || p.AppProtocol != nil && *p.AppProtocol == "kubernetes.io/h2c") {
			is = true
		}
	}
	t.http2.Store(key, is)
	return is
}

// ServeHTTP forwards a request.
func (t *table) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := t.find(r)
	if p == nil {
		http.Error(w, "ingress: no route found for host "+r.Host, http.StatusNotFound)
		return
	}
	s := choose(p)
	o, err := t.kube.CoreV1().Services(s.ServiceNamespace).Get(r.Context(), s.ServiceName, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		http.Error(w, "ingress: "+err.Error(), http.StatusBadGateway)
		return
	}
	port := s.ServicePort.IntValue()
	scheme, transport := "http", t.h1
	switch http2 := t.isHTTP2(r.Context(), s); {
	case port == 443 && http2:
		scheme, transport = "https", t.h2TLS
	case port == 443:
		scheme, transport = "https", t.h1TLS
	case http2:
		transport = t.h2
	}
	proxy := httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		Rewrite: func(x *httputil.ProxyRequest) {
			x.Out.URL.Scheme, x.Out.URL.Host, x.Out.Host = scheme, fmt.Sprintf("%s:%d", o.Spec.ClusterIP, port), r.Host
			if p.RewriteHost != "" {
				x.Out.Host = p.RewriteHost
			}
			for _, fields := range []map[string]string{p.AppendHeaders, s.AppendHeaders} {
				for name, value := range fields {
					x.Out.Header.Set(name, value)
				}
			}
			x.Out.Header["X-Forwarded-For"] = r.Header["X-Forwarded-For"]
			x.SetXForwarded()
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			log.Printf("%s %s%s by %s/%s:%d: %v", r.Method, r.Host, r.URL, s.ServiceNamespace, s.ServiceName, port, err)
			http.Error(w, "ingress: "+err.Error(), http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, r)
}
