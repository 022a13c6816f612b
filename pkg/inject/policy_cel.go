package inject

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// The rewrite in CEL. Its order is that of (*injection).run: look, choose, change.
//
// What CEL lacks is written here in three idioms. [x].map(y, ...)[0] gives x a name. A list
// of none or one, cond ? [x] : [], is a part of something that may not be there.
// strings.quote writes a JSON string, of texts without control characters, which a
// condition holds them to.

// An expression is a condition or a variable of a policy.
type expression struct{ name, why, cel string }

const policyHead = `# The injector's rewrite of a pod, done by the API server itself (Kubernetes 1.36).
# Printed by "injector policy": change its options and print it again.
#
# The pods are those of the webhook: all of namespaces with the label
# queue-proxy.dev/inject=true, except those that say false, and single pods with it.
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata:
  name: queue-proxy-injector
spec:
  failurePolicy: Fail # an expression that fails is a defect: no pod is half changed
  reinvocationPolicy: Never # a pod that has its sidecar is not looked at again
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector:
      matchExpressions:
        - key: kubernetes.io/metadata.name
          operator: NotIn
          values: [queue-proxy, kube-system]
    objectSelector:
      matchExpressions:
        - key: queue-proxy.dev/inject
          operator: NotIn
          values: ["false"]
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE]
        resources: [pods]
        scope: Namespaced
`

const policyBindings = `---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata:
  name: queue-proxy-injector-namespace
spec:
  policyName: queue-proxy-injector
  matchResources:
    matchPolicy: Equivalent
    namespaceSelector:
      matchLabels:
        queue-proxy.dev/inject: "true"
    objectSelector: {}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata:
  name: queue-proxy-injector-pod
spec:
  policyName: queue-proxy-injector
  matchResources:
    matchPolicy: Equivalent
    namespaceSelector:
      matchExpressions:
        - key: queue-proxy.dev/inject
          operator: NotIn
          values: ["true"] # the other binding has those
    objectSelector:
      matchLabels:
        queue-proxy.dev/inject: "true"
`

// Questions that are asked of a thing c, p or r in more than one place.
const (
	// isTCP asks of a port p, movable of a container c.
	isTCP   = `p.?protocol.orValue('TCP') == 'TCP'`
	movable = `has(c.readinessProbe) && !has(c.readinessProbe.exec)`

	// serves asks whether a port p could be the one for requests: candidates.
	serves = isTCP + ` && ({port} == '' || p.?name.orValue('') == {port} || string(p.containerPort) == {port})`

	// apps are the containers that could be the app, one if it is clear: chooseContainer.
	apps = `({container} != '' ? object.spec.containers.filter(c, c.name == {container})
  : size(object.spec.containers) == 1 ? object.spec.containers
  : [object.spec.containers.filter(c, c.?ports.orValue([]).exists(p, ` + serves + `))].map(serving,
      serving.exists(c, c.name == {default}) ? serving.filter(c, c.name == {default}) : serving)[0])`

	// portsOfApp are the ports of a container app that could be for requests, one if it
	// is clear: choosePort.
	portsOfApp = `[app.?ports.orValue([]).filter(p, ` + serves + `)].map(found,
  size(found) > 1 ? found.filter(p, p.?name.orValue('') == 'http')
  : size(found) == 1 ? found
  : {port}.matches('^[1-9][0-9]{0,4}$') && int({port}) < 65536 ? [{'containerPort': int({port})}]
  : [])[0]`

	// hook is the command of the app's preStop hook, as a list of words, if it has one.
	hook = `app.?lifecycle.?preStop.?exec.?command.orValue([])`

	// A hook that only sleeps, as sleep 5 or sh -c "sleep 5": pauseOf.
	sleeps = `(size(command) == 2 && command[0].matches('^([^\\n]*/)?sleep$')
  || size(command) == 3 && command[1] == '-c' && command[0].matches('^([^\\n]*/)?(sh|bash|ash)$') && command[2].matches('^\\s*(\\S*/)?sleep\\s+\\S+\\s*$'))`
	wholeSleep = `(size(command) == 2 && command[1].matches('^[0-9]{1,6}s?$') || size(command) == 3 && command[2].matches('^\\s*([a-z/]*/)?sleep\\s+[0-9]{1,6}s?\\s*$'))`

	maxGrace = "1000000" // seconds, so that no sum of them overflows
)

// trues are the texts that are true to [strconv.ParseBool].
const trues = `['1', 't', 'T', 'true', 'TRUE', 'True']`

