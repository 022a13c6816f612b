// Package inject puts a queue-proxy into a pod, and takes it out again.
//
// [Inject] is a pure function: a pod's template and [Options] in, an [Outcome] with a
// list of [Change]s out. The same input gives the same bytes, on any day, because a
// Deployment rolls when its template changes and a kubelet restarts containers whose
// spec changes. What the injector did stands in one annotation of the pod, by which
// [Uninject] takes it back.
//
// What is changed is written in one place, (*injection).run, in the order of the pod's
// life. Everything around it is about where pods come from: pkg/inject/manifest reads
// and writes streams of YAML, pkg/inject/webhook answers an API server. Both apply the
// same changes.
package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"github.com/queue-proxy/queue-proxy/pkg/printable"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
)

// sidecarName is the name of the container that is added.
const sidecarName = "queue-proxy"

// mostContainers bounds the work for one pod, which grows with the square of them. No
// kubelet would run so many.
const mostContainers = 500

// mostAnnotations bounds the annotations of a pod, in bytes: TotalAnnotationSizeLimitB of
// apimachinery's pkg/api/validation.
const mostAnnotations = 256 << 10

// A Verdict says what became of an object.
type Verdict string

// The verdicts.
const (
	Injected   Verdict = "injected"
	Uninjected Verdict = "uninjected"
	Rewritten  Verdict = "rewritten" // a Service that follows its pods
	Skipped    Verdict = "skipped"   // it is left alone, and that is all right
	Refused    Verdict = "refused"   // it is left alone, and somebody must do something
)

// Why an object was skipped or refused. The list is closed: metrics and exit codes
// build on it.
const (
	OptedOut        = "opted-out"
	AlreadyInjected = "already-injected"
	HasQueueProxy   = "has-queue-proxy"
	Knative         = "knative"
	MirrorPod       = "mirror-pod"
	HostNetwork     = "host-network"
	Windows         = "windows"
	Ends            = "ends" // a pod of a job, which a sidecar would keep from ending
	NoPort          = "no-port"
	NotHTTP         = "not-http"
	NotInjected     = "not-injected"
	NoPods          = "no-pods"
	SecondStep      = "second-step" // a Service that follows when its pods have rolled

	Unreadable     = "unreadable"
	BadOption      = "bad-option"
	Locked         = "locked"
	WhichContainer = "which-container"
	WhichPort      = "which-port"
	PortTaken      = "port-taken"
	BadProbe       = "bad-probe"
	SpeaksTLS      = "speaks-tls"
	BadStatus      = "bad-status"
	Unsure         = "unsure"    // the option sure requires more evidence
	TooLarge       = "too-large" // of the webhook
)

// reasonTexts are sentences about the reasons, for where nothing that a pod says may stand.
var reasonTexts = map[string]string{
	OptedOut:        "they say that they want none.",
	AlreadyInjected: "they have one.",
	HasQueueProxy:   "they have a container of that name, which was not injected.",
	Knative:         "Knative adds it to its pods itself.",
	MirrorPod:       "a kubelet runs them from a file.",
	HostNetwork:     "they are on the network of their node, where two such pods could not share a port.",
	Windows:         "its image is for Linux.",
	Ends:            "their restartPolicy lets them end, and a sidecar would keep them from it; the option mode=native does not.",
	NoPort:          "no container declares a TCP port; the options container and port name one.",
	NotHTTP:         "no port of theirs seems to be for HTTP; the option port says that one is.",
	NotInjected:     "there is nothing to take back.",
	NoPods:          "it makes no pods.",
	SecondStep:      "it is rewritten when its pods have rolled.",
	Unaffected:      "nothing of it concerns the sidecar.",

	Unreadable:     "the pod cannot be read, or Kubernetes would refuse it.",
	BadOption:      "an annotation or label of ours is misspelt, or has a value that it cannot have.",
	Locked:         "an annotation says an option that is locked by whoever runs the injector.",
	WhichContainer: "several containers could be meant; the option container names one.",
	WhichPort:      "several ports could be meant; the option port names one.",
	PortTaken:      "a port that the sidecar needs is taken.",
	BadProbe:       "a readiness probe is one that Kubernetes would not take.",
	SpeaksTLS:      "the app speaks TLS on its port, and the sidecar speaks plain HTTP to it.",
	BadStatus:      "the annotation queue-proxy.dev/status is not what an injection leaves.",
	Unsure:         "the evidence for the port is weaker than the option sure requires; name the port http, or set the option port.",
	TooLarge:       "the pod is too large to look at.",
}

