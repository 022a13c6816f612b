// Command ingress replaces Kourier, Istio or Contour in the test cluster. It probes the path to
// the pods, marks Ingresses of its class as ready, and forwards requests by host, path, header
// and percentage over HTTP/1.1, HTTP/2 and TLS. It also issues the certificates that Knative
// requests, as cert-manager does.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	"knative.dev/networking/pkg/client/clientset/versioned"
	"knative.dev/networking/pkg/client/informers/externalversions"
)

const (
	// class is the class of ingresses and certificates in config-network.
	class = "test.ingress.networking.knative.dev"
	// gateway is the Service of this program.
	gateway = "gateway.knative-serving.svc.cluster.local"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file for the API server")
	listen := flag.String("listen", "198.18.0.1:80", "listen address")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *kubeconfig, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "ingress:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, kubeconfig, listen string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 500, 1000
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	knative, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	issuer, err := newIssuer(ctx, kube, knative)
	if err != nil {
		return err
	}
	routes := newTable(kube, issuer.authority)
	p := newProber(ctx, "http://"+listen, knative, routes)

	factory := externalversions.NewSharedInformerFactory(knative, time.Minute)
	if _, err := factory.Networking().V1alpha1().Ingresses().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { p.update(o.(*v1alpha1.Ingress)) },
		UpdateFunc: func(_, o any) { p.update(o.(*v1alpha1.Ingress)) },
		DeleteFunc: func(o any) {
			if i, ok := o.(*v1alpha1.Ingress); ok {
				p.remove(i)
			}
		},
	}); err != nil {
		return err
	}
	if _, err := factory.Networking().V1alpha1().Certificates().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { issuer.update(o.(*v1alpha1.Certificate)) },
		UpdateFunc: func(_, o any) { issuer.update(o.(*v1alpha1.Certificate)) },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())

	var both http.Protocols
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	s := &http.Server{Addr: listen, Handler: routes, Protocols: &both, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { s.Close() })
	if err := s.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}
