package inject

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Pods describes the pods of one workload, for objects that select them by label.
type Pods struct {
	Owner     string // kind and name of the workload, such as Deployment web
	Namespace string // "" if the workload has no namespace
	Labels    map[string]string
	Outcome   Outcome // outcome of the injection
}

// Compact returns the pods with only the part of the outcome that [FollowService], [WatchPolicy]
// and Key read, so that the changes of many pods are not kept in memory.
func (p Pods) Compact() Pods {
	o := &p.Outcome
	p.Outcome = Outcome{Verdict: o.Verdict, Reason: o.Reason, Container: o.Container, AppPort: o.AppPort, PortName: o.PortName, ServingPort: o.ServingPort, native: o.native, existing: o.existing}
	return p
}

// Unaffected is the reason for skipping an object that needs no change for the sidecar.
const Unaffected = "unaffected"

// A Step is the part of the injection that an invocation performs.
type Step string

// The steps. A Service that selects the sidecar port by number cannot reach pods without a sidecar.
// Therefore, such a Service must be rewritten after the rollout of the pods.
const (
	Workloads Step = "workloads" // workloads, and Services that reach pods with and without the sidecar
	Services  Step = "services"  // all Services and workloads
)

// Key returns a string that is equal for pods that [FollowService] handles in the same way. It does
// not depend on labels and namespaces.
func (p *Pods) Key() string {
	o := p.Outcome.sidecar()
	if o == nil {
		return ""
	}
	return fmt.Sprint(o.AppPort, o.ServingPort, o.PortName, o.native)
}

// canShareNamespace reports whether two objects can be in the same namespace. An object without a
// namespace can be in any namespace.
func canShareNamespace(a, b string) bool { return a == b || a == "" || b == "" }

// A ServicePort is a port of a Service.
type ServicePort struct {
	Service     string // name of the Service
	Name        string // may be empty
	Number      int32  // the port that clients connect to
	AppProtocol string // may be empty
	Certificate bool   // the Service requests a serving certificate for its pods
	Terminated  bool   // a load balancer terminates TLS, so the pods receive plain HTTP
	Headless    bool   // clients connect to the pods directly, so the port can be a placeholder
	Target      intstr.IntOrString
	Protocol    corev1.Protocol // "" means TCP
}

// maxNamedServices is the maximum number of Services that the evidence for a port names.
const maxNamedServices = 3

// CompactPorts removes the ports of Services that do not change the result of [Inject]. If
// several ports differ only in the name of their Service, it keeps the first maxNamedServices of
// them. Without CompactPorts, the cost of a pod would grow with the number of its Services.
func CompactPorts(all []ServicePort) []ServicePort {
	type target struct {
		service string
		port    intstr.IntOrString
	}
	plain, tls := map[target]bool{}, map[target]bool{} // target ports for which a Service offers HTTP or HTTPS: see offeredAsBoth
	for _, s := range all {
		if offersTLS(s) {
			tls[target{s.Service, s.Target}] = true
		} else {
			plain[target{s.Service, s.Target}] = true
		}
	}
	seen := map[ServicePort]int{}
	return slices.DeleteFunc(slices.Clone(all), func(s ServicePort) bool {
		key, t := s, target{s.Service, s.Target}
		key.Service = fmt.Sprint(isAside(s, nil), s.Name == s.Service, plain[t] && tls[t])
		if s.Number != 80 && !isHTTPS(s.Number) { // other port numbers are not evidence
			key.Number = 0
		}
		seen[key]++
		return seen[key] > maxNamedServices
	})
}

// A Service contains the selector and the ports of a Kubernetes Service. It contains no ports if
// they already refer to the sidecar.
type Service struct {
	namespace string
	selector  labels.Selector
	ports     []ServicePort
}

// ReadService parses a Service that [Decode] returned. ok is false if the Service is invalid or has
// no selector.
func ReadService(service any) (_ *Service, ok bool) {
	s := new(corev1.Service)
	if err := decodeInto(service, s); err != nil || len(s.Spec.Selector) == 0 {
		return nil, false
	}
	read := &Service{namespace: s.Namespace, selector: labels.SelectorFromSet(s.Spec.Selector)}
	if _, done := s.Annotations[StatusAnnotation]; done { // the ports already refer to the sidecar
		return read, true
	}
	for _, p := range s.Spec.Ports {
		read.ports = append(read.ports, ServicePort{
			Service: s.Name, Name: p.Name, Number: p.Port, AppProtocol: *cmp.Or(p.AppProtocol, new(string)),
			Certificate: requestsCertificate(s), Terminated: terminatesTLS(s), Headless: s.Spec.ClusterIP == corev1.ClusterIPNone, Target: targetOf(p), Protocol: p.Protocol,
		})
	}
	return read, true
}