// ReasonText is a sentence about a reason, which holds nothing of any object; "" for a word
// that is no reason.
func ReasonText(reason string) string { return reasonTexts[reason] }

// An Outcome is what became of one object.
type Outcome struct {
	Verdict  Verdict
	Reason   string   // one of the words above; "" where something was done
	Text     string   // one line for people
	Changes  []Change // of the object; nil where nothing was done
	Notes    []string // what the changes are and why, a sentence each
	Warnings []string // what somebody should look at, a sentence each

	// Where Verdict is Injected.
	Container   string // the app's
	AppPort     int32  // where it listens
	PortName    string // by which Services find that port, and from now on the sidecar's; "" for none
	ServingPort int32  // where the sidecar listens for it
	Placeholder bool   // nobody has chosen the sidecar's image: see [Options.IsPlaceholder]
	native      bool   // so its name finds it since Kubernetes 1.33 only

	resources corev1.ResourceRequirements // the sidecar's
	shares    bool                        // the pod has resources for all of its containers

	Ports      []Port     // the ports of the decision, at most 50
	Confidence Confidence // of the port, if Verdict is Injected
	Missing    string     // information that would increase the confidence or resolve the error; may be empty

	has *Outcome // of pods that have a sidecar already: those four and native
}

// sidecar is the outcome of an injection that is done: this one, or the earlier one of pods
// that have a sidecar already. nil is none.
func (o *Outcome) sidecar() *Outcome {
	if o.Verdict == Injected {
		return o
	}
	return o.has
}

// decided ends an injection with an outcome.
type decided struct{ Outcome }

func (d *decided) Error() string { return d.Text }

func skip(reason, format string, args ...any) error { return decide(Skipped, reason, format, args) }

func refuse(reason, format string, args ...any) error { return decide(Refused, reason, format, args) }

func decide(v Verdict, reason, format string, args []any) error {
	const longest = 1000 // bytes, because the text can quote the object
	return &decided{Outcome{Verdict: v, Reason: reason, Text: printable.Truncate(fmt.Sprintf(format, args...), longest)}}
}

// Inject says how a queue-proxy gets into a pod. template is a map with a pod's
// metadata and spec, as [Decode] returns it: a pod, or a workload's template. It is not
// changed. said are options that the annotations of the template may overrule; nil is
// none. services are what Services say of the pods, for who knows them.
//
// Its Changes are made by [Apply].
func Inject(template any, said Options, services ...ServicePort) Outcome {
	in := &injection{editor: editor{object: runtime.DeepCopyJSONValue(template)}, hints: map[string]*hints{}}
	in.readServices(services)
	err := in.read(template)
	if err == nil {
		err = in.run(said)
	}
	if d, is := errors.AsType[*decided](err); is {
		d.Warnings = in.out.Warnings
		d.has, d.Ports, d.Missing = in.out.has, in.out.Ports, in.out.Missing
		return d.Outcome
	}
	in.out.Verdict = Injected
	in.out.Changes = in.changes
	return in.out
}

// readServices stores the TCP ports of the Services.
func (in *injection) readServices(all []ServicePort) {
	for _, s := range all {
		if s.Protocol == "" || s.Protocol == corev1.ProtocolTCP {
			in.services = append(in.services, s)
		}
	}
	if len(in.services) == 0 && len(all) > 0 {
		in.noTCP, in.noTCPProtocol = all[0].Service, string(all[0].Protocol)
	}
}