// resolved is the number of the port of a question a, asked by a container c.
func resolvedCEL(a string) string {
	return fmt.Sprintf(`(type(%[1]s.port) == int ? int(%[1]s.port)
          : c.?ports.orValue([]).exists(p, p.?name.orValue('') == %[1]s.port) ? int(c.ports.filter(p, p.?name.orValue('') == %[1]s.port)[0].containerPort)
          : int(%[1]s.port))`, a)
}

// conditions say which pods the policy takes. They cannot use variables.
//
//nolint:funlen // a table
func (p *policy) conditions() []expression {
	fill := strings.NewReplacer("{container}", "container", "{port}", "wanted", "{default}", "usual").Replace
	ofOptions := func(cel string) string {
		return fmt.Sprintf("[%s].all(container, [%s].all(wanted, [%s].all(usual,\n%s)))", p.option(containerOption), p.option(portOption), annotation(defaultContainer), fill(cel))
	}
	ofApp := func(cel string) string { return ofOptions(apps + ".all(app,\n" + cel + ")") }
	ofPort := func(cel string) string { return ofApp(portsOfApp + ".all(port,\n" + cel + ")") }

	known := p.unlocked("concurrency", containerOption, injectOption, portOption, "queue-depth", timeoutOption)
	var values, aliases []string
	// Of these a policy reads whole decimal numbers; a flag is made one: makeWhole.
	for _, name := range p.unlocked("concurrency", "queue-depth", timeoutOption) {
		values = append(values, annotation(Prefix+name)+`.matches('^(0|[1-9][0-9]{0,5})$|^$')`)
	}
	for _, o := range table {
		aliases = append(aliases, o.Aliases...)
	}

	all := []expression{
		{"not-injected", "", `!object.metadata.?annotations[?'queue-proxy.dev/status'].hasValue()`},
		{"no-sidecar", "", `!(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c, c.name == 'queue-proxy')`},
		{"no-mesh-proxy", "A policy runs before the webhooks of meshes, which add theirs afterwards.", `!object.spec.containers.exists(c, c.name in ['` + strings.Join(meshProxies, "', '") + `'])`},
		{"not-knative", "", `!object.metadata.?labels[?'serving.knative.dev/revision'].hasValue()`},
		{"not-of-a-kubelet", "", `!object.metadata.?annotations[?'kubernetes.io/config.mirror'].hasValue()`},
		{"wanted", "", `object.metadata.?labels[?'queue-proxy.dev/inject'].orValue('') in [''] + ` + trues + `
&& object.metadata.?annotations[?'queue-proxy.dev/inject'].orValue('') in [''] + ` + trues},
		{"options", "Options of the pod that a policy can follow, and no others.",
			"object.metadata.?annotations.orValue({}).all(key,\n  !key.startsWith('" + Prefix + "') && !(key in ['" + strings.Join(aliases, "',\n    '") + "'])\n  || key in ['" + Prefix + strings.Join(known, "', '"+Prefix) + "'])\n" +
				"&& object.metadata.?labels.orValue({}).all(key, !key.startsWith('" + Prefix + "') || key == '" + Prefix + injectOption + "')"},
		{"option-values", "", cmp.Or(strings.Join(values, "\n&& "), "true")},
		{"network-of-its-own", "", `!object.spec.?hostNetwork.orValue(false)`},
		{"linux", "", `object.spec.?os.?name.orValue('') != 'windows' && object.spec.?nodeSelector[?'kubernetes.io/os'].orValue('') != 'windows'
&& object.spec.?nodeSelector[?'beta.kubernetes.io/os'].orValue('') != 'windows'
&& !object.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms.orValue([]).exists(t,
  t.?matchExpressions.orValue([]).exists(e, e.key in ['kubernetes.io/os', 'beta.kubernetes.io/os'] && 'windows' in e.?values.orValue([])))`},
		{"bounded", "So that the work is.",
			`size(object.spec.containers) + size(object.spec.?initContainers.orValue([])) <= ` + fmt.Sprint(mostOfPolicy) + `
&& object.spec.containers.all(c, size(c.?ports.orValue([])) <= ` + fmt.Sprint(mostOfPolicy) + `)
&& object.spec.?terminationGracePeriodSeconds.orValue(0) >= 0 && object.spec.?terminationGracePeriodSeconds.orValue(0) <= ` + maxGrace},
		{"no-budget", "With resources for the whole pod, the sidecar would ask for less.", `!has(object.spec.resources)`},
		{"one-app", "It is clear which container serves.", ofOptions(`size(` + apps + `) == 1`)},
		{"one-port", "It is clear on which port, and its new name is free.", ofApp(`size(` + portsOfApp + `) == 1
&& !(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c, c.?ports.orValue([]).exists(p, p.?name.orValue('') == 'user-port'))
&& !app.?ports.orValue([]).exists(p, p.?name.orValue('') in ['` + config.AutoscalerPortName + `', '` + config.MetricsPortName + `'])`)},
		{"plain-text", "No probe says that the port speaks TLS.", ofPort(`  [app.?readinessProbe, app.?livenessProbe, app.?startupProbe].all(r,
    r.?httpGet.?scheme.orValue('') != 'HTTPS'
    || !([r.?httpGet.?port.orValue(0)].exists(n, n == port.containerPort || n == port.?name.orValue('-')
      || type(n) == string && (string(n) == string(port.containerPort) || app.?ports.orValue([]).exists(p, p.?name.orValue('') == n && p.containerPort == port.containerPort)))))`)},
		{"speaks-http", "An option selects the port, or there is no evidence against HTTP: signOf.", ofPort("  wanted != '' ||\n" + speaksHTTPCEL(p.said.get(sureOption) == string(High)))},
		{"no-other-port", "Without an option or an HTTP name, no probe checks a TCP or gRPC port that is not declared.", ofPort(`  wanted != '' || ` + matchesCEL("port.?name.orValue('')", httpName.String()) + `
  || ![app.?readinessProbe, app.?livenessProbe, app.?startupProbe].exists(r, [r.?tcpSocket.?port, r.?grpc.?port].exists(o,
    o.hasValue() && !app.?ports.orValue([]).exists(p, string(p.containerPort) == string(o.value()) || p.?name.orValue('') == string(o.value()))))`)},
		{"not-proxied", "Without an option, no container can be a proxy in front of another one.", ofOptions("  wanted != '' || " + notProxiedCEL())},
		{"name-free", "No other container has a port of the same name.", ofPort(`  ` + stay + `.all(c, c.name == app.name
    || c.?ports.orValue([]).all(p, p.?name.orValue('') != port.?name.orValue('-')))`)},
		{"ports-free", "The sidecar's usual ports, or those 10000 higher.", ofPort("  " + p.portsFree())},
		{"probes", "Readiness probes that the sidecar can run: one question each, to a port that\nis there, in texts that need no more than quotes.", `object.spec.containers.all(c, !(` + movable + `) || [c.readinessProbe].all(r,
  size([has(r.httpGet), has(r.tcpSocket), has(r.grpc)].filter(is, is)) == 1
  && !has(r.terminationGracePeriodSeconds)
  && [r.?initialDelaySeconds, r.?timeoutSeconds, r.?periodSeconds, r.?successThreshold, r.?failureThreshold].all(n, n.orValue(0) >= 0)
  && [r.?httpGet.?port, r.?tcpSocket.?port, r.?grpc.?port].all(o, !o.hasValue() || (type(o.value()) == int
    ? o.value() > 0 && o.value() < 65536
    : c.?ports.orValue([]).exists(p, p.?name.orValue('') == o.value())
      || o.value().matches('^[1-9][0-9]{0,4}$') && int(o.value()) < 65536))
  && [r.?httpGet.?host, r.?tcpSocket.?host].all(o, o.orValue('').matches('^[A-Za-z0-9._-]*$'))
  && r.?httpGet.?scheme.orValue('HTTP') in ['HTTP', 'HTTPS']
  && (r.?httpGet.?scheme.orValue('') != 'HTTPS' || r.?httpGet.?protocol.orValue('HTTP1') == 'HTTP1')
  && r.?httpGet.?protocol.orValue('HTTP1') in ['HTTP1', 'HTTP2'] && r.?grpc.?mode.orValue('TLS') in ['TLS', 'Plaintext']
  && r.?httpGet.?path.orValue('').matches({text}) && [r.?grpc.?service.orValue('')].all(s, type(s) == string && s.matches({text}))
  && r.?httpGet.?httpHeaders.orValue([]).all(h, h.name.matches('^[A-Za-z0-9-]+$')
    && h.?value.orValue('').matches(h.name.lowerAscii() == 'host' ? '^[A-Za-z0-9.:-]*$' : {text}))))`},
		{"plain-hook", "Before its end the app does nothing, sleeps whole seconds, or does something of its own.", ofApp(`[` + hook + `].all(command,
  command.all(word, word.matches({text})) && (!` + sleeps + ` || ` + wholeSleep + `)
  && app.?lifecycle.?preStop.?sleep.?seconds.orValue(0) >= 0 && app.?lifecycle.?preStop.?sleep.?seconds.orValue(0) <= ` + maxGrace + p.shortEnough() + `)`)},
	}
	if !p.native {
		all = append(all, expression{"goes-on", "A sidecar would keep a pod from ending.", `object.spec.?restartPolicy.orValue('Always') == 'Always'`})
	}
	for i := range all { // JSON needs escapes for no other letters
		all[i].cel = strings.ReplaceAll(all[i].cel, "{text}", `'^[^\\x00-\\x1f\\x{2028}\\x{2029}\\x{fffd}]*$'`)
	}
	return all
}