// requestsCertificate reports whether a Service requests a serving certificate from OpenShift.
func requestsCertificate(s *corev1.Service) bool {
	return s.Annotations["service.beta.openshift.io/serving-cert-secret-name"] != "" || s.Annotations["service.alpha.openshift.io/serving-cert-secret-name"] != ""
}

// Annotations of cloud providers. balancerTLS matches the certificate or the TLS ports of a load
// balancer. backendProtocol matches the protocol between the load balancer and the pods.
var (
	balancerTLS     = regexp.MustCompile(`load-?balancer.*(ssl|tls|cert)`)
	backendProtocol = regexp.MustCompile(`load-?balancer.*(backend|pool)-?protocol`)
)

// terminatesTLS reports whether the annotations of a Service configure a load balancer that
// terminates TLS.
func terminatesTLS(s *corev1.Service) bool {
	found := false
	for key, value := range s.Annotations {
		if !backendProtocol.MatchString(key) {
			found = found || value != "" && balancerTLS.MatchString(key)
		} else if slices.Contains([]string{"https", "ssl", "tls"}, strings.ToLower(value)) {
			return false
		}
	}
	return found
}

// Selects reports whether the Service selects pods with the given namespace and labels.
func (s *Service) Selects(namespace string, pods map[string]string) bool {
	return canShareNamespace(s.namespace, namespace) && s.selector.Matches(labels.Set(pods))
}

// PortsOf returns the ports of the Service if it selects pods with the given namespace and labels.
// Otherwise, it returns nil.
func (s *Service) PortsOf(namespace string, pods map[string]string) []ServicePort {
	if !s.Selects(namespace, pods) {
		return nil
	}
	return s.ports
}

// targetOf returns the target port of a Service port. The default is the number of the Service
// port, as in Kubernetes.
func targetOf(p corev1.ServicePort) intstr.IntOrString {
	if p.TargetPort.IntVal == 0 && p.TargetPort.StrVal == "" {
		return intstr.FromInt32(p.Port)
	}
	return p.TargetPort
}

// FollowService returns the changes that make a Service send requests to the sidecar instead of the
// application. A change is necessary if the targetPort is the number of the application port. If
// the port has a name, the new targetPort is the name, which refers to the sidecar in injected pods
// and to the application in other pods. Otherwise, it is the number of the sidecar port. service is
// a map, as [Decode] returns it, and is not modified.
//
// A Service that uses the number of the sidecar port does not reach pods without a sidecar.
// Therefore, FollowService does not make this change with the step [Workloads]: no request is lost
// during the rollout, because the Service reaches the application in all pods directly.
//
// selects reports for each element of all whether the Service selects it.
func FollowService(service any, all []Pods, step Step) (_ Outcome, selects []bool) {
	selects = make([]bool, len(all))
	s := new(corev1.Service)
	if err := decodeInto(service, s); err != nil {
		return Outcome{Verdict: Refused, Reason: Unreadable, Text: fmt.Sprintf("invalid Service: %v", err)}, selects
	}
	var selected []Pods
	selector := labels.SelectorFromSet(s.Spec.Selector)
	for i, p := range all {
		if len(s.Spec.Selector) > 0 && canShareNamespace(s.Namespace, p.Namespace) && selector.Matches(labels.Set(p.Labels)) {
			selects[i] = true
			selected = append(selected, p)
		}
	}
	if _, done := s.Annotations[StatusAnnotation]; done {
		return Outcome{Verdict: Skipped, Reason: AlreadyInjected, Text: "the Service already uses the port of the sidecar"}, selects
	}
	injected := slices.IndexFunc(selected, func(p Pods) bool { return p.Outcome.sidecar() != nil })
	if injected < 0 {
		return Outcome{Verdict: Skipped, Reason: Unaffected, Text: "the Service does not select an injected pod"}, selects
	}
	like := selected[injected].Outcome.sidecar()
	to := intstr.FromInt32(like.ServingPort)
	text := fmt.Sprintf("port %d of the sidecar", like.ServingPort)
	if like.PortName != "" && !slices.ContainsFunc(selected, func(p Pods) bool {
		o := p.Outcome.sidecar()
		return o == nil || o.PortName != like.PortName || o.native
	}) {
		to = intstr.FromString(like.PortName)
		text = fmt.Sprintf("%s (port %d of the sidecar)", like.PortName, like.ServingPort)
	}

	e := &editor{object: service, copied: copies{}}
	out := e.followPorts(s, selected, like, to, text)
	switch {
	case e.err != nil:
		out = Outcome{Verdict: Refused, Reason: Unreadable, Text: fmt.Sprintf("edit Service: %v", e.err)}
	case len(e.changes) == 0:
	case to.Type == intstr.Int && step == Workloads:
		out.Reason = SecondStep
		out.Text = fmt.Sprintf("targetPort %d still bypasses the sidecar; after the rollout of the pods, run with --step=services to change it to %s", like.AppPort, text)
	default:
		out.Verdict, out.Reason = Rewritten, ""
		out.Text = fmt.Sprintf("targetPort %d changed to %s", like.AppPort, text)
		if to.Type == intstr.Int {
			out.Warnings = append(out.Warnings, fmt.Sprintf("port %d is not open in pods without a sidecar; apply the Service after the rollout of all pods (see injector status)", like.ServingPort))
		}
		e.changes[0].Value = statusValue("", e.undoChanges())
		if n := len(e.changes[0].Value); n > maxAnnotationBytes {
			return Outcome{Verdict: Refused, Reason: Unreadable, Text: fmt.Sprintf("the status annotation for %d ports exceeds the size limit of annotations", len(e.changes)-1)}, selects
		}
		out.Changes = e.changes
	}
	return out, selects
}

