package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Helm conditions that depend on the values of the chart.
const (
	webhook     = `eq .Values.admission "webhook"`
	selfManaged = `eq .Values.certificate.mode "self-managed"`
	certManager = `eq .Values.certificate.mode "cert-manager"`
	several     = `gt (int .Values.replicas) 1`
)

// An insertion is template text for all objects of a kind. A path consists of keys, item numbers, "*"
// for all items, and "name=..." for the item with that name.
type insertion struct {
	kind, path, text string
}

// replacements returns the insertions that replace values of the overlays.
func replacements() []insertion {
	return []insertion{
		{"Deployment", "spec/replicas", "{{ .Values.replicas }}"},
		{"Deployment", "spec/template/metadata/annotations", "{{- toYaml .Values.podAnnotations | nindent NESTED }}"},
		{"Deployment", "spec/template/spec/containers/0/image", "{{ .Values.images.injector | quote }}"},
		{"Deployment", "spec/template/spec/containers/0/env/name=INJECTOR_IMAGE/value", "{{ .Values.images.sidecar | quote }}"},
		{"Deployment", "spec/template/spec/containers/0/env/name=GOMEMLIMIT/value", "{{ .Values.memoryTarget | quote }}"},
		{"Deployment", "spec/template/spec/containers/0/resources", "{{- toYaml .Values.resources | nindent NESTED }}"},
		{"MutatingWebhookConfiguration", "webhooks/*/failurePolicy", "{{ .Values.failurePolicy }}"},
		{"MutatingWebhookConfiguration", "webhooks/*/timeoutSeconds", "{{ .Values.timeoutSeconds }}"},
		{"MutatingAdmissionPolicy", "spec/variables/name=image/expression", `{{ printf "'%s'" .Values.images.sidecar | quote }}`},
		{"NetworkPolicy", "spec/ingress/1/from/0/namespaceSelector/matchLabels/kubernetes.io~1metadata.name", "{{ .Values.networkPolicy.metricsNamespace | quote }}"},
		{"PodDisruptionBudget", "spec/minAvailable", "{{ .Values.podDisruptionBudget.minAvailable }}"},
		// Both files contain braces, so the chart includes them without template execution. They
		// are copies of the files in deploy/monitoring.
		{"PrometheusRule", "spec", `{{- .Files.Get "files/rules.yaml" | nindent NESTED }}`},
		{"ConfigMap", "data/queue-proxy.json", `|{{- .Files.Get "files/dashboard.json" | nindent NESTED }}`},
	}
}

// additions returns the insertions of values that the overlays do not contain. Each adds lines to
// the end of a mapping or a sequence. affinity is the default affinity, which is taken from the ha
// overlay.
func additions(affinity string) []insertion {
	pod := "spec/template/spec"
	optional := func(key string) insertion {
		return insertion{"Deployment", pod, "{{- with .Values." + key + " }}\n" + key + ": {{- toYaml . | nindent NESTED }}\n{{- end }}"}
	}
	return []insertion{
		{"Deployment", pod + "/containers/0/args", "{{- with .Values.args }}\n{{- toYaml . | nindent INDENT }}\n{{- end }}"},
		{"Deployment", "spec/template/metadata/labels", "{{- with .Values.podLabels }}\n{{- toYaml . | nindent INDENT }}\n{{- end }}"},
		optional("imagePullSecrets"),
		{"Deployment", pod, "{{- with .Values.priorityClassName }}\npriorityClassName: {{ . | quote }}\n{{- end }}"},
		optional("nodeSelector"),
		optional("tolerations"),
		{"Deployment", pod, "{{- if .Values.affinity }}\naffinity: {{- toYaml .Values.affinity | nindent NESTED }}\n{{- else if " + several + " }}\naffinity:\n" + affinity + "{{- end }}"},
		optional("topologySpreadConstraints"),
		{"NetworkPolicy", "spec/ingress/0", "{{- with .Values.networkPolicy.apiServers }}\nfrom:\n  {{- range . }}\n  - ipBlock:\n      cidr: {{ . | quote }}\n  {{- end }}\n{{- end }}"},
		{"PodMonitor", "metadata/labels", monitoringLabels},
		{"PrometheusRule", "metadata/labels", monitoringLabels},
		{"ConfigMap", "metadata/labels", "{{- with .Values.monitoring.dashboardLabels }}\n{{- toYaml . | nindent INDENT }}\n{{- end }}"},
	}
}