// mostOfPolicy bounds containers, and ports of each.
const mostOfPolicy = 40

// stay are the containers that run as long as the pod.
const stay = `(object.spec.containers + object.spec.?initContainers.orValue([]).filter(c, has(c.restartPolicy)))`

// taken are the TCP ports that others have, as a list.
const taken = `[port.containerPort] + ` + stay + `
  .map(c, c.?ports.orValue([]).filter(p, ` + isTCP + `).map(p, p.containerPort)).flatten()`

// portsFree returns an expression that is false if choosePorts returns an error, or if it moves a port because of a probe, a
// flag, a variable, an annotation or an image.
func (p *policy) portsFree() string {
	var fixed, moving, unasked, unmentioned []string
	for i, u := range usualPorts {
		said, usual := p.said[u.option], decimal(u.number)
		if said != "" {
			fixed = append(fixed, said)
		} else {
			moving = append(moving, usual)
			unasked = append(unasked, decimal(u.number+higher))
			unmentioned = append(unmentioned, usual, decimal(u.number+higher))
		}
		if i >= 2 { // to the first two a probe may be meant to come through the sidecar
			unasked = append(unasked, cmp.Or(said, usual))
		}
	}
	notMentioned := "true"
	if len(unmentioned) > 0 {
		notMentioned = mentionedPortsCEL(unmentioned)
	}
	return fmt.Sprintf(`[%s].all(taken, ![%s].exists(n, n in taken) && ![%s].exists(n, n in taken && n + %d in taken)
    && !%s.exists(c, [c.?readinessProbe, c.?livenessProbe, c.?startupProbe].exists(r, [r.?httpGet.?port, r.?tcpSocket.?port, r.?grpc.?port].exists(o,
      string(o.orValue(0)) in ['%s'] && !(o.value() in taken))))
    && %s)`,
		taken, strings.Join(fixed, ", "), strings.Join(moving, ", "), higher, stay, strings.Join(unasked, "', '"), notMentioned)
}

