// Package inject adds a queue-proxy to a pod, and removes it again.
//
// [Inject] is a pure function. It takes a pod template and [Options], and returns an
// [Outcome] with a list of [Change]s. The same input always results in the same bytes.
// Otherwise, a second injection would make a Deployment roll out new pods, or make a
// kubelet restart containers. An annotation of the pod records how [Uninject] reverts the
// changes.
//
// The method (*injection).run contains all steps of an injection in order. Package
// manifest reads and writes YAML streams, and package webhook serves admission requests
// of an API server. Both apply the changes that this package returns.
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
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
)

// SidecarName is the name of the injected container.
const SidecarName = "queue-proxy"

// maxContainers is the maximum number of containers in a pod. It bounds the work for one pod, which
// is quadratic in this number. No kubelet runs that many containers.
const maxContainers = 500

// maxAnnotationBytes is the maximum total size of a pod's annotations in bytes
// (TotalAnnotationSizeLimitB in pkg/api/validation of k8s.io/apimachinery).
const maxAnnotationBytes = 256 << 10

// A Verdict is the result of an injection or removal for an object.
type Verdict string

// The verdicts.
const (
	Injected   Verdict = "injected"
	Uninjected Verdict = "uninjected"
	Rewritten  Verdict = "rewritten" // a Service that now points to the sidecar
	Skipped    Verdict = "skipped"   // the object is unchanged, and no action is needed
	Refused    Verdict = "refused"   // the object is unchanged, and a user must fix it
)

// The reasons why an object is skipped or refused. Metrics and exit codes depend on these strings.
const (
	OptedOut        = "opted-out"
	AlreadyInjected = "already-injected"
	HasQueueProxy   = "has-queue-proxy"
	Knative         = "knative"
	MirrorPod       = "mirror-pod"
	HostNetwork     = "host-network"
	Windows         = "windows"
	Ends            = "ends" // the pod is expected to complete, and a sidecar would keep it running
	NoPort          = "no-port"
	NotHTTP         = "not-http"
	NotInjected     = "not-injected"
	NoPods          = "no-pods"
	SecondStep      = "second-step" // the Service must be rewritten after the rollout of its pods

	Unreadable     = "unreadable"
	BadOption      = "bad-option"
	Locked         = "locked"
	WhichContainer = "which-container"
	WhichPort      = "which-port"
	PortTaken      = "port-taken"
	BadProbe       = "bad-probe"
	SpeaksTLS      = "speaks-tls"
	BadStatus      = "bad-status"
	Unsure         = "unsure"    // the confidence in the port is lower than the sure option requires
	TooLarge       = "too-large" // only returned by the webhook
)

// reasonDescriptions describes each reason without data from an object.
var reasonDescriptions = map[string]string{
	OptedOut:        "injection is disabled by a label or an annotation.",
	AlreadyInjected: "the pods already have the sidecar.",
	HasQueueProxy:   "the pods have a container named queue-proxy that was not injected.",
	Knative:         "Knative adds its own queue-proxy to the pods.",
	MirrorPod:       "the pods are static pods of a kubelet.",
	HostNetwork:     "the pods use hostNetwork, so their sidecar ports would conflict with other pods on the same node.",
	Windows:         "the sidecar image supports only Linux.",
	Ends:            "the restartPolicy is not Always, and the pods cannot complete while the sidecar is running; set the option mode=native.",
	NoPort:          "no container declares a TCP port; set the options container and port.",
	NotHTTP:         "no port seems to serve HTTP; set the option port.",
	NotInjected:     "the object was not injected.",
	NoPods:          "the object does not create pods.",
	SecondStep:      "the Service must be rewritten after the rollout of its pods.",
	Unaffected:      "the object does not refer to the sidecar.",

	Unreadable:     "the object is invalid.",
	BadOption:      "a queue-proxy.dev annotation or label has an unknown name or an invalid value.",
	Locked:         "an annotation sets an option that is locked in the injector.",
	WhichContainer: "several containers can receive the requests; set the option container.",
	WhichPort:      "several ports can receive the requests; set the option port.",
	PortTaken:      "a port of the sidecar is already in use.",
	BadProbe:       "a readiness probe is invalid.",
	SpeaksTLS:      "the port of the application uses TLS, but the sidecar sends plain HTTP.",
	BadStatus:      "the annotation " + StatusAnnotation + " was not written by the injector.",
	Unsure:         "the confidence of the port is lower than the option sure requires; name the port http, or set the option port.",
	TooLarge:       "the pod is too large.",
}