// followPorts replaces the number of the application port in the target ports of a Service with to,
// the name or the number of the sidecar port. text describes to in messages. selected contains the
// pods that the Service selects, and like is the outcome for one of the injected pods. The first
// change is the status annotation.
func (e *editor) followPorts(s *corev1.Service, selected []Pods, like *Outcome, to intstr.IntOrString, text string) Outcome {
	out := Outcome{Verdict: Skipped, Reason: Unaffected, Text: fmt.Sprintf("the Service does not use application port %d", like.AppPort)}
	other := slices.IndexFunc(selected, func(p Pods) bool {
		o := p.Outcome.sidecar()
		return o == nil || o.AppPort != like.AppPort || o.ServingPort != like.ServingPort
	})
	for i, p := range s.Spec.Ports {
		target := targetOf(p)
		if target.StrVal != "" && target.StrVal == like.PortName {
			out.Text = fmt.Sprintf("the Service already uses the port name %s", like.PortName)
			if s.Spec.ClusterIP == corev1.ClusterIPNone {
				out.Warnings = append(out.Warnings, like.headlessWarning())
			}
		}
		if target.StrVal != "" || target.IntVal != like.AppPort || p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			continue
		}
		if other >= 0 {
			out.Text = "the Service selects pods with different ports"
			out.Warnings = append(out.Warnings, fmt.Sprintf("targetPort %d was not changed, because the Service also selects %s, which has a different sidecar port; requests bypass the sidecar",
				like.AppPort, selected[other].Owner))
			continue
		}
		if len(e.changes) == 0 {
			e.set("", "metadata", "annotations", StatusAnnotation)
		}
		e.set(to, "spec", "ports", fmt.Sprintf("#%d", i), "targetPort")
		out.Notes = append(out.Notes, fmt.Sprintf("targetPort changes from application port %d to %s", like.AppPort, text))
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			out.Warnings = append(out.Warnings, like.headlessWarning())
		}
	}
	return out
}

// headlessWarning returns the warning for a headless Service. Its clients connect to the pods
// directly, so a target port has no effect.
func (o *Outcome) headlessWarning() string {
	return fmt.Sprintf("the Service is headless, so clients that connect to port %d of a pod bypass the sidecar; use port %d", o.AppPort, o.ServingPort)
}

// UninjectService returns the changes that revert [FollowService].
func UninjectService(service any) Outcome {
	text, ok := At(service, "metadata", "annotations", StatusAnnotation).(string)
	if !ok {
		return Outcome{Verdict: Skipped, Reason: NotInjected, Text: "not injected"}
	}
	return revertChanges(service, text, serviceTraces)
}

