package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Policy returns the injection as a MutatingAdmissionPolicy with its bindings, in YAML
// (admissionregistration.k8s.io/v1, Kubernetes 1.36). With this policy, the API server changes pods
// in the same way as [Inject], without a webhook.
//
// CEL has no user-defined functions and no warnings, and it cannot parse durations. Therefore, the
// conditions of the policy only select pods without special requirements, and all other pods are
// unchanged. Values that do not depend on the pod, such as the resources of the sidecar, are
// computed by this package when the policy is generated. Computations that depend on the pod are
// duplicated in policy_cel.go, and test/admission compares both implementations.
//
// The error contains the name of an option that a policy does not support.
func Policy(opts Options) (string, error) {
	p, err := newPolicy(opts)
	if err != nil {
		return "", err
	}
	return p.yaml(), nil
}

// A policy contains the values that do not depend on the pod.
type policy struct {
	opts     Options
	sidecar  corev1.Container // sidecar of a pod without options
	deadline time.Duration    // drain deadline; 0 if it depends on the pod
	native   bool
}

// unlocked returns the given options that are not locked. The policy reads these options from the
// annotations of a pod, and ignores pods with annotations for other options.
func (p *policy) unlocked(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(p.opts.locked(), name) })
}

func newPolicy(opts Options) (*policy, error) {
	p := &policy{opts: Options{}}
	maps.Copy(p.opts, opts)
	for _, name := range []string{percentOption, "drain-quiet-period"} {
		if p.opts[name] != "" {
			return nil, fmt.Errorf("option %s: a policy does not support this option; use the webhook", name)
		}
	}
	if isFalse(p.opts.get(injectOption)) {
		return nil, fmt.Errorf("option %s: must be true", injectOption)
	}
	for _, name := range []string{"concurrency", "queue-depth", timeoutOption, drainMinOption} {
		if err := p.convertToInteger(name); err != nil {
			return nil, err
		}
	}
	p.deadline, _ = time.ParseDuration(p.opts[deadlineOption]) // the deadline is empty or valid, because the options have been validated
	p.native = p.opts.get(modeOption) == modeNative
	if err := p.checkMovedPorts(); err != nil {
		return nil, err
	}
	return p, p.sample()
}

// convertToInteger converts the value of an option to an integer. A duration is converted to
// seconds.
func (p *policy) convertToInteger(name string) error {
	text := p.opts[name]
	if text == "" {
		return nil
	}
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		d, err := time.ParseDuration(text)
		if err != nil || d%time.Second != 0 {
			return fmt.Errorf("option %s: %q: a policy only supports whole seconds", name, text)
		}
		n = int64(d / time.Second)
	}
	p.opts[name] = strconv.FormatInt(n, 10)
	return nil
}

// checkMovedPorts returns an error if two ports of the sidecar have the same number, or could have the
// same number after portOffset is added to a default port.
func (p *policy) checkMovedPorts() error {
	if err := p.opts.checkSidecarPorts(); err != nil {
		return err
	}
	seen := map[int32]string{}
	for _, u := range defaultPorts {
		may := []int32{u.number, u.number + portOffset}
		if n, err := strconv.Atoi(p.opts[u.option]); err == nil {
			may = []int32{int32(n)}
		}
		for _, n := range may {
			if other := seen[n]; other != "" {
				return fmt.Errorf("%s and %s can both be port %d, because a policy adds %d to a default port that a pod uses; specify a different port", other, u.option, n, portOffset)
			}
			seen[n] = u.option
		}
	}
	return nil
}

// sample sets p.sidecar to the sidecar of a pod without options.
func (p *policy) sample() error {
	opts := maps.Clone(p.opts)
	if text := opts[drainMinOption]; text != "" {
		opts[drainMinOption] = text + "s"
	}
	out := injectSample(opts)
	if out.Verdict != Injected {
		return errors.New(out.Text)
	}
	i := slices.IndexFunc(out.Changes, func(c Change) bool { return strings.HasSuffix(c.Path, "/"+SidecarName) })
	return json.Unmarshal(out.Changes[i].Value, &p.sidecar)
}

