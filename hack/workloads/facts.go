package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The JSON names of the following types are the field names of the Kubernetes API, because the test
// builds a manifest from them. Fields that do not help to select a port are omitted.

// facts describes a workload. The output contains one facts object per workload.
type facts struct {
	Repository string    `json:"repository"`
	Commit     string    `json:"commit"`
	Path       string    `json:"path"`
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	Template   template  `json:"template"`
	Services   []service `json:"services,omitempty"` // nearest Services that select the pods; see servicesOf
}

type template struct {
	Metadata metadata `json:"metadata"`
	Spec     podSpec  `json:"spec"`
}

type metadata struct {
	Name        string         `json:"name,omitempty"`
	Namespace   string         `json:"namespace,omitempty"`
	Labels      map[string]any `json:"labels,omitempty"`
	Annotations map[string]any `json:"annotations,omitempty"`
}

type podSpec struct {
	HostNetwork    bool           `json:"hostNetwork,omitempty"`
	RestartPolicy  string         `json:"restartPolicy,omitempty"`
	NodeSelector   map[string]any `json:"nodeSelector,omitempty"`
	InitContainers []container    `json:"initContainers,omitempty"` // init containers with restartPolicy Always
	Containers     []container    `json:"containers"`
	Volumes        []volume       `json:"volumes,omitempty"` // volumes that can contain a certificate
}

type container struct {
	Name           string          `json:"name"`
	Image          string          `json:"image"`
	RestartPolicy  string          `json:"restartPolicy,omitempty"`
	Command        []any           `json:"command,omitempty"`
	Args           []any           `json:"args,omitempty"`
	Env            []variable      `json:"env,omitempty"`
	Ports          []containerPort `json:"ports,omitempty"`
	ReadinessProbe *probe          `json:"readinessProbe,omitempty"`
	LivenessProbe  *probe          `json:"livenessProbe,omitempty"`
	StartupProbe   *probe          `json:"startupProbe,omitempty"`
	VolumeMounts   []mount         `json:"volumeMounts,omitempty"`
}

type variable struct {
	Name  string `json:"name"`
	Value any    `json:"value,omitempty"`
}

type containerPort struct {
	Name          string `json:"name,omitempty"`
	ContainerPort int    `json:"containerPort"`
	HostPort      int    `json:"hostPort,omitempty"`
	Protocol      string `json:"protocol,omitempty"`
}

type probe struct {
	Exec *struct {
		Command []any `json:"command,omitempty"`
	} `json:"exec,omitempty"`
	HTTPGet *struct {
		Path   string `json:"path,omitempty"`
		Port   any    `json:"port"`
		Scheme string `json:"scheme,omitempty"`
		Host   string `json:"host,omitempty"`
	} `json:"httpGet,omitempty"`
	TCPSocket *struct {
		Port any    `json:"port"`
		Host string `json:"host,omitempty"`
	} `json:"tcpSocket,omitempty"`
	GRPC *struct {
		Port    any    `json:"port"`
		Service string `json:"service,omitempty"`
	} `json:"grpc,omitempty"`
}

type volume struct {
	Name      string    `json:"name"`
	Secret    *struct{} `json:"secret,omitempty"`
	Projected *struct{} `json:"projected,omitempty"`
	CSI       *struct{} `json:"csi,omitempty"`
}

type mount struct {
	Name      string `json:"name"`
	MountPath string `json:"mountPath"`
}

type service struct {
	Metadata metadata    `json:"metadata"`
	Spec     serviceSpec `json:"spec"`
	path     string      // path of the file in its repository
}

type serviceSpec struct {
	Type      string         `json:"type,omitempty"`
	ClusterIP string         `json:"clusterIP,omitempty"`
	Selector  map[string]any `json:"selector"`
	Ports     []servicePort  `json:"ports,omitempty"`
}

type servicePort struct {
	Name        string `json:"name,omitempty"`
	Port        int    `json:"port"`
	TargetPort  any    `json:"targetPort,omitempty"`
	Protocol    string `json:"protocol,omitempty"`
	AppProtocol string `json:"appProtocol,omitempty"`
}