// ReasonText returns a sentence that describes a reason. The sentence contains no data from an
// object. It is "" for an unknown reason.
func ReasonText(reason string) string { return reasonDescriptions[reason] }

// An Outcome is the result of an injection or removal for one object. The JSON names are stable.
type Outcome struct {
	Verdict  Verdict  `json:"verdict"`
	Reason   string   `json:"reason,omitempty"`   // one of the reasons above, or "" if the object is changed
	Text     string   `json:"text"`               // a summary in one line
	Changes  []Change `json:"-"`                  // the changes to the object; nil if it is unchanged
	Notes    []string `json:"notes,omitempty"`    // a sentence for each change
	Warnings []string `json:"warnings,omitempty"` // a sentence for each problem that a user should examine

	// The following fields are set if Verdict is Injected.
	Container   string `json:"container,omitempty"`   // name of the application container
	AppPort     int32  `json:"port,omitempty"`        // the port of the application
	PortName    string `json:"-"`                     // name by which Services refer to AppPort; it becomes the name of ServingPort; may be empty
	ServingPort int32  `json:"servingPort,omitempty"` // the port on which the sidecar receives the requests for AppPort
	ImageError  error  `json:"-"`                     // the result of [Options.CheckImage]; if it is not nil, the pod cannot start
	native      bool   // the sidecar is an init container; Services can use its port names in Kubernetes 1.33 and later

	resources corev1.ResourceRequirements // resources of the sidecar
	shares    bool                        // the pod has pod-level resources (core/v1 PodSpec.resources)

	Ports      []Port     `json:"ports,omitempty"`      // the ports that Inject considered, at most 50
	Confidence Confidence `json:"confidence,omitempty"` // confidence in the selected port; set if Verdict is Injected
	Missing    string     `json:"missing,omitempty"`    // information that would increase the confidence or resolve the error; may be empty

	existing *Outcome // ports and mode of the existing sidecar; other fields are not set; nil if the pod has no sidecar
}

// sidecar returns the outcome that contains the ports of the sidecar. This is o if Verdict is
// Injected, and otherwise the outcome of an earlier injection. It returns nil if the pod has no
// sidecar.
func (o *Outcome) sidecar() *Outcome {
	if o.Verdict == Injected {
		return o
	}
	return o.existing
}

// decided is an error that ends an injection with an outcome.
type decided struct{ Outcome }

func (d *decided) Error() string { return d.Text }

func skip(reason, format string, args ...any) error { return decide(Skipped, reason, format, args) }

func refuse(reason, format string, args ...any) error { return decide(Refused, reason, format, args) }

func decide(v Verdict, reason, format string, args []any) error {
	const maxLength = 1000 // maximum length in bytes, because the text can quote the object
	return &decided{Outcome{Verdict: v, Reason: reason, Text: message.Truncate(fmt.Sprintf(format, args...), maxLength)}}
}