// environ returns the environment of the sidecar as a CEL expression. It contains the constant
// values of the sample and the values that depend on the pod, in the order in which config writes
// them.
func (p *policy) environ() string {
	constant := map[string]string{}
	serving := false // the sample has a SERVING_ variable; config uses such variables to detect Knative
	for _, v := range p.sidecar.Env {
		constant[v.Name] = v.Value
		serving = serving || strings.HasPrefix(v.Name, "SERVING_")
	}
	ofPod := environOfPod(p.deadline > 0)
	var entries []string
	entry := func(name, when, value string) {
		e := fmt.Sprintf("[Object.spec.%s.env{name: '%s', value: %s}]", p.list(), name, value)
		if when != "" {
			e = fmt.Sprintf("(%s ? %s : [])", when, e)
		}
		entries = append(entries, e)
	}
	c := defaults()
	onKnative := c.OnKnative.Name()
	for _, s := range c.Settings() {
		v, depends := ofPod[s.Name]
		text, is := constant[s.Name]
		switch {
		case depends:
			entry(s.Name, v.when, v.value)
		case is && s.Name != onKnative:
			entry(s.Name, "", quoteCEL(text))
		}
	}
	when := "size(variables.questions) > 0"
	if serving {
		when = ""
	}
	entry(onKnative, when, "'false'")
	return strings.Join(entries, "\n+ ")
}

// list returns the name of the field of the pod spec that contains the sidecar.
func (p *policy) list() string {
	if p.native {
		return "initContainers"
	}
	return "containers"
}

// literal returns a JSON value as a CEL literal. All values of a CEL map literal must have
// the same type, so only a map of strings becomes a CEL map. Other maps become objects of
// the CEL type kind.
func literal(value any, kind string) string {
	switch v := value.(type) {
	case map[string]any:
		var fields []string
		if texts := slices.Collect(maps.Values(v)); !slices.ContainsFunc(texts, func(v any) bool { _, is := v.(string); return !is }) {
			for _, key := range slices.Sorted(maps.Keys(v)) {
				fields = append(fields, quoteCEL(key)+": "+quoteCEL(v[key].(string)))
			}
			return "{" + strings.Join(fields, ", ") + "}"
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			fields = append(fields, key+": "+literal(v[key], kind+"."+key))
		}
		return kind + "{" + strings.Join(fields, ", ") + "}"
	case []any:
		var items []string
		for _, item := range v {
			items = append(items, literal(item, kind))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case string:
		return quoteCEL(v)
	}
	return fmt.Sprint(value)
}

// quoteCEL returns a string as a CEL literal.
func quoteCEL(text string) string {
	quoted := strconv.QuoteToASCII(text)
	if inner := quoted[1 : len(quoted)-1]; !strings.ContainsAny(inner, `'\`) {
		return "'" + inner + "'"
	}
	return quoted
}

// fixed returns value, which is a field of the sidecar in the sample, as a CEL literal.
func (p *policy) fixed(field string, value any) string {
	decoded, err := Decode(encode(value))
	if err != nil {
		panic("inject: decode encoded value: " + err.Error())
	}
	return literal(decoded, "Object.spec."+p.list()+"."+field)
}

// option returns a CEL expression for the value of an option. The value is an empty
// string if the option is not set. An annotation overrides the flag. The expression does
// not use policy variables.
func (p *policy) option(name string) string {
	value := annotation(Prefix + name)
	if p.opts[name] == "" {
		return value
	}
	return fmt.Sprintf("(%[1]s != '' ? %[1]s : %[2]s)", value, quoteCEL(p.opts[name]))
}

// annotation returns a CEL expression for the value of a pod annotation. The value is an
// empty string if the annotation does not exist.
func annotation(key string) string {
	return fmt.Sprintf("object.metadata.?annotations[?'%s'].orValue('')", key)
}

// yaml returns the YAML documents of the policy. All values from options are in block scalars.
func (p *policy) yaml() string {
	var b strings.Builder
	b.WriteString(policyHead)
	block := func(indent int, text string) {
		for line := range strings.Lines(strings.TrimSpace(text)) {
			b.WriteString(strings.Repeat(" ", indent) + strings.TrimRight(line, " \n") + "\n")
		}
	}
	named := func(all []expression) {
		for _, e := range all {
			for line := range strings.Lines(e.why) {
				b.WriteString("    # " + strings.TrimRight(line, " \n") + "\n")
			}
			fmt.Fprintf(&b, "    - name: %s\n      expression: |-\n", e.name)
			block(8, e.cel)
		}
	}
	b.WriteString("# The policy changes a pod if all conditions are true. Other pods are unchanged.\n  matchConditions:\n")
	named(p.conditions())
	b.WriteString("  variables:\n")
	named(p.variables())
	b.WriteString("  mutations:\n    - patchType: JSONPatch\n      jsonPatch:\n        expression: |-\n")
	block(10, p.patch())
	b.WriteString(policyBindings)
	return b.String()
}