// convert converts a value from the YAML decoder to one of the types above.
func convert(from, to any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

// A workload is an object with a pod template.
type workload struct {
	path, apiVersion, kind string
	metadata               metadata
	template               template
}

// id identifies the workload within its repository.
func (w *workload) id() string { return w.path + " " + w.kind + "/" + w.metadata.Name }

// shape returns the images without tags, and the ports. Copies of a workload in a repository, such
// as overlays and versions, have the same shape.
func (w *workload) shape() string {
	var all []string
	for _, c := range w.template.Spec.Containers {
		image, _, _ := strings.Cut(path.Base(c.Image), ":")
		image, _, _ = strings.Cut(image, "@")
		all = append(all, image, fmt.Sprint(c.Ports))
	}
	return strings.Join(all, " ")
}

// sortObjects returns the workloads and Services among objects. It ignores objects without a name
// or an image, such as patches, and also pods that run to completion and Knative Services.
func sortObjects(objects []object) (workloads []*workload, services []service) {
	for _, o := range objects {
		kind, apiVersion := fmt.Sprint(o.value["kind"]), fmt.Sprint(o.value["apiVersion"])
		if kind == "Service" && apiVersion == "v1" {
			s := service{path: o.path}
			if convert(o.value, &s) == nil && len(s.Spec.Selector) > 0 {
				services = append(services, s)
			}
			continue
		}
		w := &workload{path: o.path, apiVersion: apiVersion, kind: kind}
		spec, _ := o.value["spec"].(map[string]any)
		from := spec["template"]
		switch {
		case kind == "Job" || kind == "CronJob" || strings.HasPrefix(apiVersion, "serving.k"):
			continue
		case kind == "Pod":
			from = o.value
		}
		if convert(o.value["metadata"], &w.metadata) == nil && convert(from, &w.template) == nil && w.complete() {
			workloads = append(workloads, w)
		}
	}
	return workloads, services
}

// complete reports whether the workload has a name, its containers have names and images, and its
// pods run until they are deleted.
func (w *workload) complete() bool {
	pod := w.template.Spec
	return w.metadata.Name != "" && len(pod.Containers) > 0 && (pod.RestartPolicy == "" || pod.RestartPolicy == "Always") &&
		!slices.ContainsFunc(pod.Containers, func(c container) bool { return c.Name == "" || c.Image == "" })
}

// servicesOf returns the Services that select the pods of a workload. It searches the same file,
// then the same directory, and then the parent directory with its subdirectories. It stops at the first
// step that finds a Service.
func servicesOf(w *workload, all []service) []service {
	dir := path.Dir(w.path)
	parent := path.Dir(dir) + "/"
	for _, near := range []func(string) bool{
		func(p string) bool { return p == w.path },
		func(p string) bool { return path.Dir(p) == dir },
		func(p string) bool { return parent != "./" && strings.HasPrefix(p, parent) },
	} {
		var found []service
		seen := map[string]bool{}
		for _, s := range all {
			a, b := s.Metadata.Namespace, w.metadata.Namespace
			key := s.Metadata.Name + fmt.Sprint(s.Spec)
			if near(s.path) && !seen[key] && (a == b || a == "" || b == "") && selects(s.Spec.Selector, w.template.Metadata.Labels) {
				seen[key] = true
				found = append(found, s)
			}
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

func selects(selector, labels map[string]any) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || fmt.Sprint(got) != fmt.Sprint(v) {
			return false
		}
	}
	return true
}

// factsOf returns the facts of a workload.
func factsOf(r repository, w *workload, services []service) facts {
	f := facts{Repository: r.name, Commit: r.commit, Path: w.path, APIVersion: w.apiVersion, Kind: w.kind,
		Namespace: w.metadata.Namespace, Name: w.metadata.Name, Template: w.template, Services: servicesOf(w, services)}
	isSelected := map[string]bool{}
	for i := range f.Services {
		s := &f.Services[i]
		s.Metadata.Labels = nil
		s.Metadata.Annotations = keep(s.Metadata.Annotations, keptAnnotation.MatchString)
		for k := range s.Spec.Selector {
			isSelected[k] = true
		}
	}
	m := &f.Template.Metadata
	m.Name, m.Namespace = "", ""
	m.Labels = keep(m.Labels, func(k string) bool { return isSelected[k] })
	m.Annotations = keep(m.Annotations, keptAnnotation.MatchString)
	pod := &f.Template.Spec
	pod.NodeSelector = keep(pod.NodeSelector, func(k string) bool { return strings.HasSuffix(k, "kubernetes.io/os") })
	pod.InitContainers = slices.DeleteFunc(slices.Clone(pod.InitContainers), func(c container) bool { return c.RestartPolicy != "Always" })
	pod.Volumes = slices.DeleteFunc(slices.Clone(pod.Volumes), func(v volume) bool { return v.Secret == nil && v.Projected == nil && v.CSI == nil })
	for _, all := range [][]container{pod.InitContainers, pod.Containers} {
		for i := range all {
			all[i].reduce(pod.Volumes)
		}
	}
	return f
}

var (
	keptAnnotation = regexp.MustCompile(`prometheus\.io|istio\.io|linkerd\.io|consul\.hashicorp\.com|dapr\.io|default-container|openshift\.io/serving-cert`)
	keptVariable   = regexp.MustCompile(`(?i)port|addr|listen|bind|host|url|http|grpc|tls|ssl|cert|proto|server|endpoint|metrics|health|insecure`)
	secretVariable = regexp.MustCompile(`(?i)pass|pwd|user|secret|token|credential|account|access|api_?key|auth_key|private`)
)

// maxText is the maximum length of an argument or value in bytes. Longer strings are scripts or
// configuration.
const maxText = 400

// reduce removes secrets, long strings, and fields that do not describe a port.
func (c *container) reduce(volumes []volume) {
	c.Env = slices.DeleteFunc(slices.Clone(c.Env), func(v variable) bool {
		text, isText := v.Value.(string)
		return v.Value == nil || !keptVariable.MatchString(v.Name) || secretVariable.MatchString(v.Name) ||
			isText && (len(text) > maxText || strings.Contains(text, "@"))
	})
	c.VolumeMounts = slices.DeleteFunc(slices.Clone(c.VolumeMounts), func(m mount) bool {
		return !slices.ContainsFunc(volumes, func(v volume) bool { return v.Name == m.Name })
	})
	c.Command, c.Args = cut(c.Command), cut(c.Args)
	for _, p := range []*probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
		if p != nil && p.Exec != nil {
			p.Exec.Command = cut(p.Exec.Command)
		}
	}
}

func cut(all []any) []any {
	all = slices.Clone(all)
	for i, a := range all {
		if text, ok := a.(string); ok && len(text) > maxText {
			all[i] = strings.ToValidUTF8(text[:maxText], "")
		}
	}
	return all
}

// keep returns the entries of a map whose keys match.
func keep(all map[string]any, match func(string) bool) map[string]any {
	all = maps.Clone(all)
	maps.DeleteFunc(all, func(k string, _ any) bool { return !match(k) })
	return all
}