// An injection is one pod on its way.
type injection struct {
	editor
	meta metav1.ObjectMeta // as they were
	pod  corev1.PodSpec

	services             []ServicePort           // TCP ports of the Services of the pod
	noTCP, noTCPProtocol string                  // name and protocol of a Service, if no Service has a TCP port
	routes               map[route][]ServicePort // Service ports by the container and the port that they reach
	unrouted             []ServicePort           // Service ports with an unknown container
	placeholders         []ServicePort           // undeclared ports of headless Services that the pod does not use
	hints                map[string]*hints       // by container name: see hintsOf
	behind               map[int32][]upstream    // proxies by the port of the server behind them: see upstreams

	options Options
	native  bool
	app     *corev1.Container
	port    corev1.ContainerPort // the app's; Name is "" for none
	found   string               // the source of an undeclared port, or ""
	ports   ports                // the sidecar's
	probes  []probe.Probe        // that the sidecar runs
	timings corev1.Probe         // of those who ask it
	settled settled              // its settings

	out Outcome
}

// run looks, chooses and changes.
func (in *injection) run(said Options) error {
	for _, step := range []func() error{
		in.mayHaveSidecar,
		func() error { return in.readOptions(said) },
		in.canHaveSidecar,
		in.chooseApp,
		in.holdNameFree,
		in.holdToPlainText,
		in.warnOfPodAddress,
		in.choosePorts,
		in.moveProbes,
		in.settle,
		in.beginStatus,
		in.annotateMetrics,
		in.swapPort,
		in.takeReadinessProbes,
		in.holdApp,
		in.lengthenGrace,
		in.addSidecar,
		in.endStatus,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if in.err != nil {
		return refuse(Unreadable, "a pod that cannot be changed: %v", in.err)
	}
	done := recognize(in.object)
	in.out.Container, in.out.AppPort, in.out.PortName = in.app.Name, in.port.ContainerPort, done.PortName
	in.out.ServingPort, in.out.native = in.ports.serving, in.native
	in.out.Placeholder = in.options.IsPlaceholder()
	in.out.Text = fmt.Sprintf("requests for %s on %d now pass the sidecar on %d", in.app.Name, in.out.AppPort, in.out.ServingPort)
	if in.found != "" {
		in.out.Text += fmt.Sprintf("; port %d is not declared, but %s", in.out.AppPort, in.found)
	}
	return nil
}

func (in *injection) note(format string, args ...any) {
	in.out.Notes = append(in.out.Notes, fmt.Sprintf(format, args...))
}

func (in *injection) warn(format string, args ...any) {
	in.out.Warnings = append(in.out.Warnings, fmt.Sprintf(format, args...))
}

// read decodes what the rest reads; fields that this version of Kubernetes' types does
// not know stay in the object.
func (in *injection) read(template any) error {
	t, err := decodeTemplate(template)
	if err != nil {
		return refuse(Unreadable, "not a pod: %v", err)
	}
	in.meta, in.pod = t.ObjectMeta, t.Spec
	return in.checkAnnotations(0)
}

// checkAnnotations refuses more annotations than Kubernetes takes: those of the pod, and
// so many bytes of ours.
func (in *injection) checkAnnotations(ours int) error {
	size := ours
	for key, value := range in.meta.Annotations {
		size += len(key) + len(value)
	}
	switch {
	case size <= mostAnnotations:
		return nil
	case ours == 0:
		return refuse(Unreadable, "annotations of %d bytes: Kubernetes takes %d", size, mostAnnotations)
	}
	return refuse(Unreadable, "annotations of %d bytes, with what takes the injection back: Kubernetes takes %d", size, mostAnnotations)
}

// fields are the keys of a map that are read, and what is read below them; nil is all of it.
type fields map[string]fields

// What is read of a pod. Nothing else is decoded into Kubernetes' types, in which a volume
// of two bytes takes 250, and a quantity of twenty takes minutes (see checkQuantities).
var (
	resourceFields  = fields{"requests": nil, "limits": nil}
	containerFields = fields{
		"name": nil, "image": nil, "ports": nil, "resources": resourceFields, "readinessProbe": nil, "livenessProbe": nil, "startupProbe": nil, "lifecycle": nil, "restartPolicy": nil,
	}
	templateFields = fields{
		"metadata": {"labels": nil, "annotations": nil},
		"spec": {
			"containers": containerFields, "initContainers": containerFields, "hostNetwork": nil, "os": nil, "nodeSelector": nil,
			"affinity":      {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": nil}},
			"restartPolicy": nil, "terminationGracePeriodSeconds": nil, "securityContext": {"runAsUser": nil}, "resources": resourceFields,
		},
	}
)

// pick is a map with some of its keys, or a list of such maps, and anything else as it is: what is
// not as it should be is left for the decoder to report.
func pick(node any, read fields) any {
	if read == nil {
		return node
	}
	switch node := node.(type) {
	case map[string]any:
		picked := map[string]any{}
		for key, below := range read {
			if v, has := node[key]; has {
				picked[key] = pick(v, below)
			}
		}
		return picked
	case []any:
		all := make([]any, len(node))
		for i, item := range node {
			all[i] = pick(item, read)
		}
		return all
	}
	return node
}

// decodeTemplate decodes what is read of a pod's template.
func decodeTemplate(template any) (*corev1.PodTemplateSpec, error) {
	if _, ok := template.(map[string]any); !ok {
		return nil, errors.New("not a map")
	}
	containers := slices.Concat(listAt(template, "spec", "containers"), listAt(template, "spec", "initContainers"))
	if n := len(containers); n > mostContainers {
		return nil, fmt.Errorf("%d containers: a pod of at most %d can be injected", n, mostContainers)
	}
	if err := checkQuantities(at(template, "spec", "resources"), containers); err != nil {
		return nil, err
	}
	read := pick(template, templateFields)
	if n := textsOf(read); n > mostTexts {
		return nil, fmt.Errorf("%d bytes of labels, annotations, ports, probes and hooks: more than %d", n, mostTexts)
	}
	t := new(corev1.PodTemplateSpec)
	return t, kjson.UnmarshalCaseSensitivePreserveInts(encode(read), t)
}

// mostTexts bounds the texts of what is read of a pod, in bytes: some are written again
// several times. Kubernetes' own bound for a whole pod is hardly more (etcd's 1.5 MiB).
const mostTexts = 1 << 20

// textsOf is how long the texts below a node are together.
func textsOf(node any) int {
	n := 0
	switch node := node.(type) {
	case map[string]any:
		for key, child := range node {
			n += len(key) + textsOf(child)
		}
	case []any:
		for _, child := range node {
			n += textsOf(child)
		}
	case string:
		n = len(node)
	case json.Number:
		n = len(node)
	}
	return n
}

// checkQuantities refuses resources, of a pod and its containers, that would take long to read
// or to compare: to bring 1 and 1e99999999 to the same exponent takes a minute.
func checkQuantities(pod any, containers []any) error {
	if err := checkResources(pod, "the pod"); err != nil {
		return err
	}
	for _, c := range containers {
		if err := checkResources(at(c, "resources"), fmt.Sprintf("container %.64q", text(c, "name"))); err != nil {
			return err
		}
	}
	return nil
}

func checkResources(resources any, of string) error {
	for _, field := range []string{"requests", "limits"} {
		amounts, _ := at(resources, field).(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(amounts)) {
			amount := text(amounts, name)
			if err := isShortQuantity(amount); err != nil {
				return fmt.Errorf("%s: resources.%s: %.64q: %w", of, field, name, err)
			}
		}
	}
	return nil
}

// mayHaveSidecar looks for those who have one, or do not want one.
func (in *injection) mayHaveSidecar() error {
	has := hasContainer(in.pod, sidecarName)
	status, injected := in.meta.Annotations[Prefix+statusKey]
	switch {
	case has && injected:
		in.out.has = recognize(in.object)
		return skip(AlreadyInjected, "%s", describeStatus(status))
	case injected:
		return refuse(BadStatus, "the annotation %s%s is there, but no container %s; take the annotation out", Prefix, statusKey, sidecarName)
	case has:
		return skip(HasQueueProxy, "a container is already called %s", sidecarName)
	case in.meta.Labels["serving.knative.dev/revision"] != "":
		return skip(Knative, "Knative adds the queue-proxy to its pods itself; see deploy/knative")
	case in.meta.Annotations["kubernetes.io/config.mirror"] != "":
		return skip(MirrorPod, "a kubelet runs it from a file, and nothing here changes that")
	}
	for _, said := range []string{in.meta.Labels[Prefix+injectOption], in.meta.Annotations[Prefix+injectOption]} {
		if isFalse(said) {
			return skip(OptedOut, "%s%s says %s", Prefix, injectOption, said)
		}
	}
	return nil
}

func hasContainer(pod corev1.PodSpec, name string) bool {
	called := func(c corev1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(pod.Containers, called) || slices.ContainsFunc(pod.InitContainers, called)
}

func (in *injection) readOptions(said Options) error {
	if key, name, is := said.overruled(in.meta.Annotations); is {
		return refuse(Locked, "annotation %s: the option %s is locked by whoever runs the injector; take the annotation out", key, name)
	}
	if all := said.locked(); len(all) > 0 {
		in.note("no annotation may say the options %s: they are locked", strings.Join(all, ", "))
	}
	var err error
	if in.options, err = said.with(in.meta.Annotations); err != nil {
		return refuse(BadOption, "%v", err)
	}
	if said := in.meta.Labels[Prefix+injectOption]; said != "" {
		if err := isBoolean(said); err != nil {
			return refuse(BadOption, "label %s%s: %v", Prefix, injectOption, err)
		}
	}
	for key := range in.meta.Labels {
		if strings.HasPrefix(key, Prefix) && key != Prefix+injectOption {
			return refuse(BadOption, "%v", unknown("label", key, []string{Prefix + injectOption}))
		}
	}
	if text := in.options.get(injectOption); isFalse(text) {
		return skip(OptedOut, "the option %s says %s", injectOption, text)
	}
	in.native = in.options.get(modeOption) == modeNative
	return nil
}

// canHaveSidecar looks for pods in which one cannot work.
func (in *injection) canHaveSidecar() error {
	switch {
	case in.pod.HostNetwork:
		return skip(HostNetwork, "its ports are the node's, and two such pods could not share one")
	case in.wantsWindows():
		return skip(Windows, "the sidecar's image is for Linux")
	case in.pod.RestartPolicy != "" && in.pod.RestartPolicy != corev1.RestartPolicyAlways && !in.native:
		return skip(Ends, "restartPolicy %s: a sidecar would keep the pod from ending; use the option %s=%s", in.pod.RestartPolicy, modeOption, modeNative)
	case len(in.pod.Containers) == 0:
		return refuse(Unreadable, "a pod without containers")
	}
	return in.checkNames()
}

// wantsWindows reports whether only a node of Windows can run the pod: it says so itself, by
// the labels of nodes, or by each of the terms of which a node must meet one.
func (in *injection) wantsWindows() bool {
	const windows = string(corev1.Windows)
	labels := []string{corev1.LabelOSStable, betaOS}
	if in.pod.OS != nil && in.pod.OS.Name == corev1.Windows || slices.ContainsFunc(labels, func(l string) bool { return in.pod.NodeSelector[l] == windows }) {
		return true
	}
	if in.pod.Affinity == nil || in.pod.Affinity.NodeAffinity == nil || in.pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	terms := in.pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return slices.Contains(labels, e.Key) && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 && e.Values[0] == windows
		})
	})
}

// betaOS is the label of the system that nodes had before [corev1.LabelOSStable], and have still.
const betaOS = "beta.kubernetes.io/os"

// checkNames returns an error for names and numbers of ports that Kubernetes does not accept. The changes contain the names,
// and they find containers and ports by them. An API server calls webhooks before it validates a pod.
func (in *injection) checkNames() error {
	seen := map[string]bool{}
	for _, c := range slices.Concat(in.pod.Containers, in.pod.InitContainers) {
		if seen[c.Name] || len(validation.IsDNS1123Label(c.Name)) > 0 {
			return refuse(Unreadable, "a container called %.64q: names that Kubernetes takes are needed, each once", c.Name)
		}
		seen[c.Name] = true
		for _, p := range c.Ports {
			if p.Name != "" && len(validation.IsValidPortName(p.Name)) > 0 {
				return refuse(Unreadable, "container %s: a port called %.64q: a name that Kubernetes takes is needed", c.Name, p.Name)
			}
			if p.ContainerPort < 1 || p.ContainerPort > 65535 {
				return refuse(Unreadable, "container %s: containerPort: %d is not in 1..65535", c.Name, p.ContainerPort)
			}
		}
	}
	return nil
}
