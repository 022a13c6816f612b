package inject

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	kjson "sigs.k8s.io/json"
)

// Pods are the pods of one workload, for those who find them by their labels.
type Pods struct {
	Owner     string // the workload, as in Deployment web
	Namespace string // "" where the workload does not say
	Labels    map[string]string
	Outcome   Outcome // of the injection
}

// Unaffected is the reason for leaving alone an object that finds the sidecar by itself.
const Unaffected = "unaffected"

// A Step is how far an injection goes.
type Step string

// The steps. A Service that finds the sidecar by its number loses the pods that run without one,
// so it comes when they are gone.
const (
	Workloads Step = "workloads" // and Services that find pods with the sidecar and without
	Services  Step = "services"  // all of it
)

// Key returns a string that is the same for all pods that [FollowService] treats alike. It does not depend on labels and
// namespaces.
func (p *Pods) Key() string {
	o := p.Outcome.sidecar()
	if o == nil {
		return ""
	}
	return fmt.Sprint(o.AppPort, o.ServingPort, o.PortName, o.native)
}

// near reports whether two objects can be in the same namespace: one that does not say
// goes where the other is.
func near(a, b string) bool { return a == b || a == "" || b == "" }

// A ServicePort is what a Service says of a port of the pods that it selects.
type ServicePort struct {
	Service     string // its name
	Name        string // "" for none
	Number      int32  // that clients call
	AppProtocol string // "" for none
	Certificate bool   // the Service asks for a certificate with which its pods serve
	Headless    bool   // clients connect to the pods directly, so the port can be a placeholder
	Target      intstr.IntOrString
	Protocol    corev1.Protocol // "" means TCP
}

// mostNamed is the maximum number of Services that the evidence for a port names.
const mostNamed = 3

// CompactPorts returns the ports of Services without those that do not change the result of [Inject]: all but the first
// mostNamed of the ports that differ only in the name of their Service. Without it, the cost of a pod would grow with the
// number of its Services.
func CompactPorts(all []ServicePort) []ServicePort {
	seen := map[ServicePort]int{}
	return slices.DeleteFunc(slices.Clone(all), func(s ServicePort) bool {
		key := s
		key.Service = fmt.Sprint(isForMetrics(s), s.Name == s.Service)
		if s.Number != 80 && s.Number != 443 { // the only numbers that are evidence
			key.Number = 0
		}
		seen[key]++
		return seen[key] > mostNamed
	})
}

// A Service is the part of one that says which pods it selects, and on which of their app's
// ports they listen.
type Service struct {
	namespace string
	selector  labels.Selector
	ports     []ServicePort
}

// ReadService reads a Service, a map as [Decode] returns it. ok is false where it cannot be
// read, and where it selects no pods.
func ReadService(service any) (_ *Service, ok bool) {
	s := new(corev1.Service)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(encode(service), s); err != nil || len(s.Spec.Selector) == 0 {
		return nil, false
	}
	read := &Service{namespace: s.Namespace, selector: labels.SelectorFromSet(s.Spec.Selector)}
	if _, done := s.Annotations[Prefix+statusKey]; done { // they are those of the sidecar
		return read, true
	}
	for _, p := range s.Spec.Ports {
		read.ports = append(read.ports, ServicePort{
			Service: s.Name, Name: p.Name, Number: p.Port, AppProtocol: *cmp.Or(p.AppProtocol, new(string)),
			Certificate: asksForCertificate(s), Headless: s.Spec.ClusterIP == corev1.ClusterIPNone, Target: targetOf(p), Protocol: p.Protocol,
		})
	}
	return read, true
}

// asksForCertificate reports whether a Service has OpenShift make a certificate with which its
// pods serve.
func asksForCertificate(s *corev1.Service) bool {
	return s.Annotations["service.beta.openshift.io/serving-cert-secret-name"] != "" || s.Annotations["service.alpha.openshift.io/serving-cert-secret-name"] != ""
}

// Selects reports whether the Service selects pods of a namespace with some labels.
func (s *Service) Selects(namespace string, pods map[string]string) bool {
	return near(s.namespace, namespace) && s.selector.Matches(labels.Set(pods))
}

// PortsOf are the Service's ports, if it selects pods of a namespace with some labels.
func (s *Service) PortsOf(namespace string, pods map[string]string) []ServicePort {
	if !s.Selects(namespace, pods) {
		return nil
	}
	return s.ports
}

