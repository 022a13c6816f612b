// Command dns serves the DNS names of Services in the test cluster instead of CoreDNS. It
// serves IPv4 addresses over UDP. It answers queries for other names with NXDOMAIN.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	suffix = ".svc.cluster.local."
	ttl    = 5 // time to live of a record in seconds; it is short because the addresses of headless Services change
	depth  = 4 // maximum number of CNAME records for a name
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file for the API server")
	listen := flag.String("listen", "198.18.0.1:53", "listen address")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *kubeconfig, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "dns:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, kubeconfig, listen string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, time.Hour)
	z := &zone{factory.Core().V1().Services().Lister(), factory.Discovery().V1().EndpointSlices().Lister()}
	factory.Core().V1().Services().Informer()
	factory.Discovery().V1().EndpointSlices().Informer()
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	l, err := net.ListenPacket("udp4", listen)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	for b := make([]byte, 1500); ; {
		n, from, err := l.ReadFrom(b)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if a := z.answer(b[:n]); a != nil {
			_, _ = l.WriteTo(a, from) // ignore errors, because clients retry if there is no response
		}
	}
}

// A zone resolves the names of the Services in the cluster.
type zone struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

// answer returns the response to a packet, or nil if the packet is not a query.
func (z *zone) answer(packet []byte) []byte {
	var q dnsmessage.Message
	if q.Unpack(packet) != nil || len(q.Questions) != 1 || q.Response {
		return nil
	}
	question := q.Questions[0]
	a := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.ID, Response: true, Authoritative: true, RecursionDesired: q.RecursionDesired, RecursionAvailable: true},
		Questions: q.Questions,
	}
	records, ok := z.resolve(strings.ToLower(question.Name.String()), depth)
	if !ok {
		a.RCode = dnsmessage.RCodeNameError
	}
	for _, r := range records {
		if r.Header.Type == question.Type || r.Header.Type == dnsmessage.TypeCNAME {
			a.Answers = append(a.Answers, r)
		}
	}
	text, err := a.Pack()
	if err != nil {
		return nil
	}
	return text
}

// resolve returns the records of a name and reports whether the name exists.
func (z *zone) resolve(name string, depth int) (records []dnsmessage.Resource, ok bool) {
	base, ok := strings.CutSuffix(name, suffix)
	service, namespace, two := strings.Cut(base, ".")
	if !ok || !two || depth == 0 {
		return nil, false
	}
	s, err := z.services.Services(namespace).Get(service)
	if err != nil {
		return nil, false
	}
	owner, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, false
	}
	head := dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET, TTL: ttl}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		target := strings.TrimSuffix(s.Spec.ExternalName, ".") + "."
		other, err := dnsmessage.NewName(target)
		if err != nil {
			return nil, false
		}
		head.Type = dnsmessage.TypeCNAME
		more, _ := z.resolve(target, depth-1)
		return append([]dnsmessage.Resource{{Header: head, Body: &dnsmessage.CNAMEResource{CNAME: other}}}, more...), true
	}
	head.Type = dnsmessage.TypeA
	for _, address := range z.addresses(s) {
		if ip := net.ParseIP(address).To4(); ip != nil {
			records = append(records, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: [4]byte(ip)}})
		}
	}
	return records, true
}

// addresses returns the address of the Service, or the addresses of its ready pods if it is
// headless.
func (z *zone) addresses(s *corev1.Service) []string {
	if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone {
		return []string{s.Spec.ClusterIP}
	}
	slices, err := z.slices.EndpointSlices(s.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: s.Name}))
	if err != nil {
		return nil
	}
	var all []string
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				all = append(all, e.Addresses...)
			}
		}
	}
	return all
}