// WatchPolicy returns warnings if a NetworkPolicy permits connections to the application
// port by number, but not to the sidecar port. It examines ingress and egress rules. The
// injector does not change a policy, because the user decides which connections are
// permitted.
func WatchPolicy(policy any, all []Pods) Outcome {
	p := new(networkingv1.NetworkPolicy)
	if err := decodeInto(policy, p); err != nil {
		return Outcome{Verdict: Refused, Reason: Unreadable, Text: fmt.Sprintf("invalid NetworkPolicy: %v", err)}
	}
	out := Outcome{Verdict: Skipped, Reason: NoPods, Text: "NetworkPolicy does not create pods"}
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
	if err != nil {
		return out
	}
	peers := peersOf(p)
	missing := map[string]bool{}
	for i := range all {
		pods := &all[i]
		sidecar := pods.Outcome.sidecar()
		if sidecar == nil {
			continue
		}
		look := func(direction string, rules []rule) {
			if blocksSidecar(rules, sidecar) {
				missing[fmt.Sprintf("the policy allows %s to port %d, but requests for %s now use port %d; add the port", direction, sidecar.AppPort, pods.Owner, sidecar.ServingPort)] = true
			}
		}
		if canShareNamespace(p.Namespace, pods.Namespace) && selector.Matches(labels.Set(pods.Labels)) {
			var in []rule
			for _, r := range p.Spec.Ingress {
				in = append(in, rule{r.From, r.Ports})
			}
			look("ingress", in)
		}
		look("egress", peers.rulesTo(pods))
	}
	out.Warnings = slices.Sorted(maps.Keys(missing))
	return out
}

// A peerSet contains the selectors of the pods to which a policy permits connections.
type peerSet struct {
	policy    *networkingv1.NetworkPolicy
	selectors map[*networkingv1.NetworkPolicyPeer]labels.Selector
}

// peersOf returns the peers in the egress rules of a policy. A peer without a selector matches all
// pods, and a peer with an invalid selector matches none.
func peersOf(p *networkingv1.NetworkPolicy) peerSet {
	peers := peerSet{p, map[*networkingv1.NetworkPolicyPeer]labels.Selector{}}
	for i := range p.Spec.Egress {
		for j := range p.Spec.Egress[i].To {
			to := &p.Spec.Egress[i].To[j]
			selector, err := metav1.LabelSelectorAsSelector(to.PodSelector)
			switch {
			case to.PodSelector == nil:
				selector = labels.Everything()
			case err != nil:
				selector = labels.Nothing()
			}
			peers.selectors[to] = selector
		}
	}
	return peers
}

// rulesTo returns the egress rules that can apply to pods.
func (s peerSet) rulesTo(pods *Pods) (rules []rule) {
	for i := range s.policy.Spec.Egress {
		r := &s.policy.Spec.Egress[i]
		matches := len(r.To) == 0
		for j := 0; j < len(r.To) && !matches; j++ {
			to := &r.To[j]
			matches = canMatchNamespace(to, s.policy.Namespace, pods) && s.selectors[to].Matches(labels.Set(pods.Labels))
		}
		if matches {
			rules = append(rules, rule{r.To, r.Ports})
		}
	}
	return rules
}

// blocksSidecar reports whether a rule admits peers to the application port, but no rule admits the
// same peers to the sidecar port.
func blocksSidecar(rules []rule, sidecar *Outcome) bool {
	return slices.ContainsFunc(rules, func(r rule) bool {
		return admits(r.ports, sidecar.AppPort) && !slices.ContainsFunc(rules, func(other rule) bool {
			return admits(other.ports, sidecar.ServingPort) && (len(other.peers) == 0 || reflect.DeepEqual(other.peers, r.peers))
		})
	})
}

// A rule is an ingress or egress rule of a NetworkPolicy.
type rule struct {
	peers []networkingv1.NetworkPolicyPeer // empty means all peers
	ports []networkingv1.NetworkPolicyPort // empty means all ports
}

// canMatchNamespace reports whether a policy peer can be in the namespace of some pods.
// Addresses and the labels of namespaces are not known.
func canMatchNamespace(to *networkingv1.NetworkPolicyPeer, namespace string, pods *Pods) bool {
	return to.IPBlock == nil && (to.NamespaceSelector != nil || canShareNamespace(namespace, pods.Namespace))
}

// admits reports whether a rule with the given ports permits connections to TCP port n. Named ports
// are ignored.
func admits(ports []networkingv1.NetworkPolicyPort, n int32) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP || p.Port != nil && p.Port.StrVal != "" {
			return false
		}
		return p.Port == nil || p.Port.IntVal == n || p.EndPort != nil && p.Port.IntVal <= n && n <= *p.EndPort
	})
}

// Unserved returns the warning for pods without a Service in the input.
func Unserved(out Outcome) string {
	return fmt.Sprintf("the input contains no Service for the pods; change targetPort %d of their Services to %s, otherwise requests bypass the sidecar", out.AppPort, cmp.Or(out.PortName, decimal(out.ServingPort)))
}