const monitoringLabels = "{{- with .Values.monitoring.labels }}\n{{- toYaml . | nindent INDENT }}\n{{- end }}"

// conditions maps a kind to an additional condition for all objects of this kind in the chart.
func conditions() map[string]string {
	return map[string]string{
		"NetworkPolicy":       ".Values.networkPolicy.enabled",
		"PodDisruptionBudget": ".Values.podDisruptionBudget.enabled",
		"PodMonitor":          ".Values.monitoring.podMonitors",
		"PrometheusRule":      ".Values.monitoring.rules",
		"ConfigMap":           ".Values.monitoring.dashboard",
	}
}

// find calls f for each match of a path, with the parent node and the index in the parent.
func find(node *yaml.Node, path []string, f func(parent *yaml.Node, at int)) {
	for i := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 {
			continue // the node is a key, not a value
		}
		if !matches(node, i, strings.ReplaceAll(path[0], "~1", "/")) {
			continue
		}
		if len(path) == 1 {
			f(node, i)
			continue
		}
		find(node.Content[i], path[1:], f)
	}
}

func matches(parent *yaml.Node, i int, step string) bool {
	if parent.Kind == yaml.MappingNode {
		return parent.Content[i-1].Value == step
	}
	if name, ok := strings.CutPrefix(step, "name="); ok {
		n := field(parent.Content[i], "name")
		return n != nil && n.Value == name
	}
	return step == "*" || step == strconv.Itoa(i)
}

// insert applies the insertions to an object. It returns an error if the path of an insertion
// matches nothing, because this means that the manifest has changed.
func (t *template) insert(o object, affinity string) error {
	for _, in := range replacements() {
		if err := t.at(o, in, func(parent *yaml.Node, at int) { parent.Content[at] = t.value(in.text) }); err != nil {
			return err
		}
	}
	for _, in := range additions(affinity) {
		err := t.at(o, in, func(parent *yaml.Node, at int) {
			if node := parent.Content[at]; node.Kind == yaml.MappingNode {
				node.Content = append(node.Content, t.entry(in.text)...)
			} else {
				node.Content = append(node.Content, t.lines(in.text))
			}
		})
		if err != nil {
			return err
		}
	}
	t.namespaces(o.node, "")
	return nil
}

// at calls f for each node of an object that matches the path of an insertion.
func (t *template) at(o object, in insertion, f func(parent *yaml.Node, at int)) error {
	if o.kind != in.kind {
		return nil
	}
	found := false
	find(o.node, strings.Split(in.path, "/"), func(parent *yaml.Node, at int) { found = true; f(parent, at) })
	if !found {
		return fmt.Errorf("%s %s has no %s", o.kind, o.name, in.path)
	}
	return nil
}

// namespaces replaces the namespace of the overlays with the release namespace, and the list of
// excluded namespaces with the value namespaces.exclude of the chart.
func (t *template) namespaces(node *yaml.Node, key string) {
	switch node.Kind {
	case yaml.ScalarNode:
		switch {
		case node.Value == "queue-proxy" && (key == "namespace" || key == "matchNames"):
			*node = *t.value("{{ .Release.Namespace | quote }}")
		case node.Value == "monitoring" && key == "namespace":
			*node = *t.value("{{ .Values.monitoring.namespace | default .Release.Namespace | quote }}")
		case node.Value == "queue-proxy-injector.queue-proxy.svc":
			*node = *t.value("queue-proxy-injector.{{ .Release.Namespace }}.svc")
		case node.Value == "queue-proxy/queue-proxy-injector":
			*node = *t.value("{{ .Release.Namespace }}/queue-proxy-injector")
		}
	case yaml.MappingNode:
		if name := field(node, "key"); name != nil && name.Value == "kubernetes.io/metadata.name" {
			*field(node, "values") = *t.value("{{- toYaml (prepend .Values.namespaces.exclude .Release.Namespace) | nindent NESTED }}")
		}
		for i := 0; i < len(node.Content); i += 2 {
			t.namespaces(node.Content[i+1], node.Content[i].Value)
		}
	case yaml.SequenceNode:
		excludes := false
		for _, item := range node.Content {
			name := field(item, "key")
			excludes = excludes || name != nil && name.Value == "kubernetes.io/metadata.name"
			t.namespaces(item, key)
		}
		if excludes {
			node.Content = append(node.Content, t.lines("{{- with .Values.namespaces.matchExpressions }}\n{{- toYaml . | nindent INDENT }}\n{{- end }}"))
		}
	}
}