// Inject returns the changes that add a queue-proxy to a pod. template is a map with the metadata
// and the spec of a pod or a pod template, as [Decode] returns it. Inject does not modify template.
// The annotations of template override opts, which may be nil. services are the ports of the
// Services that select the pod, if they are known.
//
// Use [Apply] to make the changes in the result.
func Inject(template any, opts Options, services ...ServicePort) Outcome {
	in := &injection{editor: editor{object: template, copied: copies{}}, hints: map[string]*hints{}}
	in.readServices(services)
	err := in.read(template)
	if err == nil {
		err = in.run(opts)
	}
	if d, is := errors.AsType[*decided](err); is {
		d.Warnings = in.out.Warnings
		d.existing, d.Ports, d.Missing = in.out.existing, in.out.Ports, in.out.Missing
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

// An injection is the state of one call to Inject.
type injection struct {
	editor
	meta metav1.ObjectMeta // metadata of the pod before the injection
	pod  corev1.PodSpec

	services             []ServicePort           // TCP ports of the Services that select the pod
	noTCP, noTCPProtocol string                  // Service name and protocol of the first port if no Service has a TCP port
	routes               map[route][]ServicePort // Service ports by the container and the port that they reach
	unrouted             []ServicePort           // Service ports for which the container is unknown
	placeholders         []ServicePort           // undeclared ports of headless Services that no container uses
	hints                map[string]*hints       // hints by container name: see hintsOf
	hidden               []upstream              // proxies with an unknown upstream server: see upstreams
	behind               map[int32][]upstream    // proxies by the port of their upstream server: see upstreams

	options         Options
	native          bool
	app             *corev1.Container
	port            corev1.ContainerPort // the port of the application; its Name may be empty
	found           string               // the source of an undeclared port, or ""
	ports           ports                // ports of the sidecar
	probes          []probe.Probe        // probes that the sidecar runs
	timings         corev1.Probe         // timings of the probes that the kubelet sends to the sidecar
	sidecarSettings sidecarSettings      // settings of the sidecar

	out Outcome
}

// run executes the steps of the injection. It stops at the first step that returns an error.
func (in *injection) run(opts Options) error {
	for _, step := range []func() error{
		in.checkExistingSidecar,
		func() error { return in.readOptions(opts) },
		in.checkPod,
		in.chooseApp,
		in.warnOfUnknownNames,
		in.warnOfOtherPorts,
		in.checkPortName,
		in.checkPlainText,
		in.warnOfPodAddress,
		in.choosePorts,
		in.moveProbes,
		in.computeSettings,
		in.beginStatus,
		in.annotateMetrics,
		in.swapPort,
		in.removeReadinessProbes,
		in.addPreStopHook,
		in.extendGracePeriod,
		in.addSidecar,
		in.endStatus,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if in.err != nil {
		return refuse(Unreadable, "edit pod: %v", in.err)
	}
	done := existingSidecar(in.object)
	in.out.Container, in.out.AppPort, in.out.PortName = in.app.Name, in.port.ContainerPort, done.PortName
	in.out.ServingPort, in.out.native = in.ports.serving, in.native
	in.out.ImageError = in.options.CheckImage()
	in.out.Text = fmt.Sprintf("requests for %s on port %d now go through the sidecar on port %d", in.app.Name, in.out.AppPort, in.out.ServingPort)
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

// read decodes the fields of the template that the injection uses. Fields unknown to this version
// of the Kubernetes API remain in the object.
func (in *injection) read(template any) error {
	t, err := decodeTemplate(template)
	if err != nil {
		return refuse(Unreadable, "invalid pod: %v", err)
	}
	in.meta, in.pod = t.ObjectMeta, t.Spec
	return in.checkAnnotations(0)
}

// checkAnnotations returns an error if the total size of the pod's annotations and of the added
// annotations exceeds maxAnnotationBytes. added is the size of the added annotations in bytes.
func (in *injection) checkAnnotations(added int) error {
	size := added
	for key, value := range in.meta.Annotations {
		size += len(key) + len(value)
	}
	switch {
	case size <= maxAnnotationBytes:
		return nil
	case added == 0:
		return refuse(Unreadable, "metadata.annotations: %d bytes exceed the Kubernetes limit of %d", size, maxAnnotationBytes)
	}
	return refuse(Unreadable, "metadata.annotations: %d bytes, including the injection status, exceed the Kubernetes limit of %d", size, maxAnnotationBytes)
}

// fields selects keys of a map, and recursively the fields of their values. nil selects all fields.
type fields map[string]fields

// Only the following fields are decoded into Kubernetes types, because a decoded volume {}
// would use 250 bytes of memory for its two bytes of JSON, and parsing a 20-byte quantity
// can take minutes (see checkQuantities).
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

// pick returns a copy of a map, or of a list of maps, with only the selected fields. Other values
// are returned unchanged, so that the decoder reports their type errors.
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

// decodeTemplate decodes the selected fields of a pod template.
func decodeTemplate(template any) (*corev1.PodTemplateSpec, error) {
	if _, ok := template.(map[string]any); !ok {
		return nil, errors.New("not an object")
	}
	containers := slices.Concat(listAt(template, "spec", "containers"), listAt(template, "spec", "initContainers"))
	if n := len(containers); n > maxContainers {
		return nil, fmt.Errorf("%d containers exceed the limit of %d", n, maxContainers)
	}
	if err := checkQuantities(At(template, "spec", "resources"), containers); err != nil {
		return nil, err
	}
	read := pick(template, templateFields)
	if n := stringBytes(read); n > maxDecodedBytes {
		return nil, fmt.Errorf("labels, annotations, ports, probes and hooks: %d bytes exceed the limit of %d", n, maxDecodedBytes)
	}
	t := new(corev1.PodTemplateSpec)
	if err := decodeInto(read, t); err != nil {
		return nil, err
	}
	return t, checkLists(template)
}

// maxDecodedBytes is the maximum total length in bytes of the decoded strings. It is bounded
// because some strings are written several times. The Kubernetes limit for a whole object is
// similar (1.5 MiB in etcd).
const maxDecodedBytes = 1 << 20

// stringBytes returns the total length in bytes of the strings and numbers below a node.
func stringBytes(node any) int {
	n := 0
	switch node := node.(type) {
	case map[string]any:
		for key, child := range node {
			n += len(key) + stringBytes(child)
		}
	case []any:
		for _, child := range node {
			n += stringBytes(child)
		}
	case string:
		n = len(node)
	case json.Number:
		n = len(node)
	}
	return n
}

// checkQuantities returns an error for resources of the pod and its containers that take a long
// time to parse or compare. For example, a comparison of 1 and 1e99999999 takes a minute.
func checkQuantities(pod any, containers []any) error {
	if err := checkResources(pod, "the pod"); err != nil {
		return err
	}
	for _, c := range containers {
		if err := checkResources(At(c, "resources"), fmt.Sprintf("container %.64q", Text(c, "name"))); err != nil {
			return err
		}
	}
	return nil
}

func checkResources(resources any, of string) error {
	for _, field := range []string{"requests", "limits"} {
		amounts, _ := At(resources, field).(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(amounts)) {
			amount := Text(amounts, name)
			if err := checkQuantityLength(amount); err != nil {
				return fmt.Errorf("%s: resources.%s: %.64q: %w", of, field, name, err)
			}
		}
	}
	return nil
}

// checkExistingSidecar returns an error for pods that already have a sidecar, static pods, Knative
// pods, and pods whose labels or annotations disable the injection.
func (in *injection) checkExistingSidecar() error {
	has := hasContainer(in.pod, SidecarName)
	status, injected := in.meta.Annotations[StatusAnnotation]
	switch {
	case has && injected:
		in.out.existing = existingSidecar(in.object)
		return skip(AlreadyInjected, "%s", describeStatus(status))
	case injected:
		return refuse(BadStatus, "annotation %s is set, but the pod has no container %s; remove the annotation", StatusAnnotation, SidecarName)
	case has:
		return skip(HasQueueProxy, "the pod already has a container %s", SidecarName)
	case in.meta.Labels["serving.knative.dev/revision"] != "":
		return skip(Knative, "Knative adds its own queue-proxy to the pod; see deploy/knative")
	case in.meta.Annotations["kubernetes.io/config.mirror"] != "":
		return skip(MirrorPod, "static pod of a kubelet; the injector cannot change its file")
	}
	for _, value := range []string{in.meta.Labels[Prefix+injectOption], in.meta.Annotations[Prefix+injectOption]} {
		if isFalse(value) {
			return skip(OptedOut, "%s%s is %s", Prefix, injectOption, value)
		}
	}
	return nil
}

func hasContainer(pod corev1.PodSpec, name string) bool {
	called := func(c corev1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(pod.Containers, called) || slices.ContainsFunc(pod.InitContainers, called)
}

func (in *injection) readOptions(opts Options) error {
	if all := opts.locked(); len(all) > 0 {
		in.note("annotations cannot set the locked options %s", strings.Join(all, ", "))
	}
	reason := BadOption
	problems := opts.lockedAnnotations(in.meta.Annotations)
	if len(problems) > 0 {
		reason = Locked
	}
	var invalid []error
	in.options, invalid = opts.with(in.meta.Annotations)
	problems = append(problems, invalid...)
	if value := in.meta.Labels[Prefix+injectOption]; value != "" {
		if err := isBoolean(value); err != nil {
			problems = append(problems, fmt.Errorf("label %s%s: %w", Prefix, injectOption, err))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(in.meta.Labels)) {
		if strings.HasPrefix(key, Prefix) && key != Prefix+injectOption {
			problems = append(problems, unknown("label", key, []string{Prefix + injectOption}))
		}
	}
	if len(problems) > 0 {
		return refuse(reason, "%s", strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; "))
	}
	if text := in.options.get(injectOption); isFalse(text) {
		return skip(OptedOut, "the option %s is %s", injectOption, text)
	}
	if err := in.options.checkSidecarPorts(); err != nil {
		return refuse(BadOption, "%v", err)
	}
	in.native = in.options.get(modeOption) == modeNative
	return nil
}

// checkPod returns an error for pods in which a sidecar does not work.
func (in *injection) checkPod() error {
	switch {
	case in.pod.HostNetwork:
		return skip(HostNetwork, "the pod uses hostNetwork, so its sidecar ports would conflict with other pods on the same node")
	case in.requiresWindows():
		return skip(Windows, "the sidecar image supports only Linux")
	case !slices.Contains([]corev1.RestartPolicy{"", corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}, in.pod.RestartPolicy):
		return refuse(Unreadable, "spec.restartPolicy: %.64q: must be one of Always, OnFailure, Never", in.pod.RestartPolicy)
	case in.pod.RestartPolicy != "" && in.pod.RestartPolicy != corev1.RestartPolicyAlways && !in.native:
		return skip(Ends, "restartPolicy %s: the pod cannot complete while the sidecar is running; set the option %s=%s", in.pod.RestartPolicy, modeOption, modeNative)
	case len(in.pod.Containers) == 0:
		return refuse(Unreadable, "the pod has no containers; if the document is a patch, inject the output of kustomize build instead")
	}
	return in.checkNames()
}

// requiresWindows reports whether the pod can only run on a Windows node, because of its field os,
// its node selector, or all terms of its required node affinity.
func (in *injection) requiresWindows() bool {
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

// betaOS is the deprecated node label for the operating system. Nodes have it in addition to
// [corev1.LabelOSStable].
const betaOS = "beta.kubernetes.io/os"

// checkNames returns an error for port names and port numbers that Kubernetes does not
// accept. The check is necessary because an API server calls webhooks before it validates a pod,
// and the paths of the changes refer to containers and ports by name.
func (in *injection) checkNames() error {
	seen := map[string]bool{}
	for _, c := range slices.Concat(in.pod.Containers, in.pod.InitContainers) {
		switch {
		case len(validation.IsDNS1123Label(c.Name)) > 0:
			return refuse(Unreadable, "container name %.64q is invalid; want at most 63 lower case letters, digits and hyphens", c.Name)
		case seen[c.Name]:
			return refuse(Unreadable, "several containers have the name %q; rename all but one of them", c.Name)
		}
		seen[c.Name] = true
		for _, p := range c.Ports {
			if p.Name != "" && len(validation.IsValidPortName(p.Name)) > 0 {
				return refuse(Unreadable, "container %s: port name %.64q is invalid", c.Name, p.Name)
			}
			if p.ContainerPort < 1 || p.ContainerPort > 65535 {
				return refuse(Unreadable, "container %s: containerPort: %d is not in 1..65535", c.Name, p.ContainerPort)
			}
		}
	}
	return nil
}
