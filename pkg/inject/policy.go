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

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

// Policy writes the injection as a MutatingAdmissionPolicy and its bindings
// (admissionregistration.k8s.io/v1, Kubernetes 1.36), as YAML: the API server then
// makes of a pod what [Inject] makes of it, and asks nobody.
//
// CEL has no functions of one's own, cannot warn and reads no durations, so a policy
// takes the plain pods: its conditions leave every other one alone. What is decided
// when the policy is printed, such as the sidecar's resources, is decided by the code
// of this package; what depends on the pod is written a second time in policy_cel.go, and
// test/admission holds the two together.
//
// The error names an option that a policy cannot follow.
func Policy(said Options) (string, error) {
	p, err := newPolicy(said)
	if err != nil {
		return "", err
	}
	return p.yaml(), nil
}

// A policy is what is known when it is printed.
type policy struct {
	said     Options
	sidecar  corev1.Container // of a pod that says nothing
	deadline time.Duration    // of the drain, 0: it depends on the pod
	native   bool
}

// unlocked are those of some options that no lock names: the ones that a policy reads from a pod's
// annotations. What a pod says of others leaves it alone.
func (p *policy) unlocked(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(p.said.locked(), name) })
}

func newPolicy(said Options) (*policy, error) {
	p := &policy{said: Options{}}
	maps.Copy(p.said, said)
	for _, name := range []string{percentOption, "drain-quiet-period"} {
		if p.said[name] != "" {
			return nil, fmt.Errorf("option %s: it depends on the pod in a way that a policy cannot work out; use the webhook", name)
		}
	}
	if isFalse(p.said.get(injectOption)) {
		return nil, fmt.Errorf("option %s: nothing is injected", injectOption)
	}
	for _, name := range []string{"concurrency", "queue-depth", timeoutOption, drainMinOption} {
		if err := p.makeWhole(name); err != nil {
			return nil, err
		}
	}
	p.deadline, _ = time.ParseDuration(p.said[deadlineOption]) // it was validated, or is not said
	p.native = p.said.get(modeOption) == modeNative
	if err := p.holdPortsApart(); err != nil {
		return nil, err
	}
	return p, p.sample()
}

// makeWhole writes an option as a whole number, of seconds if it is a duration.
func (p *policy) makeWhole(name string) error {
	text := p.said[name]
	if text == "" {
		return nil
	}
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		d, err := time.ParseDuration(text)
		if err != nil || d%time.Second != 0 {
			return fmt.Errorf("option %s: %q: a policy takes whole seconds", name, text)
		}
		n = int64(d / time.Second)
	}
	p.said[name] = strconv.FormatInt(n, 10)
	return nil
}

// holdPortsApart sees to it that no port of the sidecar, where it usually is or where
// it moves to, can be another one's.
func (p *policy) holdPortsApart() error {
	seen := map[int32]string{}
	for _, u := range usualPorts {
		may := []int32{u.number, u.number + higher}
		if n, err := strconv.Atoi(p.said[u.option]); err == nil {
			may = []int32{int32(n)}
		}
		for _, n := range may {
			if other := seen[n]; other != "" {
				return fmt.Errorf("option %s: in some pods %s is on %d as well; choose another port", u.option, other, n)
			}
			seen[n] = u.option
		}
	}
	return nil
}

// sample injects a pod that says nothing: what the sidecar is in all pods.
func (p *policy) sample() error {
	free := int32(1)
	for slices.ContainsFunc(usualPorts, func(u usualPort) bool { return p.said[u.option] == strconv.Itoa(int(free)) }) {
		free++
	}
	said := maps.Clone(p.said)
	delete(said, containerOption)
	said[portOption] = strconv.Itoa(int(free))
	if text := said[drainMinOption]; text != "" {
		said[drainMinOption] = text + "s"
	}
	out := Inject(map[string]any{"metadata": map[string]any{}, "spec": map[string]any{
		"containers": []any{map[string]any{"name": "app"}},
	}}, said)
	if out.Verdict != Injected {
		return errors.New(out.Text)
	}
	i := slices.IndexFunc(out.Changes, func(c Change) bool { return strings.HasSuffix(c.Path, "/"+sidecarName) })
	return json.Unmarshal(out.Changes[i].Value, &p.sidecar)
}

// environ is the sidecar's environment as CEL: the constants of the sample, and between
// them, where config writes them, those that depend on the pod.
func (p *policy) environ() string {
	constant := map[string]string{}
	serving := false // a variable by which config takes a pod for Knative's, in all pods
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
	c := config.Default()
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

// list is where the sidecar goes.
func (p *policy) list() string {
	if p.native {
		return "initContainers"
	}
	return "containers"
}

// literal writes a value of JSON as CEL. Values of a map in CEL are of one type, so only
// a map of texts is one, and every other is an object of the type that is named.
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

// quoteCEL writes a text as CEL does.
func quoteCEL(text string) string {
	quoted := strconv.QuoteToASCII(text)
	if inner := quoted[1 : len(quoted)-1]; !strings.ContainsAny(inner, `'\`) {
		return "'" + inner + "'"
	}
	return quoted
}

// fixed is a part of the sample's container as CEL.
func (p *policy) fixed(field string, value any) string {
	decoded, err := Decode(encode(value))
	if err != nil {
		panic("inject: JSON that cannot be read again: " + err.Error())
	}
	return literal(decoded, "Object.spec."+p.list()+"."+field)
}

// option is the text of an option, the empty one for none, as CEL that holds where no variables
// are: the annotation wins over the flag.
func (p *policy) option(name string) string {
	said := annotation(Prefix + name)
	if p.said[name] == "" {
		return said
	}
	return fmt.Sprintf("(%[1]s != '' ? %[1]s : %[2]s)", said, quoteCEL(p.said[name]))
}

// annotation is the text of one of a pod's annotations as CEL, the empty one if it is not there.
func annotation(key string) string {
	return fmt.Sprintf("object.metadata.?annotations[?'%s'].orValue('')", key)
}

// yaml writes the objects. Every value that comes from outside stands in a block.
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
	b.WriteString("  # A pod is taken if all of these hold; every other pod stays as it is.\n  matchConditions:\n")
	named(p.conditions())
	b.WriteString("  variables:\n")
	named(p.variables())
	b.WriteString("  mutations:\n    - patchType: JSONPatch\n      jsonPatch:\n        expression: |-\n")
	block(10, p.patch())
	b.WriteString(policyBindings)
	return b.String()
}