// shortEnough refuses a pause that does not fit in the drain that was asked for.
func (p *policy) shortEnough() string {
	if p.deadline == 0 {
		return ""
	}
	return fmt.Sprintf(`
  && app.?lifecycle.?preStop.?sleep.?seconds.orValue(0) <= %[1]d
  && (!%[2]s || int(command[size(command) - 1].find('[0-9]+s?\\s*$').find('[0-9]+')) <= %[1]d)`, int64(p.deadline.Seconds()), sleeps)
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

// member is a part of a JSON object, if a field is there: cond ? ['"key":' + value] : [].
func member(of, key, value string) string {
	return fmt.Sprintf(`(has(%s.%s) ? ['"%s":' + %s] : [])`, of, key, key, fmt.Sprintf(value, of+"."+key))
}

// wasProbe is the JSON of a readiness probe r, with its keys in alphabetical order.
func wasProbe() string {
	const number, word = "string(%s)", "strings.quote(%s)"
	object := func(parts ...string) string { return "'{' + (" + strings.Join(parts, "\n    + ") + ").join(',') + '}'" }
	const port = "(type(%[1]s) == int ? string(%[1]s) : strings.quote(%[1]s))"
	headers := `'[' + %s.map(h, '{"name":' + strings.quote(h.name) + ',"value":' + strings.quote(h.?value.orValue('')) + '}').join(',') + ']'`
	return object(
		member("r", "failureThreshold", number),
		`(has(r.grpc) ? ['"grpc":' + `+object(member("r.grpc", "mode", word), member("r.grpc", "port", number), member("r.grpc", "service", word))+`] : [])`,
		`(has(r.httpGet) ? ['"httpGet":' + `+object(member("r.httpGet", "host", word), member("r.httpGet", "httpHeaders", headers), member("r.httpGet", "path", word),
			member("r.httpGet", "port", port), member("r.httpGet", "protocol", word), member("r.httpGet", "scheme", word))+`] : [])`,
		member("r", "initialDelaySeconds", number), member("r", "periodSeconds", number), member("r", "successThreshold", number),
		`(has(r.tcpSocket) ? ['"tcpSocket":' + `+object(member("r.tcpSocket", "host", word), member("r.tcpSocket", "port", port))+`] : [])`,
		member("r", "timeoutSeconds", number))
}

// question is the JSON of the sidecar's probe of a container c with the probe r, as
// pkg/probe writes it.
func question() string {
	return `'{' + (has(r.httpGet)
      ? '"httpGet":{"path":' + strings.quote(r.httpGet.?path.orValue('/')) + ',"port":' + string(` + resolvedCEL("r.httpGet") + `)
        + (has(r.httpGet.host) ? ',"host":' + strings.quote(r.httpGet.host) : '')
        + ',"scheme":' + strings.quote(r.httpGet.?scheme.orValue('HTTP'))
        + (has(r.httpGet.httpHeaders) ? ',"httpHeaders":[' + r.httpGet.httpHeaders.map(h, '{"name":' + strings.quote(h.name) + ',"value":' + strings.quote(h.?value.orValue('')) + '}').join(',') + ']' : '')
        + (has(r.httpGet.protocol) ? ',"protocol":' + strings.quote(r.httpGet.protocol) : '')
      : has(r.tcpSocket)
      ? '"tcpSocket":{"port":' + string(` + resolvedCEL("r.tcpSocket") + `) + (has(r.tcpSocket.host) ? ',"host":' + strings.quote(r.tcpSocket.host) : '')
      : '"grpc":{"port":' + string(r.grpc.port) + ',"service":' + strings.quote(r.grpc.?service.orValue('')) + (has(r.grpc.mode) ? ',"mode":' + strings.quote(r.grpc.mode) : ''))
    + '}' + (r.?initialDelaySeconds.orValue(0) > 0 ? ',"initialDelaySeconds":' + string(r.initialDelaySeconds) : '')
    + ',"timeoutSeconds":' + string(` + usual("timeoutSeconds", usualTimeout) + `) + ',"periodSeconds":' + string(` + usual("periodSeconds", usualPeriod) + `)
    + ',"successThreshold":' + string(` + usual("successThreshold", usualSuccesses) + `) + ',"failureThreshold":' + string(` + usual("failureThreshold", usualFailures) + `) + '}'`
}

// usual is a number of a probe r, with Kubernetes' default.
func usual(field string, n int) string {
	return fmt.Sprintf("r.?%s.orValue(%d)", field, n)
}

// variables are worked out in order, once for a pod.
//
//nolint:funlen // a table
func (p *policy) variables() []expression {
	fill := strings.NewReplacer("{container}", "variables.containerOption", "{port}", "variables.portOption", "{default}", annotation(defaultContainer)).Replace
	whole := func(name string) string { return fmt.Sprintf("[%s].map(n, n == '' ? 0 : int(n))[0]", p.option(name)) }

	all := []expression{
		// On its own, so that deploy/overlays/policy can set it.
		{"image", "The sidecar's.", quoteCEL(p.sidecar.Image)},
		{"containerOption", "", p.option(containerOption)},
		{"portOption", "", p.option(portOption)},
		{"concurrency", "", whole("concurrency")},
		{"queueDepth", "", p.option("queue-depth")},
		{"requestTimeout", "", whole(timeoutOption)},
		{"app", "The container that serves, and where it is.", fill(apps + "[0]")},
		{"appPath", "", `'/spec/containers/' + string(object.spec.containers.map(c, c.name).indexOf(variables.app.name))`},
		{"port", "Its port for requests; without a name if it has none.", fill("[variables.app].map(app, " + portsOfApp + ")[0][0]")},
		{"portName", "", `variables.port.?name.orValue('')`},
		{"confidence", "Of the port.", "variables.portOption != '' || variables.portName.matches(" + quoteCEL(httpName.String()) + ") ? '" + string(High) + "' : '" + string(Low) + "'"},
		{"portPath", "", `variables.appPath + '/ports/' + string(variables.app.?ports.orValue([]).map(p, p == variables.port).indexOf(true))`},
		{"taken", "", "[variables.port].map(port, " + taken + ")[0]"},
	}
	for _, u := range usualPorts {
		usual := fmt.Sprintf("%[1]d in variables.taken ? %[2]d : %[1]d", u.number, u.number+higher)
		all = append(all, expression{u.variable(), "", cmp.Or(p.said[u.option], usual)})
	}
	drain := fmt.Sprintf(`[%d, variables.grace - %d, variables.least + variables.requestTimeout, variables.requestTimeout > 0 ? %d + variables.requestTimeout : 0].max()`,
		int(usualDrain.Seconds()), int(afterDrain.Seconds()), int(longestQuiet.Seconds()))
	longer := fmt.Sprintf(`[variables.grace, variables.drain + %d].max()`, int(afterDrain.Seconds()))
	if p.deadline > 0 {
		drain = fmt.Sprint(int64(p.deadline.Seconds()))
		longer = fmt.Sprintf(`[variables.grace, %d].max()`, ceilSeconds(p.deadline+afterDrain))
	}
	return append(all, []expression{
		{"moved", "The containers whose readiness probes move to the sidecar, the app first.",
			`object.spec.containers.filter(c, c.name == variables.app.name && ` + movable + `) + object.spec.containers.filter(c, c.name != variables.app.name && ` + movable + `)`},
		{"questions", "Their probes, as the sidecar reads them. Of others' alone, a look at the app's port comes first.",
			`(size(variables.moved) > 0 && variables.moved[0].name != variables.app.name ? ['{"tcpSocket":{"port":' + string(variables.port.containerPort) + '}}'] : [])
+ variables.moved.map(c, [c.readinessProbe].map(r, ` + question() + `)[0])`},
		{"first", "How the kubelet asks the sidecar: as it asked the first of them, and long enough for all.",
			fmt.Sprintf(`size(variables.moved) == 0
? {'delay': 0, 'timeout': %d, 'period': %d, 'successes': %d, 'failures': %d}
: [variables.moved[0].readinessProbe].map(r, {
    'delay': r.?initialDelaySeconds.orValue(0),
    'timeout': variables.moved.map(c, c.readinessProbe.?timeoutSeconds.orValue(%d)).max(),
    'period': %s,
    'successes': %s,
    'failures': %s
  })[0]`, eagerTimeout, eagerPeriod, usualSuccesses, eagerFailures, usualTimeout,
				usual("periodSeconds", usualPeriod), usual("successThreshold", usualSuccesses), usual("failureThreshold", usualFailures))},
		{"command", "", "[variables.app].map(app, " + hook + ")[0]"},
		{"holds", "Whether the sidecar's hook takes the place of the app's: there is none, or one that sleeps.",
			`!has(variables.app.lifecycle) || !has(variables.app.lifecycle.preStop) || has(variables.app.lifecycle.preStop.sleep)
|| [variables.command].exists(command, ` + sleeps + `)`},
		{"ownPause", "How long it sleeps, in seconds.",
			`has(variables.app.lifecycle) && has(variables.app.lifecycle.preStop) && has(variables.app.lifecycle.preStop.sleep)
? int(variables.app.lifecycle.preStop.sleep.seconds)
: variables.holds && size(variables.command) > 0
? int(variables.command[size(variables.command) - 1].find('[0-9]+s?\\s*$').find('[0-9]+'))
: 0`},
		{"least", "How long the drain takes at least, and at most; the pod's grace period before and after.", `[` + cmp.Or(p.said[drainMinOption], "0") + `, variables.ownPause].max()`},
		{"grace", "", `int(object.spec.?terminationGracePeriodSeconds.orValue(` + fmt.Sprint(int(usualGrace.Seconds())) + `))`},
		{"drain", "", drain},
		{"longerGrace", "", longer},
		{"backwards", "", `object.spec.containers.transformList(i, c, object.spec.containers[size(object.spec.containers) - 1 - i])`},
		{"scraped", "", p.scraped()},
		{"renamed", "What names the app's port by the name that it loses.", p.renamed()},
		{"undo", "The way back, for \"injector uninject\": the last change first.", p.undo()},
	}...)
}

// scraped is whether the sidecar's metrics are announced: annotateMetrics.
func (p *policy) scraped() string {
	if isFalse(p.said.get(metricsOption)) {
		return "false"
	}
	return `!object.metadata.?annotations.orValue({}).exists(key, key in ['prometheus.io/scrape', 'prometheus.io/port', 'prometheus.io/path'])`
}

// renamed are the places of the app's container that name its port, the last first.
func (p *policy) renamed() string {
	var all []string
	for _, place := range slices.Backward(namers) {
		all = append(all, fmt.Sprintf("(variables.app.?%s.?port.orValue('') == variables.portName ? ['/%s/port'] : [])",
			strings.ReplaceAll(place, ".", ".?"), strings.ReplaceAll(place, ".", "/")))
	}
	return "variables.portName == '' ? []\n: " + strings.Join(all, "\n+ ")
}

// undo is the value of the status annotation: statusValue.
func (p *policy) undo() string {
	parts := []string{`['{"path":"/spec/` + p.list() + `/queue-proxy"}']`}
	if p.native {
		parts = append(parts, `(has(object.spec.initContainers) ? [] : ['{"path":"/spec/initContainers","ifEmpty":true}'])`)
	}
	const app = `'{"path":"/spec/containers/' + variables.app.name + '`
	parts = append(parts,
		`(variables.longerGrace == variables.grace ? []
   : ['{"path":"/spec/terminationGracePeriodSeconds"' + (has(object.spec.terminationGracePeriodSeconds) ? ',"was":' + string(variables.grace) : '') + '}'])`,
		`(!variables.holds ? []
   : [`+app+`/lifecycle/preStop"' + (!has(variables.app.lifecycle) || !has(variables.app.lifecycle.preStop) ? ''
       : has(variables.app.lifecycle.preStop.sleep) ? ',"was":{"sleep":{"seconds":' + string(variables.app.lifecycle.preStop.sleep.seconds) + '}}'
       : ',"was":{"exec":{"command":[' + variables.command.map(word, strings.quote(word)).join(',') + ']}}') + '}']
     + (has(variables.app.lifecycle) ? [] : [`+app+`/lifecycle","ifEmpty":true}']))`,
		`variables.backwards.filter(c, `+movable+`).map(c, [c.readinessProbe].map(r, '{"path":"/spec/containers/' + c.name + '/readinessProbe","was":' + `+wasProbe()+` + '}')[0])`,
		`variables.renamed.map(place, `+app+`' + place + '","was":' + strings.quote(variables.portName) + '}')`,
		`(variables.portName == '' ? [] : [`+app+`/ports/user-port/name","was":' + strings.quote(variables.portName) + '}'])`,
		`(variables.port.?hostPort.orValue(0) == 0 ? []
   : [variables.portName == '' ? string(variables.port.containerPort) : variables.portName].map(name,
       (has(variables.port.hostIP) ? [`+app+`/ports/' + name + '/hostIP","was":' + strings.quote(variables.port.hostIP) + '}'] : [])
       + [`+app+`/ports/' + name + '/hostPort","was":' + string(variables.port.hostPort) + '}'])[0])`,
		`(variables.scraped ? ['path', 'port', 'scrape'].map(key, '{"path":"/metadata/annotations/prometheus.io~1' + key + '"}') : [])`,
		`['{"path":"/metadata/annotations/queue-proxy.dev~1status"}']`,
		`(has(object.metadata.annotations) ? [] : ['{"path":"/metadata/annotations","ifEmpty":true}'])`)
	return fmt.Sprintf(`'{"format":%d,"confidence":"' + variables.confidence + '","undo":[' + (`, format) + strings.Join(parts, "\n + ") + `).join(',') + ']}'`
}

// patch makes the changes.
func (p *policy) patch() string {
	annotate := func(key, value string) string {
		return fmt.Sprintf("JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('%s'), value: %s}", key, value)
	}
	hook := "Object.spec.containers.lifecycle.preStop"
	parts := []string{
		`(has(object.metadata.annotations) ? [] : [JSONPatch{op: 'add', path: '/metadata/annotations', value: {}}])`,
		"[" + annotate("queue-proxy.dev/status", "variables.undo") + "]",
		"(!variables.scraped ? [] : [\n    " + annotate("prometheus.io/scrape", "'true'") + ",\n    " +
			annotate("prometheus.io/port", "string(variables.metricsPort)") + ",\n    " + annotate("prometheus.io/path", "'/metrics'") + "])",
		`(variables.portName == '' ? [] : [JSONPatch{op: 'replace', path: variables.portPath + '/name', value: 'user-port'}])`,
		`variables.renamed.map(place, JSONPatch{op: 'replace', path: variables.appPath + place, value: variables.port.containerPort})`,
		`(variables.port.?hostPort.orValue(0) == 0 ? [] : [JSONPatch{op: 'remove', path: variables.portPath + '/hostPort'}]
    + (has(variables.port.hostIP) ? [JSONPatch{op: 'remove', path: variables.portPath + '/hostIP'}] : []))`,
		`object.spec.containers.transformList(i, c, ` + movable + `, JSONPatch{op: 'remove', path: '/spec/containers/' + string(i) + '/readinessProbe'})`,
		`(!variables.holds ? [] : (has(variables.app.lifecycle) ? [] : [JSONPatch{op: 'add', path: variables.appPath + '/lifecycle', value: {}}])
    + [JSONPatch{op: 'add', path: variables.appPath + '/lifecycle/preStop',
        value: ` + hook + `{httpGet: ` + hook + `.httpGet{path: '/wait-for-drain', port: variables.adminPort}}}])`,
		`(variables.longerGrace == variables.grace ? [] : [JSONPatch{op: 'add', path: '/spec/terminationGracePeriodSeconds', value: variables.longerGrace}])`,
	}
	if p.native {
		parts = append(parts, `(has(object.spec.initContainers) ? [] : [JSONPatch{op: 'add', path: '/spec/initContainers', value: []}])`)
	}
	parts = append(parts, "[JSONPatch{op: 'add', path: '/spec/"+p.list()+"/-', value: "+p.container()+"}]")
	return strings.Join(parts, "\n+ ")
}

// container is the sidecar: addSidecar.
func (p *policy) container() string {
	kind := "Object.spec." + p.list()
	get := kind + ".readinessProbe.httpGet"
	fields := []string{
		"name: '" + sidecarName + "'",
		"image: variables.image",
	}
	if p.sidecar.ImagePullPolicy != "" {
		fields = append(fields, "imagePullPolicy: "+quoteCEL(string(p.sidecar.ImagePullPolicy)))
	}
	if p.native {
		fields = append(fields, "restartPolicy: 'Always'",
			fmt.Sprintf("startupProbe: %[1]s.startupProbe{tcpSocket: %[1]s.startupProbe.tcpSocket{port: variables.servingPort},\n    timeoutSeconds: %[2]d, periodSeconds: %[3]d, successThreshold: %[4]d, failureThreshold: %[5]d}",
				kind, p.sidecar.StartupProbe.TimeoutSeconds, p.sidecar.StartupProbe.PeriodSeconds, p.sidecar.StartupProbe.SuccessThreshold, p.sidecar.StartupProbe.FailureThreshold),
			fmt.Sprintf("lifecycle: %[1]s.lifecycle{preStop: %[1]s.lifecycle.preStop{httpGet: %[1]s.lifecycle.preStop.httpGet{path: '/drain', port: variables.adminPort}}}", kind))
	}
	return kind + "{\n  " + strings.Join(append(fields,
		`ports: [
    `+kind+`.ports{name: '`+config.AutoscalerPortName+`', containerPort: variables.autoscalerPort, protocol: 'TCP'},
    `+kind+`.ports{name: '`+config.MetricsPortName+`', containerPort: variables.metricsPort, protocol: 'TCP'},
    `+kind+`.ports{name: variables.portName == '' ? 'queue-port' : variables.portName, containerPort: variables.servingPort, protocol: 'TCP',
      ?hostPort: variables.port.?hostPort, ?hostIP: variables.port.?hostIP}]`,
		"env: "+strings.ReplaceAll(p.environ(), "\n", "\n    "),
		"resources: "+p.fixed("resources", p.sidecar.Resources),
		`readinessProbe: `+kind+`.readinessProbe{
    httpGet: `+get+`{port: variables.servingPort, httpHeaders: [`+get+`.httpHeaders{name: '`+header.Probe+`', value: '`+header.QueueValue+`'}]},
    initialDelaySeconds: variables.first.delay, timeoutSeconds: variables.first.timeout, periodSeconds: variables.first.period,
    successThreshold: variables.first.successes, failureThreshold: variables.first.failures}`,
		strings.Replace("securityContext: "+p.fixed("securityContext", p.sidecar.SecurityContext), "securityContext{",
			fmt.Sprintf("securityContext{\n    ?runAsUser: object.spec.?securityContext.?runAsUser.orValue(1) == 0 ? optional.of(%d) : optional.none(),\n    ", imageUser), 1),
	), ",\n  ") + "\n}"
}