// A part is an object with the condition under which the chart contains it.
type part struct {
	object
	condition string
}

// parts returns all objects of the chart. Objects of two overlays are merged.
func (t *template) parts(built map[string][]object) ([]part, error) {
	var all []part
	get := func(folder, kind, name string) *object {
		for i, o := range built[folder] {
			if o.kind == kind && o.name == name {
				return &built[folder][i]
			}
		}
		return nil
	}
	const self, cert = "overlays/self-managed", "overlays/cert-manager"
	for _, o := range built[self] {
		other := get(cert, o.kind, o.name)
		if other == nil {
			all = append(all, part{o, "and (" + webhook + ") (" + selfManaged + ")"})
			continue
		}
		merged, err := t.merge(o.node, other.node, selfManaged, certManager)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.kind, o.name, err)
		}
		all = append(all, part{object{o.kind, o.name, merged}, webhook})
	}
	for _, o := range built[cert] {
		if get(self, o.kind, o.name) == nil {
			all = append(all, part{o, "and (" + webhook + ") (" + certManager + ")"})
		}
	}
	for _, o := range built["overlays/ha"] {
		if get(self, o.kind, o.name) == nil {
			all = append(all, part{o, "and (" + webhook + ") (" + several + ")"})
		}
	}
	for _, o := range built["overlays/policy"] {
		all = append(all, part{o, "not (" + webhook + ")"})
	}
	for _, o := range built["monitoring"] {
		all = append(all, part{o, ".Values.monitoring.enabled"})
	}
	return slices.DeleteFunc(all, func(p part) bool { return p.kind == "Namespace" }), nil // omit the Namespace, because Helm creates it with --create-namespace
}

const header = "{{- /* Generated from deploy/overlays by go test ./hack/chart -update. Do not edit. */ -}}\n"

// write returns the templates, one file for each kind.
func write(built map[string][]object) (map[string]string, error) {
	t := &template{}
	affinity, err := affinityOf(built["overlays/ha"])
	if err != nil {
		return nil, err
	}
	parts, err := t.parts(built)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, p := range parts {
		if err := t.insert(p.object, affinity); err != nil {
			return nil, err
		}
		text, err := t.text(p.node)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", p.kind, p.name, err)
		}
		condition := p.condition
		if extra := conditions()[p.kind]; extra != "" {
			condition = "and (" + condition + ") " + extra
		}
		name := strings.ToLower(p.kind) + ".yaml"
		files[name] += "{{- if " + condition + " }}\n---\n" + text + "{{- end }}\n"
	}
	for name := range maps.Keys(files) {
		files[name] = header + files[name]
	}
	return files, nil
}

// affinityOf returns the affinity in the ha overlay as YAML, without its key.
func affinityOf(objects []object) (string, error) {
	for _, o := range objects {
		if o.kind != "Deployment" {
			continue
		}
		var found *yaml.Node
		find(o.node, strings.Split("spec/template/spec/affinity", "/"), func(parent *yaml.Node, at int) { found = parent.Content[at] })
		if found == nil {
			return "", fmt.Errorf("the ha overlay has no affinity")
		}
		text, err := (&template{}).text(found)
		var b strings.Builder
		for line := range strings.Lines(text) {
			b.WriteString("  " + line)
		}
		return b.String(), err
	}
	return "", fmt.Errorf("the ha overlay has no Deployment")
}
