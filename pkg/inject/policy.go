package inject

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

//go:embed policy.tmpl
var policyTemplate string

// Policy writes the injection as a MutatingAdmissionPolicy and its bindings
// (admissionregistration.k8s.io/v1, Kubernetes 1.36), as YAML: the API server then
// makes of a pod what [Inject] makes of it, and asks nobody.
//
// CEL has no functions of one's own, cannot warn and reads no durations, so a policy
// takes the plain pods: its conditions leave every other one alone. What is decided
// when the policy is printed, such as the sidecar's resources, is decided by the code
// of this package; what depends on the pod is written a second time in policy.tmpl, and
// test/admission holds the two together.
//
// The error names an option that a policy cannot follow.
func Policy(said Options) (string, error) {
	p, err := newPolicy(said)
	if err != nil {
		return "", err
	}
	return p.yaml()
}

// A policy is what is known when it is printed.
type policy struct {
	said     Options
	sidecar  corev1.Container // of a pod that says nothing
	deadline time.Duration    // of the drain, 0: it depends on the pod
	native   bool
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

// yaml writes the objects. Every value that comes from outside stands in a block.
func (p *policy) yaml() (string, error) {
	t := template.Must(template.New("policy").Option("missingkey=error").Funcs(template.FuncMap{
		"annotation": annotationCEL,
		"option":     p.option,
		"quote":      func(text any) string { return quoteCEL(fmt.Sprint(text)) },
		"join":       strings.Join,
		"replace":    strings.ReplaceAll,
	}).Parse(policyTemplate))
	var b strings.Builder
	err := t.Execute(&b, p.data())
	return b.String(), err
}

// data is what the template reads.
func (p *policy) data() map[string]any {
	seconds := func(d time.Duration) int64 { return int64(d.Seconds()) }
	unlocked := func(names ...string) []string {
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(p.said.locked(), name) })
	}
	data := map[string]any{
		"list":            p.list(),
		"native":          p.native,
		"sidecar":         p.sidecar,
		"environ":         p.environ(),
		"resources":       p.fixed("resources", p.sidecar.Resources),
		"securityContext": strings.TrimPrefix(p.fixed("securityContext", p.sidecar.SecurityContext), "Object.spec."+p.list()+".securityContext{"),
		"imageUser":       imageUser,
		"format":          format,
		"higher":          higher,
		"meshProxies":     meshProxies,
		"announced":       !isFalse(p.said.get(metricsOption)),
		"usual":           corev1.Probe{TimeoutSeconds: usualTimeout, PeriodSeconds: usualPeriod, SuccessThreshold: usualSuccesses, FailureThreshold: usualFailures},

		// The options that are read from a pod's annotations, by the alphabet. Others leave the pod
		// alone, and so do other values of some than whole decimal numbers. What is locked is one of
		// the others.
		"perPod": unlocked("concurrency", containerOption, injectOption, portOption, "queue-depth", timeoutOption),
		"whole":  unlocked("concurrency", "queue-depth", timeoutOption),
		// What they say has these names where there are no variables, and where there are.
		"conditions": map[string]string{"container": "container", "port": "wanted", "usual": "usual"},
		"variables":  map[string]string{"container": "variables.containerOption", "port": "variables.portOption", "usual": annotationCEL(defaultContainer)},

		// Seconds.
		"hasDeadline":   p.deadline > 0,
		"deadline":      seconds(p.deadline),
		"deadlineGrace": ceilSeconds(p.deadline + afterDrain),
		"drainMin":      cmp.Or(p.said[drainMinOption], "0"),
		"usualDrain":    seconds(usualDrain),
		"usualGrace":    seconds(usualGrace),
		"afterDrain":    seconds(afterDrain),
		"longestQuiet":  seconds(longestQuiet),

		"sideName":      sideName,
		"tlsName":       tlsName,
		"httpName":      httpName,
		"rawName":       rawName,
		"serverImage":   serverImage,
		"exporterImage": exporterImage,
		"clientCommand": clientCommand,
	}
	var aliases, others []string
	for _, o := range table {
		aliases = append(aliases, o.Aliases...)
	}
	for _, n := range slices.Concat(slices.Sorted(maps.Keys(rawPorts)), slices.Sorted(maps.Keys(tlsPorts))) {
		others = append(others, decimal(n))
	}
	namers := slices.Clone(namers)
	slices.Reverse(namers) // the last change is taken back first
	data["aliases"], data["otherPorts"], data["namers"] = aliases, others, namers
	p.addPorts(data)
	return data
}