// targetOf is a port's targetPort, or what Kubernetes fills in.
func targetOf(p corev1.ServicePort) intstr.IntOrString {
	if p.TargetPort.IntVal == 0 && p.TargetPort.StrVal == "" {
		return intstr.FromInt32(p.Port)
	}
	return p.TargetPort
}

// FollowService says how a Service follows its pods: where its targetPort is the number
// of the app's port, requests would still go to the app, past the sidecar. By name, the
// Service needs no change, and it finds pods that have the sidecar and pods that do not
// yet: so that is what it says from now on, where the app's port has one. service is a
// map, as [Decode] returns it, and is not changed.
//
// By number, it finds the pods that have rolled alone. In the first step such a Service is left:
// it finds the app, past the sidecar, in old and new pods, and no request is lost.
//
// selects says, for each of all, whether the Service selects it.
func FollowService(service any, all []Pods, step Step) (_ Outcome, selects []bool) {
	selects = make([]bool, len(all))
	s := new(corev1.Service)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(encode(service), s); err != nil {
		return Outcome{Verdict: Refused, Reason: Unreadable, Text: fmt.Sprintf("not a Service: %v", err)}, selects
	}
	var selected []Pods
	selector := labels.SelectorFromSet(s.Spec.Selector)
	for i, p := range all {
		if len(s.Spec.Selector) > 0 && near(s.Namespace, p.Namespace) && selector.Matches(labels.Set(p.Labels)) {
			selects[i] = true
			selected = append(selected, p)
		}
	}
	if _, done := s.Annotations[Prefix+statusKey]; done {
		return Outcome{Verdict: Skipped, Reason: AlreadyInjected, Text: "it follows its pods already"}, selects
	}
	injected := slices.IndexFunc(selected, func(p Pods) bool { return p.Outcome.sidecar() != nil })
	if injected < 0 {
		return Outcome{Verdict: Skipped, Reason: Unaffected, Text: "it selects no pod that was injected"}, selects
	}
	like := selected[injected].Outcome.sidecar()
	to := intstr.FromInt32(like.ServingPort)
	text := fmt.Sprintf("the sidecar's %d", like.ServingPort)
	if like.PortName != "" && !slices.ContainsFunc(selected, func(p Pods) bool {
		o := p.Outcome.sidecar()
		return o == nil || o.PortName != like.PortName || o.native
	}) {
		to = intstr.FromString(like.PortName)
		text = fmt.Sprintf("%s, the sidecar's %d", like.PortName, like.ServingPort)
	}

	e := &editor{object: runtime.DeepCopyJSONValue(service)}
	out := e.followPorts(s, selected, like, to, text)
	switch {
	case e.err != nil:
		out = Outcome{Verdict: Refused, Reason: Unreadable, Text: fmt.Sprintf("a Service that cannot be changed: %v", e.err)}
	case len(e.changes) == 0:
	case to.Type == intstr.Int && step == Workloads:
		out.Reason = SecondStep
		out.Text = fmt.Sprintf("targetPort %d finds the app in old and new pods, past the sidecar; when they have rolled, --step=services makes it %s", like.AppPort, text)
	default:
		out.Verdict, out.Reason = Rewritten, ""
		out.Text = fmt.Sprintf("targetPort %d is now %s", like.AppPort, text)
		if to.Type == intstr.Int {
			out.Warnings = append(out.Warnings, fmt.Sprintf("pods without a sidecar have nothing on %d: apply it when all have rolled, as injector status says", like.ServingPort))
		}
		e.changes[0].Value = statusValue("", e.back())
		if n := len(e.changes[0].Value); n > mostAnnotations {
			return Outcome{Verdict: Refused, Reason: Unreadable, Text: fmt.Sprintf("%d ports to rewrite: what takes that back is longer than annotations may be", len(e.changes)-1)}, selects
		}
		out.Changes = e.changes
	}
	return out, selects
}

