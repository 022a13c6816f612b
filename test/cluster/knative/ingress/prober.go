package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	"knative.dev/networking/pkg/client/clientset/versioned"
	"knative.dev/networking/pkg/http/header"
	kingress "knative.dev/networking/pkg/ingress"
)

// between is the interval between probes of a host.
const between = 200 * time.Millisecond

// A prober probes Ingresses and marks them as ready.
type prober struct {
	ctx     context.Context
	self    string
	knative *versioned.Clientset
	routes  *table

	mu    sync.Mutex // protects the following fields
	all   map[string]*v1alpha1.Ingress
	hash  map[string]string // hash of the version that the last probe requested
	ready map[string]bool
	stop  map[string]context.CancelFunc
}

func newProber(ctx context.Context, self string, knative *versioned.Clientset, routes *table) *prober {
	return &prober{ctx: ctx, self: self, knative: knative, routes: routes, all: map[string]*v1alpha1.Ingress{},
		hash: map[string]string{}, ready: map[string]bool{}, stop: map[string]context.CancelFunc{}}
}

// update processes a new, changed or resynchronized Ingress.
func (p *prober) update(i *v1alpha1.Ingress) {
	if i.Annotations["networking.knative.dev/ingress.class"] != class {
		return
	}
	hash, err := kingress.InsertProbe(i.DeepCopy())
	if err != nil {
		log.Print(err)
		return
	}
	key := i.Namespace + "/" + i.Name
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hash[key] == hash {
		if p.ready[key] {
			go p.mark(i.Namespace, i.Name, hash) // mark the Ingress again, because another client may have removed the status
		}
		return
	}
	p.all[key], p.hash[key], p.ready[key] = i.DeepCopy(), hash, false
	p.routes.set(p.all)
	if stop := p.stop[key]; stop != nil {
		stop()
	}
	var ctx context.Context
	ctx, p.stop[key] = context.WithCancel(p.ctx)
	go p.probe(ctx, i, hash)
}

// remove removes an Ingress.
func (p *prober) remove(i *v1alpha1.Ingress) {
	key := i.Namespace + "/" + i.Name
	p.mu.Lock()
	defer p.mu.Unlock()
	if stop := p.stop[key]; stop != nil {
		stop()
	}
	delete(p.all, key)
	delete(p.hash, key)
	delete(p.ready, key)
	delete(p.stop, key)
	p.routes.set(p.all)
}

// probe sends requests for each host of an Ingress to this program, until each response
// contains the hash of the current version.
func (p *prober) probe(ctx context.Context, i *v1alpha1.Ingress, hash string) {
	begun := time.Now()
	for _, rule := range i.Spec.Rules {
		for _, host := range rule.Hosts {
			for last := ""; ; time.Sleep(between) {
				err := p.ask(ctx, host, hash)
				if ctx.Err() != nil {
					return
				}
				if err == nil {
					break
				}
				if err.Error() != last {
					last = err.Error()
					log.Printf("probe %s/%s %s: %s", i.Namespace, i.Name, host, last)
				}
			}
		}
	}
	log.Printf("%s/%s is ready, probes took %d ms", i.Namespace, i.Name, time.Since(begun).Milliseconds())
	p.mu.Lock()
	p.ready[i.Namespace+"/"+i.Name] = true
	p.mu.Unlock()
	p.mark(i.Namespace, i.Name, hash)
}

func (p *prober) ask(ctx context.Context, host, hash string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.self+"/healthz", nil)
	if err != nil {
		return err
	}
	r.Host = host
	r.Header.Set("User-Agent", header.IngressReadinessUserAgent)
	r.Header.Set(header.ProbeKey, header.ProbeValue)
	r.Header.Set(header.HashKey, header.HashValueOverride)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if got := a.Header.Get(header.HashKey); a.StatusCode != http.StatusOK || got != hash {
		body, _ := io.ReadAll(io.LimitReader(a.Body, 200))
		return fmt.Errorf("status %d, hash %q of %q: %q", a.StatusCode, got, hash, body)
	}
	return nil
}

// mark sets the status of an Ingress to ready unless the Ingress has changed since it was
// probed. It retries after conflicts.
func (p *prober) mark(namespace, name, hash string) {
	ingresses := p.knative.NetworkingV1alpha1().Ingresses(namespace)
	for range 10 {
		now, err := ingresses.Get(p.ctx, name, metav1.GetOptions{})
		if err != nil {
			return
		}
		if is, err := kingress.InsertProbe(now.DeepCopy()); err != nil || is != hash {
			return
		}
		before := now.DeepCopy()
		us := []v1alpha1.LoadBalancerIngressStatus{{DomainInternal: gateway}}
		now.Status.InitializeConditions()
		now.Status.MarkNetworkConfigured()
		now.Status.MarkLoadBalancerReady(us, us)
		now.Status.ObservedGeneration = now.Generation
		if equality.Semantic.DeepEqual(before.Status, now.Status) {
			return
		}
		if _, err = ingresses.UpdateStatus(p.ctx, now, metav1.UpdateOptions{}); err == nil {
			return
		}
		log.Print(err)
	}
}