// addPorts adds the ports of the sidecar: those that were asked for and are fixed, those that move where a
// container has them, and, for no port is moved because of a probe, those that no probe may ask.
func (p *policy) addPorts(data map[string]any) {
	var fixed, moving, unasked []string
	var ports []map[string]string
	for i, u := range usualPorts {
		said, usual, moved := p.said[u.option], decimal(u.number), decimal(u.number+higher)
		if said != "" {
			fixed = append(fixed, said)
		} else {
			moving = append(moving, usual)
			unasked = append(unasked, moved)
		}
		if i >= 2 { // to the first two a probe may be meant to come through the sidecar
			unasked = append(unasked, cmp.Or(said, usual))
		}
		number := cmp.Or(said, fmt.Sprintf("%s in variables.taken ? %s : %s", usual, moved, usual))
		ports = append(ports, map[string]string{"name": u.variable(), "number": number})
	}
	data["fixed"], data["moving"], data["unasked"], data["ports"] = fixed, moving, unasked, ports
}

// environ is the sidecar's environment as CEL: the constants of the sample, and between
// them, where config writes them, those that depend on the pod.
func (p *policy) environ() []string {
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
	return entries
}

// environOfPod are the variables of the sidecar that depend on the pod: when they are
// written, "" for always, and what.
func environOfPod(fixedDeadline bool) map[string]struct{ when, value string } {
	type entry = struct{ when, value string }
	port := func(name string, usual int32) entry {
		return entry{fmt.Sprintf("variables.%s != %d", name, usual), "string(variables." + name + ")"}
	}
	c := config.Default()
	all := map[string]entry{
		c.UserPort.Name():       port("port.containerPort", int32(c.UserPort.V)),
		c.Concurrency.Name():    {"variables.concurrency != 0", "string(variables.concurrency)"},
		c.QueueDepth.Name():     {"variables.queueDepth != '' && int(variables.queueDepth) != 10 * variables.concurrency", "variables.queueDepth"},
		c.RequestTimeout.Name(): {"variables.requestTimeout != 0", "string(variables.requestTimeout)"},
		c.ProbeArray.Name():     {"size(variables.questions) > 1", "'true'"},
		c.Probes.Name(): {"size(variables.questions) > 0",
			"(size(variables.questions) > 1 ? '[' + variables.questions.join(',') + ']' : variables.questions[0]).replace('$', '$$')"},
		c.DrainMin.Name(): {"variables.least > 0", inWords("variables.least")},
	}
	for _, u := range usualPorts {
		all[variableOf(u.option)] = port(u.variable(), u.number)
	}
	if !fixedDeadline {
		all[c.DrainDeadline.Name()] = entry{"variables.drain != 27", inWords("variables.drain")}
	}
	return all
}

// variable is that of the policy which holds the port.
func (u usualPort) variable() string { return strings.TrimSuffix(u.option, "-port") + "Port" }

// inWords writes seconds as Go writes a duration: 1h0m5s.
func inWords(seconds string) string {
	return strings.ReplaceAll(`(s >= 3600 ? string(s / 3600) + 'h' : '') + (s >= 60 ? string(s % 3600 / 60) + 'm' : '') + string(s % 60) + 's'`, "s ", seconds+" ")
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
	annotation := annotationCEL(Prefix + name)
	if p.said[name] == "" {
		return annotation
	}
	return fmt.Sprintf("(%s != '' ? %s : %s)", annotation, annotation, quoteCEL(p.said[name]))
}

// annotationCEL is the text of an annotation as CEL, the empty one for none.
func annotationCEL(key string) string {
	return fmt.Sprintf("object.metadata.?annotations[?'%s'].orValue('')", key)
}