// followPorts has the ports of a Service lead to the sidecar of the pods that it selects,
// which is like another one: to a port, as text says. Its changes begin with a status.
func (e *editor) followPorts(s *corev1.Service, selected []Pods, like *Outcome, to intstr.IntOrString, text string) Outcome {
	out := Outcome{Verdict: Skipped, Reason: Unaffected, Text: "it finds the sidecar by the port's name, or another port"}
	other := slices.IndexFunc(selected, func(p Pods) bool {
		o := p.Outcome.sidecar()
		return o == nil || o.AppPort != like.AppPort || o.ServingPort != like.ServingPort
	})
	for i, p := range s.Spec.Ports {
		target := targetOf(p)
		if target.StrVal != "" || target.IntVal != like.AppPort || p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			continue
		}
		if other >= 0 {
			out.Warnings = append(out.Warnings, fmt.Sprintf("targetPort %d is left: it also selects %s, whose port is not the sidecar's; requests pass the sidecar by",
				like.AppPort, selected[other].Owner))
			continue
		}
		if len(e.changes) == 0 {
			e.set("", "metadata", "annotations", Prefix+statusKey)
		}
		e.set(to, "spec", "ports", fmt.Sprintf("#%d", i), "targetPort")
		out.Notes = append(out.Notes, fmt.Sprintf("targetPort goes from the app's %d to %s", like.AppPort, text))
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			out.Warnings = append(out.Warnings, fmt.Sprintf("it is headless: clients that call a pod on %d pass the sidecar by; let them use %d", like.AppPort, like.ServingPort))
		}
	}
	return out
}

// UninjectService takes back what [FollowService] did.
func UninjectService(service any) Outcome {
	text, ok := at(service, "metadata", "annotations", Prefix+statusKey).(string)
	if !ok {
		return Outcome{Verdict: Skipped, Reason: NotInjected, Text: "there is nothing to take back"}
	}
	return takeBack(service, text, serviceTraces)
}

// WatchPolicy says whether a NetworkPolicy that lets requests in to the app's port by
// number, or out to it, would keep them from the sidecar. It changes nothing: who may
// speak with a pod is not ours to decide.
func WatchPolicy(policy any, all []Pods) Outcome {
	p := new(networkingv1.NetworkPolicy)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(encode(policy), p); err != nil {
		return Outcome{Verdict: Refused, Reason: Unreadable, Text: fmt.Sprintf("not a NetworkPolicy: %v", err)}
	}
	out := Outcome{Verdict: Skipped, Reason: NoPods, Text: "a NetworkPolicy makes no pods"}
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
			if shutOut(rules, sidecar) {
				missing[fmt.Sprintf("it lets %s to port %d, but requests for %s now come to %d: add that port", direction, sidecar.AppPort, pods.Owner, sidecar.ServingPort)] = true
			}
		}
		if near(p.Namespace, pods.Namespace) && selector.Matches(labels.Set(pods.Labels)) {
			var in []rule
			for _, r := range p.Spec.Ingress {
				in = append(in, rule{r.From, r.Ports})
			}
			look("in", in)
		}
		look("out", peers.rulesTo(pods))
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
			matches = mayBe(to, s.policy.Namespace, pods) && s.selectors[to].Matches(labels.Set(pods.Labels))
		}
		if matches {
			rules = append(rules, rule{r.To, r.Ports})
		}
	}
	return rules
}

// shutOut reports whether a rule admits peers to the app's port that no rule admits to the
// sidecar's. The same peers may have that by another rule.
func shutOut(rules []rule, sidecar *Outcome) bool {
	return slices.ContainsFunc(rules, func(r rule) bool {
		return admits(r.ports, sidecar.AppPort) && !slices.ContainsFunc(rules, func(other rule) bool {
			return admits(other.ports, sidecar.ServingPort) && (len(other.peers) == 0 || reflect.DeepEqual(other.peers, r.peers))
		})
	})
}

// A rule is one of a NetworkPolicy's, in or out.
type rule struct {
	peers []networkingv1.NetworkPolicyPeer // none: everybody
	ports []networkingv1.NetworkPolicyPort // none: all
}

// mayBe reports whether a peer of a policy can be in the namespace of some pods. The labels of namespaces, and addresses,
// are not known.
func mayBe(to *networkingv1.NetworkPolicyPeer, namespace string, pods *Pods) bool {
	return to.IPBlock == nil && (to.NamespaceSelector != nil || near(namespace, pods.Namespace))
}

// admits reports whether a rule lets in to a port by its number: all ports, of TCP too, are it.
func admits(ports []networkingv1.NetworkPolicyPort, n int32) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP || p.Port != nil && p.Port.StrVal != "" {
			return false
		}
		return p.Port == nil || p.Port.IntVal == n || p.EndPort != nil && p.Port.IntVal <= n && n <= *p.EndPort
	})
}

// Unserved is the warning for pods of which no Service is at hand.
func Unserved(out Outcome) string {
	return fmt.Sprintf("no Service is at hand: one that says targetPort %d must say %s, or requests pass the sidecar by", out.AppPort, cmp.Or(out.PortName, decimal(out.ServingPort)))
}
