package inject

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// This file selects the port for requests. No other file selects a port or a container. The
// evidence has the same order as in the table in docs/injection.md: the port option, the Services
// in the input, and the ports of the containers. Names, probes and numbers only select one of the
// remaining ports.

// defaultContainer is the annotation that contains the name of a pod's main container for
// kubectl.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// A Confidence states how well the evidence supports the selected port.
type Confidence string

// Levels of confidence.
const (
	High Confidence = "high" // based on the port option, on a Service and other evidence for HTTP, or on an HTTP port name
	Low  Confidence = "low"
)

// A Port is a TCP port that [Inject] considered as the port for requests.
//
// The JSON names are stable.
type Port struct {
	Container  string     `json:"container,omitempty"` // "" if the container is unknown
	Name       string     `json:"name,omitempty"`      // may be empty
	Number     int32      `json:"number"`
	Selected   bool       `json:"selected"`
	Confidence Confidence `json:"confidence,omitempty"` // "" if Against is set
	Reasons    []string   `json:"reasons,omitempty"`    // the evidence for the port
	Against    string     `json:"against,omitempty"`    // the reason why the port is not used, or ""
}

// A candidate is a Port with the evidence for the selection.
type candidate struct {
	container *corev1.Container // nil if the container is unknown
	port      corev1.ContainerPort
	used      bool          // the port is declared, or a probe or a flag uses it, or the pod has several containers
	found     string        // the source of an undeclared port, or ""
	uncertain bool          // only Services refer to the port, and they are headless, or the pod has other containers or ports
	services  []ServicePort // Service ports that reach the port
	evidence  evidence
	requests  []string  // paths of the HTTP probes that are not health checks
	health    bool      // the only evidence for HTTP is a health check
	row       *imageRow // row of databases.txt that contradicts the name of the port, or nil
	helper    string    // the reason why the container is a helper, or ""
	proxied   bool      // another container is a proxy in front of the port, and no Service refers to the port
}

// healthPath matches the paths of health checks and metrics. The words in the second line are common in
// other paths, so they only match at the end of a path. Sources of less obvious paths: /statusz of
// Kubernetes (KEP-4827), /up of Rails (Rails::HealthController), /isalive and /isready of NAIS, /hc of
// the ASP.NET samples, /__lbheartbeat__ of Mozilla Dockerflow.
var healthPath = regexp.MustCompile(`(?i)(^|[/_-])(metrics|health[a-z]*([_-]?check)?|ready[a-z]*|(readiness|liveness)([_-]?probe)?|live|livez|livecheck|alive|ping|startup|startupz|(lb)?heartbeat)([/?_-]|$)` +
	`|(^|/)(status|statusz|up|ok|hc|is[_-]?(alive|ready|up|live|healthy|started))/?(\?|$)`)

// chooseApp selects the container and its port for requests.
func (in *injection) chooseApp() error {
	containers, err := in.eligible()
	if err != nil {
		return err
	}
	in.readRoutes(containers)
	var all []*candidate
	var chosen *candidate
	if in.options.get(portOption) != "" {
		chosen, err = in.chooseNamedPort(containers)
		all = []*candidate{chosen}
	} else {
		all = in.candidates(containers)
		chosen, err = in.chooseAmong(all, containers)
	}
	if err != nil {
		in.describe(all, nil)
		return err
	}
	in.describe(all, chosen)
	in.app, in.port, in.found = chosen.container, chosen.port, chosen.found
	in.out.Confidence = in.confidence(chosen)
	if in.options.get(portOption) != "" && chosen.evidence.protocol == notForRequests && metricsName.MatchString(in.port.Name) {
		in.warn("the option %s selects port %s of container %s, which is for metrics or health checks according to its name", portOption, describePort(in.port), in.app.Name)
	}
	if in.out.Confidence == Low && in.options.get(sureOption) == string(High) {
		return refuse(Unsure, "port %s of container %s is selected with low confidence (%s), but the option %s requires %s; missing: %s; to select the port: %s",
			describePort(in.port), in.app.Name, strings.Join(in.reasons(chosen), "; "), sureOption, High, in.out.Missing, remedy(portOption, decimal(in.port.ContainerPort)))
	}
	return nil
}

// eligible returns the container that the container option selects. If the option is not set, it returns all
// containers except the proxies of service meshes.
func (in *injection) eligible() ([]*corev1.Container, error) {
	name := in.options.get(containerOption)
	var all []*corev1.Container
	var names []string
	for i := range in.pod.Containers {
		c := &in.pod.Containers[i]
		names = append(names, c.Name)
		if c.Name == name || name == "" && !isMeshProxy(c) {
			all = append(all, c)
		}
	}
	if len(all) == 0 && name == "" {
		return nil, skip(NoPort, "all containers of the pod are proxies of a service mesh")
	}
	if len(all) == 0 {
		return nil, refuse(WhichContainer, "container %q does not exist; the containers are %s", name, strings.Join(names, ", "))
	}
	return all, nil
}

// chooseNamedPort returns the port that the port option selects. It does not check the
// protocol of the port.
func (in *injection) chooseNamedPort(containers []*corev1.Container) (*candidate, error) {
	wanted := in.options.get(portOption)
	all := slices.DeleteFunc(in.declared(containers), func(c *candidate) bool { return c.port.Name != wanted && decimal(c.port.ContainerPort) != wanted })
	n, err := strconv.Atoi(wanted)
	switch {
	case len(all) == 0 && len(containers) > 1:
		return nil, skip(NoPort, "no container declares TCP port %s; to select a container: %s", wanted, remedy(containerOption, containers[0].Name))
	case len(all) == 0 && err != nil:
		return nil, refuse(WhichPort, "container %s has no TCP port with the name %q", containers[0].Name, wanted)
	case len(all) == 0:
		return &candidate{container: containers[0], port: corev1.ContainerPort{ContainerPort: int32(n)}}, nil
	}
	if all, err = in.ofOneContainer(all); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, isCalledHTTP); i >= 0 {
		return all[i], nil
	}
	if len(all) > 1 { // several declared ports have the number, so only a name is unambiguous
		return nil, in.refuseWhichPort(all)
	}
	return all[0], nil
}

func isOnPort80(s ServicePort) bool { return s.Number == 80 }

func isCalledHTTP(c *candidate) bool { return c.port.Name == "http" }

// A route identifies the container port to which a Service port refers.
type route struct {
	container string
	number    int32
}

// readRoutes resolves the ports of the Services. A name resolves to the first container with the
// name, as in Kubernetes. A number resolves to the container that declares it. If no container
// declares it, listening returns the container. Port numbers of the sidecar are ignored, because
// a Service can use them before the injection. Placeholders are also ignored.
func (in *injection) readRoutes(containers []*corev1.Container) {
	in.routes, in.unrouted, in.placeholders = map[route][]ServicePort{}, nil, nil
	ours := map[int32]bool{}
	for _, u := range defaultPorts[:2] {
		n, _ := strconv.Atoi(cmp.Or(in.options.get(u.option), decimal(u.number))) // the value is valid, because the options have been validated
		ours[int32(n)] = true
	}
	byName, byNumber := map[string]route{}, map[int32]route{}
	for _, c := range in.pod.Containers {
		for _, p := range c.Ports {
			r := route{c.Name, p.ContainerPort}
			if _, taken := byName[p.Name]; overTCP(p) && !taken {
				byName[p.Name] = r
			}
			if _, taken := byNumber[p.ContainerPort]; overTCP(p) && !taken {
				byNumber[p.ContainerPort] = r
			}
		}
	}
	used := in.usedNumbers(containers)
	for _, s := range in.services {
		r, known := byName[s.Target.StrVal]
		placeholder := false
		if n := s.Target.IntVal; s.Target.StrVal == "" {
			if r, known = byNumber[n]; !known && !ours[n] && n > 0 && n < 1<<16 {
				r, known = route{in.listening(containers, n), n}, true
				placeholder = s.Headless && !used[n] && !isWebPort(s, containers)
			}
		}
		switch {
		case placeholder:
			in.placeholders = append(in.placeholders, s)
		case !known:
		case r.container == "":
			in.unrouted = append(in.unrouted, s)
		default:
			in.routes[r] = append(in.routes[r], s)
		}
	}
}

// isWebPort reports whether a container of the pod can be the web server that a Service
// port reaches.
func isWebPort(s ServicePort, containers []*corev1.Container) bool {
	hasName := s.Name == "" || byName("", s.Name).protocol == plainHTTP
	return hasName && httpPorts[s.Target.IntVal] == "HTTP" && slices.ContainsFunc(containers, isWebServer)
}

// usedNumbers returns the port numbers that occur in the containers or in a Service that is not
// headless. If no Service is headless, the result is nil.
func (in *injection) usedNumbers(containers []*corev1.Container) map[int32]bool {
	if !slices.ContainsFunc(in.services, func(s ServicePort) bool { return s.Headless }) {
		return nil
	}
	all := in.numbersOf(containers)
	for _, s := range in.services {
		all[s.Target.IntVal] = all[s.Target.IntVal] || !s.Headless
	}
	return all
}

// numbersOf returns the numbers in the probes, the command lines and the variables of containers.
func (in *injection) numbersOf(containers []*corev1.Container) map[int32]bool {
	all := map[int32]bool{}
	read := func(text string) {
		for number := range numbersIn(text) {
			if n, err := strconv.ParseUint(number, 10, 16); err == nil {
				all[int32(n)] = true
			}
		}
	}
	for _, c := range containers {
		for _, p := range probesOf(c) {
			all[probedPort(p.Probe)] = true
			if p.Exec != nil {
				read(strings.Join(p.Exec.Command, " "))
			}
		}
		container := At(in.object, "spec", "containers", c.Name)
		for _, line := range commandLine(container) {
			read(line)
		}
		for _, s := range parametersOf(container) {
			if anyOf(s.words, listenWords) {
				read(s.value)
			}
		}
	}
	return all
}

// listening returns the name of the container that listens on an undeclared port. If the pod has
// several containers, the result is the only container with a probe, a flag or a variable for the
// port. If there is no such container, the result is the only container for which namesOtherPort
// returns false. If several containers remain, the result is "".
func (in *injection) listening(containers []*corev1.Container, n int32) string {
	uses := func(c *corev1.Container) bool {
		return isProbed(c, n) || mentions(At(in.object, "spec", "containers", c.Name), n)
	}
	canListen := func(c *corev1.Container) bool { return helperReason(c, in.meta.Labels) == "" && !in.namesOtherPort(c) }
	for _, remains := range []func(*corev1.Container) bool{
		func(*corev1.Container) bool { return len(containers) == 1 }, uses, canListen,
	} {
		all := slices.DeleteFunc(slices.Clone(containers), func(c *corev1.Container) bool { return !remains(c) })
		if len(all) == 1 {
			return all[0].Name
		} else if len(all) > 1 {
			break
		}
	}
	return ""
}

// namesOtherPort reports whether a container declares a TCP port for requests, or has a flag or a
// variable with the address on which it listens. Such a container declares or configures all of its
// ports.
func (in *injection) namesOtherPort(c *corev1.Container) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
		return overTCP(p) && byName("", p.Name).protocol != notForRequests
	}) || listens(At(in.object, "spec", "containers", c.Name))
}

// servicesOf returns the Service ports that reach a port of a container.
func (in *injection) servicesOf(c *corev1.Container, p corev1.ContainerPort) []ServicePort {
	return in.routes[route{c.Name, p.ContainerPort}]
}

// candidates returns the declared ports and the ports of the Services. If there are none, it
// returns the ports of the readiness probes that are not health checks. If there are no such
// probes, and exactly one port occurs in the other probes, the flags and the variables of the only
// main container, it returns this port.
func (in *injection) candidates(containers []*corev1.Container) []*candidate {
	all := in.declared(containers)
	add := func(c *corev1.Container, n int32, found string) {
		known := func(o *candidate) bool { return o.container == c && o.port.ContainerPort == n }
		if n > 0 && n < 1<<16 && !slices.ContainsFunc(all, known) {
			all = append(all, in.candidate(c, corev1.ContainerPort{ContainerPort: n}, found))
		}
	}
	for _, s := range in.services {
		for _, c := range containers {
			n := s.Target.IntVal
			if reaches := in.routes[route{c.Name, n}]; s.Target.StrVal == "" && len(reaches) > 0 {
				add(c, n, "Service "+s.Service+" uses the port")
			}
		}
	}
	for _, s := range in.unrouted {
		add(nil, s.Target.IntVal, "Service "+s.Service+" uses the port")
	}
	if len(all) > 0 {
		return all
	}
	for _, c := range containers {
		if p := c.ReadinessProbe; p != nil && (p.HTTPGet == nil || !healthPath.MatchString(p.HTTPGet.Path)) {
			add(c, probedPort(p), "the readiness probe uses the port")
		}
	}
	if len(all) > 0 {
		return all
	}
	in.addHints(containers, add)
	if len(all) > 1 { // the port is ambiguous, because flags and variables often contain the ports of other servers
		return nil
	}
	return all
}

// addHints calls add for each port that a probe, a flag or a variable names, if the pod has one
// main container. Helpers and databases are not main containers.
func (in *injection) addHints(containers []*corev1.Container, add func(c *corev1.Container, n int32, found string)) {
	mains := slices.DeleteFunc(slices.Clone(containers), func(c *corev1.Container) bool {
		h := in.hintsOf(c)
		return h.helper != "" || h.image.protocol == notHTTP
	})
	if len(mains) != 1 {
		return
	}
	c := mains[0]
	h := in.hintsOf(c)
	for _, n := range slices.Sorted(maps.Keys(h.requests)) {
		add(c, n, "a probe sends a request to the port")
	}
	for _, n := range slices.Sorted(maps.Keys(h.serves)) {
		add(c, n, h.serves[n])
	}
	for _, n := range slices.Sorted(maps.Keys(h.flags)) {
		if h.flags[n].protocol == plainHTTP {
			add(c, n, h.flags[n].why)
		}
	}
}

// declared returns the TCP ports that containers declare.
func (in *injection) declared(containers []*corev1.Container) []*candidate {
	var all []*candidate
	for _, c := range containers {
		for _, p := range c.Ports {
			if overTCP(p) {
				all = append(all, in.candidate(c, p, ""))
			}
		}
	}
	return all
}

// candidate returns a port with its evidence. c is nil if the container is unknown. found is the
// source of an undeclared port, or "".
func (in *injection) candidate(c *corev1.Container, p corev1.ContainerPort, found string) *candidate {
	o := &candidate{container: c, port: p, found: found}
	if c == nil {
		o.used = true
		for _, s := range in.unrouted {
			if s.Target.IntVal == p.ContainerPort {
				o.services = append(o.services, s)
			}
		}
		return o
	}
	h, n := in.hintsOf(c), p.ContainerPort
	named := found == "" || h.serves[n] != "" || h.flags[n].why != "" || isProbed(c, n)
	o.used = named || len(in.pod.Containers) > 1
	o.services, o.evidence, o.requests = in.servicesOf(c, p), in.evidenceOf(c, p), h.requests[n]
	o.health = h.health[n] && len(o.requests) == 0 && isProbeEvidence(c, p, o.evidence) && h.serves[n] == ""
	isHeadless := !slices.ContainsFunc(o.services, func(s ServicePort) bool { return !s.Headless })
	o.uncertain = !named && (len(in.pod.Containers) > 1 || in.namesOtherPort(c) || len(o.services) > 0 && isHeadless)
	if len(in.pod.Containers) > 1 && len(o.services) == 0 {
		o.helper = h.helper
	}
	if why := in.proxyOf(c, n); why != "" && o.evidence.takesRequests() && !o.hasService() {
		o.evidence, o.proxied = evidence{notForRequests, why}, true
	}
	if i := slices.IndexFunc(h.rows, func(r *imageRow) bool { return r.applies(n) }); i >= 0 {
		o.row = h.rows[i]
		o.readImageRow(h)
	}
	return o
}

// isProbeEvidence reports whether the evidence comes from a probe of the port.
func isProbeEvidence(c *corev1.Container, p corev1.ContainerPort, s evidence) bool {
	return slices.ContainsFunc(probesOf(c), func(probe namedProbe) bool { return s.why != "" && s == byProbe(probe, c, p) })
}

// readImageRow replaces the evidence for the port with the evidence from the row of databases.txt
// in c.row, if the row contradicts the existing evidence.
func (c *candidate) readImageRow(h *hints) {
	n := c.port.ContainerPort
	// A row for all ports of an image is used if the protocol is unknown, or if no Service contains
	// the port. A row for TLS is also used if the port is named grpc, or if its number is commonly
	// used for TLS and no Service exposes it as port 80. A port whose name indicates HTTP is
	// rejected only if all of its probes are health checks.
	isTLS := c.row.kind == "tls" && (c.isGRPC() || isTLSNumber(n) && !slices.ContainsFunc(c.services, isOnPort80))
	contradicts := c.row.ports != nil || c.evidence.protocol == unknownProtocol || isTLS
	if !contradicts && len(c.services) == 0 {
		contradicts = c.evidence.protocol != plainHTTP || byName("", c.port.Name).protocol != plainHTTP || h.health[n] && len(c.requests) == 0
	}
	if contradicts && c.evidence.takesRequests() && !slices.ContainsFunc(c.services, func(s ServicePort) bool { return byAppProtocol("", s.AppProtocol).protocol == plainHTTP }) {
		c.evidence = c.row.evidence(c.container)
	}
}

// chooseAmong selects one of the candidates, or returns an error that lists them.
//
//nolint:gocognit // the rules in their order
func (in *injection) chooseAmong(all []*candidate, containers []*corev1.Container) (*candidate, error) {
	named := slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return !c.hasService() })
	pool := all
	switch {
	case len(named) > 0:
		pool = named
		for _, c := range all {
			if len(c.services) == 0 && c.evidence.takesRequests() {
				c.evidence = evidence{notForRequests, "Service " + named[0].services[0].Service + " uses another port"}
			}
		}
	case in.noTCP != "":
		return nil, skip(NotHTTP, "Service %s only has ports for %s, and no other Service of the pod has a TCP port; if the pod serves HTTP requests: %s", in.noTCP, in.noTCPProtocol, in.remedyOf(all))
	case len(all) == 0:
		return nil, in.skipNoPort(containers)
	default:
		ignoreWeakPorts(all)
	}
	usable := slices.DeleteFunc(slices.Clone(pool), func(c *candidate) bool { return !c.evidence.takesRequests() })
	isStore := func(c *candidate) bool { return c.evidence.protocol == notHTTP && (len(named) == 0 || in.isStore(c)) }
	if slices.ContainsFunc(pool, isStore) {
		// If the pod contains a database, a port for which there is no evidence probably belongs to
		// a helper of the database. If a Service refers to such a port, a common port number is not
		// sufficient evidence.
		usable = slices.DeleteFunc(usable, func(c *candidate) bool {
			return c.container != nil && (c.evidence.protocol == unknownProtocol || len(c.services) > 0 && c.evidence == byCommonNumber(c.port))
		})
	}
	if i := slices.IndexFunc(all, func(c *candidate) bool { return c.proxied }); i >= 0 && len(named) == 0 {
		if usable = slices.DeleteFunc(usable, func(c *candidate) bool { return !c.isClear() }); len(usable) == 0 {
			return nil, in.skipProxied(all[i], all)
		}
	}
	if len(usable) == 0 {
		return nil, in.noneUsable(all, named, pool)
	}
	main := slices.DeleteFunc(slices.Clone(usable), func(c *candidate) bool { return c.helper != "" })
	if len(main) == 0 {
		return nil, in.skipHelpers(usable, containers)
	}
	if len(named) == 0 {
		var err error
		if main, err = in.ofOneContainer(main); err != nil {
			return nil, err
		}
		if hasPort(main, otlpOverGRPC) && hasPort(main, otlpOverHTTP) {
			return nil, in.refuseWhichPort(main)
		}
	} else {
		main = in.withoutConsoles(main)
		if all := rivals(main); len(all) > 1 {
			return nil, in.refuseWhichPort(all)
		}
	}
	chosen, err := in.narrow(main, containers)
	if err != nil || len(named) > 0 {
		return chosen, err
	}
	if other := in.probedOther(chosen); other != nil {
		return nil, in.refuseWhichPort([]*candidate{chosen, other})
	}
	return chosen, nil
}

// noneUsable returns the error for a pod in which none of the ports in pool receives HTTP requests.
// named contains the ports with a Service: see hasService.
func (in *injection) noneUsable(all, named, pool []*candidate) error {
	isHTTP := func(s ServicePort) bool { return byName("", s.Name).protocol == plainHTTP }
	for _, c := range all {
		i := slices.IndexFunc(c.services, isHTTP)
		if i >= 0 && len(named) > 0 && isPeer(c.port) && !c.evidence.takesRequests() {
			in.out.Missing = "the port that receives the requests"
			return refuse(WhichPort, "port %s of container %s has the name %s in Service %s, but %s; if the container serves HTTP requests: %s",
				describePort(c.port), c.container.Name, c.services[i].Name, c.services[i].Service, c.evidence.why, in.flagsOf(named))
		}
	}
	return in.skipNotHTTP(pool)
}

// probedOther returns an undeclared port that a TCP or gRPC probe of the selected container uses,
// or nil if there is none. The probe shows that this port is open. The selected port might be
// closed if it has neither an HTTP name nor a probe, and the pod would then never become ready.
func (in *injection) probedOther(selected *candidate) *candidate {
	c, n := selected.container, selected.port.ContainerPort
	if selected.found != "" || byName("", selected.port.Name).protocol == plainHTTP || slices.ContainsFunc(probesOf(c), func(p namedProbe) bool {
		probed := probedPort(p.Probe)
		if p.HTTPGet != nil {
			probed, _ = resolve(p.HTTPGet.Port, c) // 0 if the name is unknown
		}
		return probed == n
	}) {
		return nil
	}
	for _, p := range probesOf(c) {
		other := probedPort(p.Probe)
		declares := slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == other })
		if p.HTTPGet == nil && other != 0 && !declares {
			return in.candidate(c, corev1.ContainerPort{ContainerPort: other}, "the "+p.name+" probe uses the port")
		}
	}
	return nil
}

// ignoreWeakPorts rejects ports if all Services of the pod are for metrics or for peers. It rejects
// each port that no Service uses and for which there is no evidence except a common number. If such
// a port received requests, the pod would usually have another Service.
func ignoreWeakPorts(all []*candidate) {
	i := slices.IndexFunc(all, func(c *candidate) bool { return len(c.services) > 0 })
	if i < 0 {
		return
	}
	for _, c := range all {
		if len(c.services) == 0 && (c.evidence.protocol == unknownProtocol || c.evidence == byCommonNumber(c.port)) {
			c.evidence = evidence{notForRequests, "the only Service, " + all[i].services[0].Service + ", is for metrics"}
		}
	}
}

// Ports of the OpenTelemetry protocol (OTLP). A collector serves clients on both ports,
// so the injector cannot select one of them.
const (
	otlpOverGRPC = 4317
	otlpOverHTTP = 4318
)

func hasPort(all []*candidate, n int32) bool {
	return slices.ContainsFunc(all, func(c *candidate) bool { return c.port.ContainerPort == n })
}

// rivals returns the ports that appear to serve HTTP, or all ports if one of them is an
// OTLP port. If Services expose more than one of these ports, the injector cannot select
// one, because the sidecar forwards requests to a single port.
func rivals(all []*candidate) []*candidate {
	if hasPort(all, otlpOverGRPC) || hasPort(all, otlpOverHTTP) {
		return all
	}
	if used := slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return !c.used }); len(used) > 0 {
		all = used
	}
	return slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return c.evidence.protocol != plainHTTP })
}

// consoleName matches the names of ports for a console, such as minio-console.
var consoleName = regexp.MustCompile(`(^|-)console(-|$)`)

// withoutConsoles returns the ports that are not console ports, and sets the evidence field of the console
// ports. A port is a console port if its name and a parameter such as --console-address=:9001 contain the
// word console. If there are only console ports, withoutConsoles returns all ports and does not set the
// field.
func (in *injection) withoutConsoles(all []*candidate) []*candidate {
	isConsole := func(c *candidate) bool {
		isName := func(s ServicePort) bool { return consoleName.MatchString(s.Name) }
		return c.container != nil && in.hintsOf(c.container).consoles[c.port.ContainerPort] && (consoleName.MatchString(c.port.Name) || slices.ContainsFunc(c.services, isName))
	}
	others := slices.DeleteFunc(slices.Clone(all), isConsole)
	if len(others) == 0 {
		return all
	}
	for _, c := range all {
		if !slices.Contains(others, c) {
			c.evidence = evidence{notForRequests, "the name of the port and the name of a flag or variable contain the word console"}
		}
	}
	return others
}

// notStores contains the rows of ports.txt for servers that are neither a database nor a broker,
// and that often serve HTTP on another port, such as Git servers, log collectors, and Jenkins.
var notStores = []string{"SSH", "Fluentd", "syslog", "memberlist", "Consul", "Docker", "Jenkins agents or Db2"}

// isStore reports whether the port number, the image, or the command of a probe indicates a
// database or a broker.
func (in *injection) isStore(c *candidate) bool {
	of, h := rawPorts[c.port.ContainerPort], in.hintsOf(c.container)
	return of != "" && !slices.Contains(notStores, of) || h.image.protocol == notHTTP || h.commands.protocol == notHTTP
}

// narrow applies the evidence that selects one of several ports, the strongest first.
func (in *injection) narrow(all []*candidate, containers []*corev1.Container) (*candidate, error) {
	for _, prefer := range preferences {
		if better := slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return !prefer(c) }); len(better) > 0 {
			all = better
		}
	}
	if len(namesOf(all)) > 1 {
		var err error
		if all, err = in.ofOneContainer(all); err != nil {
			return nil, err
		}
	}
	switch {
	case len(all) > 1:
		return nil, in.refuseWhichPort(all)
	case all[0].container == nil:
		in.out.Missing = "the container that receives the requests"
		return nil, skip(NoPort, "%s, but no container declares port %d; select a container: %s", all[0].found, all[0].port.ContainerPort,
			in.flagsForContainers(containers, all[0].services[0]))
	}
	return all[0], nil
}

// webName matches the names of ports for HTTP, except the names for gRPC. Many servers have a
// second port for gRPC.
var webName = regexp.MustCompile(`^(http[0-9]*|httpport|h2c|web|www|rest|graphql|ws|websocket)(-|$)`)

// preferences select one of several possible ports. The first preference is the strongest.
var preferences = []func(*candidate) bool{
	func(c *candidate) bool { return c.used },
	isCalledHTTP,
	func(c *candidate) bool {
		return slices.ContainsFunc(c.services, func(s ServicePort) bool { return s.Name == "http" })
	},
	func(c *candidate) bool { return slices.ContainsFunc(c.services, isOnPort80) },
	func(c *candidate) bool { return webName.MatchString(c.port.Name) },
	func(c *candidate) bool { return len(c.requests) > 0 },
	func(c *candidate) bool {
		return c.evidence.protocol == plainHTTP && !c.isGRPC() && !c.health && (len(c.services) == 0 || c.evidence != byCommonNumber(c.port))
	},
}

// hasService reports whether a Service uses the port. It ignores Services for metrics and for
// peers.
func (c *candidate) hasService() bool {
	return slices.ContainsFunc(c.services, func(s ServicePort) bool { return !isAside(s, c.container) })
}

// isClear reports whether the name or a probe of the port shows that the port is for
// requests. If another port is behind a proxy, weaker evidence is not sufficient.
func (c *candidate) isClear() bool {
	return c.helper == "" && (byName("", c.port.Name).protocol == plainHTTP || len(c.requests) > 0)
}

// isGRPC reports whether the name of the port, or the name or the appProtocol in a Service,
// indicates gRPC.
func (c *candidate) isGRPC() bool {
	return strings.HasPrefix(c.port.Name, "grpc") || slices.ContainsFunc(c.services, func(s ServicePort) bool {
		return strings.HasPrefix(s.Name, "grpc") || strings.HasSuffix(s.AppProtocol, "grpc")
	})
}

// ofOneContainer returns the ports if all of them belong to one container. Otherwise, it returns
// the ports of the container that kubectl's annotation names. It returns an error if there are
// several containers and no annotation.
func (in *injection) ofOneContainer(all []*candidate) ([]*candidate, error) {
	names := namesOf(all)
	if len(names) == 1 {
		return all, nil
	}
	if usual := in.meta.Annotations[defaultContainer]; usual != "" && slices.Contains(names, usual) {
		return slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return c.container == nil || c.container.Name != usual }), nil
	}
	in.out.Missing = "the container that receives the requests"
	return nil, refuse(WhichContainer, "containers %s have ports for requests; select a container: %s", strings.Join(names, " and "), in.flagsOf(all))
}

// namesOf returns the names of the containers without duplicates. An unknown container has the name
// "".
func namesOf(all []*candidate) []string {
	var names []string
	for _, c := range all {
		name := ""
		if c.container != nil {
			name = c.container.Name
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// confidence returns the confidence of a port.
func (in *injection) confidence(c *candidate) Confidence {
	switch {
	case in.options.get(portOption) != "":
		return High
	case c.row != nil || c.uncertain:
		return Low
	case len(c.services) > 0 && c.evidence.protocol == plainHTTP, byName("", c.port.Name).protocol == plainHTTP:
		return High
	}
	return Low
}

// reasons returns the evidence for a port, the strongest first.
func (in *injection) reasons(c *candidate) []string {
	var all []string
	add := func(format string, args ...any) {
		if reason := message.Printable(fmt.Sprintf(format, args...)); !slices.Contains(all, reason) {
			all = append(all, reason)
		}
	}
	if in.options.get(portOption) != "" {
		return []string{"the option " + portOption + " is set"}
	}
	for _, s := range c.services[:min(len(c.services), maxNamedServices)] {
		switch {
		case byAppProtocol("", s.AppProtocol).protocol == plainHTTP:
			add("Service %s uses the port with appProtocol %s", s.Service, s.AppProtocol)
		case s.Name != c.port.Name && byName("", s.Name).protocol == plainHTTP:
			add("Service %s uses the port with the name %s", s.Service, s.Name)
		default:
			add("Service %s uses the port", s.Service)
		}
	}
	switch {
	case c.port.Name != "":
		add("declared as %s", c.port.Name)
	case c.found == "":
		add("declared")
	}
	if c.container == nil {
		return all
	}
	for _, path := range c.requests {
		add("probe GET %.60s", path)
	}
	for _, probe := range probesOf(c.container) {
		if probe.GRPC != nil && probe.GRPC.Port == c.port.ContainerPort {
			add("gRPC probe")
		} else if probe.HTTPGet == nil && probedPort(probe.Probe) == c.port.ContainerPort && c.found != "" {
			add("TCP probe")
		}
	}
	h := in.hintsOf(c.container)
	if text := h.serves[c.port.ContainerPort]; text != "" && text == c.found {
		add("%s", text)
	}
	for _, s := range []evidence{h.probed[c.port.ContainerPort], h.bySpring(c.port.ContainerPort), h.flags[c.port.ContainerPort], byNumber(c.port, c.services, h), byCommonNumber(c.port)} {
		if s.protocol == plainHTTP && s == c.evidence { // s is the strongest evidence for HTTP
			add("%s", s.why)
		}
	}
	if c.uncertain {
		add("but container %s does not declare the port", c.container.Name)
	}
	if c.row != nil && c.evidence.takesRequests() {
		add("but %s", c.row.evidence(c.container).why)
	}
	return all
}

// describe records the ports that were considered, and the information that is missing.
func (in *injection) describe(all []*candidate, chosen *candidate) {
	const limit = 50 // maximum number of ports in the result, because a pod may have thousands
	for _, c := range all[:min(len(all), limit)] {
		if c == nil {
			continue
		}
		p := Port{Name: c.port.Name, Number: c.port.ContainerPort, Selected: c == chosen, Reasons: in.reasons(c)}
		if c.container != nil {
			p.Container = c.container.Name
		}
		switch {
		case c == chosen || c.evidence.takesRequests() && c.helper == "":
			p.Confidence = in.confidence(c)
		default:
			p.Against = cmp.Or(c.helper, c.evidence.why)
		}
		in.out.Ports = append(in.out.Ports, p)
	}
	if chosen == nil || in.confidence(chosen) == High {
		return
	}
	var missing []string
	if len(chosen.services) == 0 {
		missing = append(missing, "a Service that uses the port")
	}
	if chosen.evidence.protocol != plainHTTP || len(chosen.services) == 0 {
		missing = append(missing, "a port name such as http")
	}
	if chosen.uncertain {
		missing = []string{"a container that declares the port"}
	}
	if chosen.row != nil {
		missing = []string{"the option " + portOption}
	}
	in.out.Missing = strings.Join(missing, " or ")
}

// flagsOf returns the flag that selects each of the most likely candidates, with the reasons, in
// the order of byLikelihood.
func (in *injection) flagsOf(all []*candidate) string {
	const limit = 6
	several := len(in.pod.Containers) > 1
	var flags []string
	for _, c := range byLikelihood(all)[:min(len(all), limit)] {
		flag := fmt.Sprintf("--%s %d", portOption, c.port.ContainerPort)
		if several && c.container != nil {
			flag = fmt.Sprintf("--%s %s ", containerOption, c.container.Name) + flag
		}
		flags = append(flags, fmt.Sprintf("%s (%s)", flag, strings.Join(in.reasons(c), ", ")))
	}
	text := strings.Join(flags, " or ")
	if len(all) > limit {
		text += fmt.Sprintf(" or one of %d other ports", len(all)-limit)
	}
	return text + in.sameByAnnotation()
}

// sameByAnnotation returns the last sentence of an error that lists flags. The sentence
// names the equivalent annotation.
func (in *injection) sameByAnnotation() string {
	if len(in.pod.Containers) > 1 {
		return "; the annotations " + Prefix + containerOption + " and " + Prefix + portOption + " do the same"
	}
	return "; the annotation " + Prefix + portOption + " does the same"
}

// flagsForContainers returns the flags for each container that can listen on an undeclared port of
// a Service. A container with the name of the Service or of the application is listed first.
// Helpers are listed last.
func (in *injection) flagsForContainers(containers []*corev1.Container, s ServicePort) string {
	const limit = 6
	if len(in.pod.Containers) == 1 {
		return remedy(portOption, decimal(s.Target.IntVal))
	}
	reason := func(c *corev1.Container) (text string, rank int) {
		if c.Name == s.Service {
			return " (the Service has the same name)", 0
		}
		for _, key := range nameLabels {
			if in.meta.Labels[key] == c.Name {
				return fmt.Sprintf(" (the label %s has the same value)", key), 1
			}
		}
		if why := helperReason(c, in.meta.Labels); why != "" {
			return " (" + why + ")", 3
		}
		return "", 2
	}
	sorted := slices.Clone(containers)
	slices.SortStableFunc(sorted, func(a, b *corev1.Container) int {
		_, i := reason(a)
		_, j := reason(b)
		return i - j
	})
	var flags []string
	for _, c := range sorted[:min(len(sorted), limit)] {
		why, _ := reason(c)
		flags = append(flags, fmt.Sprintf("--%s %s --%s %d%s", containerOption, c.Name, portOption, s.Target.IntVal, why))
	}
	text := strings.Join(flags, " or ")
	if len(sorted) > limit {
		text += fmt.Sprintf(" or one of %d other containers", len(sorted)-limit)
	}
	return text + in.sameByAnnotation()
}

// byLikelihood sorts the candidates by their evidence in descending order, with the ports for metrics
// and health checks at the end.
func byLikelihood(all []*candidate) []*candidate {
	scores := map[*candidate]int{}
	for _, c := range all {
		for i, prefer := range preferences {
			if prefer(c) {
				scores[c] += 1 << (len(preferences) - i)
			}
		}
		if len(c.services) > 0 {
			scores[c] += 1 << 10
		}
		if c.evidence.takesRequests() {
			scores[c] += 1 << 9
		}
		if c.evidence.protocol == notForRequests {
			scores[c] -= 1 << 11
		}
	}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b *candidate) int { return scores[b] - scores[a] })
	return sorted
}

// remedyOf returns the flag for the first candidate in the order of byLikelihood.
func (in *injection) remedyOf(all []*candidate) string {
	if len(all) == 0 {
		return fmt.Sprintf("set the flag --%s or the annotation %s%s", portOption, Prefix, portOption)
	}
	c := byLikelihood(all)[0]
	text := remedy(portOption, decimal(c.port.ContainerPort))
	if len(in.pod.Containers) > 1 && c.container != nil {
		text = fmt.Sprintf("--%s %s ", containerOption, c.container.Name) + text
	}
	return text
}

// skipNotHTTP returns the error for a pod without a port for HTTP requests. It lists the ports.
func (in *injection) skipNotHTTP(all []*candidate) error {
	const limit = 4
	for _, c := range all {
		if c.evidence.takesRequests() {
			c.evidence = evidence{notHTTP, "there is no evidence for HTTP on this port, and another port is not for HTTP"}
		}
	}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b *candidate) int { return int(a.evidence.protocol - b.evidence.protocol) })
	var texts []string
	for _, c := range sorted[:min(len(sorted), limit)] {
		is := map[protocol]string{notHTTP: "is not for HTTP", overTLS: "is for TLS", notForRequests: "is not for requests"}[c.evidence.protocol]
		texts = append(texts, fmt.Sprintf("port %s of container %s %s: %s", describePort(c.port), c.container.Name, is, c.evidence.why))
	}
	in.out.Missing = "a port for plain HTTP requests"
	// The port option does not select a port with a probe that uses HTTPS: see checkPlainText.
	possible := slices.DeleteFunc(sorted, func(c *candidate) bool { return probedOverTLS(c.container, c.port) })
	if len(possible) == 0 {
		return skip(NotHTTP, "%s; the sidecar requires a port for plain HTTP", strings.Join(texts, "; "))
	}
	return skip(NotHTTP, "%s; if a port serves plain HTTP requests: %s", strings.Join(texts, "; "), in.remedyOf(possible))
}

// probedOverTLS reports whether a probe uses HTTPS on a port of a container.
func probedOverTLS(c *corev1.Container, p corev1.ContainerPort) bool {
	return slices.ContainsFunc(probesOf(c), func(probe namedProbe) bool { return byProbe(probe, c, p).protocol == overTLS })
}

// skipNoPort returns the error for a pod if nothing in the input indicates its port.
func (in *injection) skipNoPort(containers []*corev1.Container) error {
	in.out.Missing = "a declared port, or a Service that uses a port"
	if len(in.placeholders) > 0 {
		s := in.placeholders[0]
		in.out.Missing = "a container that declares the port"
		return skip(NoPort, "only the headless Service %s uses port %d, and no container declares or uses the port; if the pod serves requests on this port: %s",
			s.Service, s.Target.IntVal, in.flagsForContainers(containers, s))
	}
	for _, c := range containers {
		p := c.ReadinessProbe
		n := probedPort(p)
		if p == nil || p.HTTPGet == nil || n == 0 || !healthPath.MatchString(p.HTTPGet.Path) {
			continue
		}
		flag := remedy(portOption, decimal(n))
		if len(containers) > 1 {
			flag = fmt.Sprintf("--%s %s ", containerOption, c.Name) + flag
		}
		return skip(NoPort, "no container declares a TCP port, and no Service selects a port; the readiness probe of container %s only checks the health on port %d (GET %s); if the port serves requests: %s",
			c.Name, n, message.Printable(fmt.Sprintf("%.60s", p.HTTPGet.Path)), flag)
	}
	if len(containers) > 1 {
		return skip(NoPort, "no container declares a TCP port, and no Service or readiness probe refers to a port; if the pod serves requests, set the flags --%[1]s and --%[2]s or the annotations %[3]s%[1]s and %[3]s%[2]s",
			containerOption, portOption, Prefix)
	}
	return skip(NoPort, "container %s declares no TCP port, and no Service or readiness probe refers to a port; if the container serves requests, %s", containers[0].Name, in.remedyOf(nil))
}

// skipHelpers returns the error for a pod in which only helpers have a port for requests. A
// container that is not a helper is more likely to serve the requests, even though its port is
// unknown.
func (in *injection) skipHelpers(helpers []*candidate, containers []*corev1.Container) error {
	const limit = 6
	in.out.Missing = "a port of the main container"
	var others []string
	for _, c := range containers {
		if !slices.Contains(namesOf(helpers), c.Name) && len(others) < limit {
			others = append(others, fmt.Sprintf("--%s %s --%s PORT", containerOption, c.Name, portOption))
		}
	}
	if len(others) == 0 {
		return skip(NoPort, "%s, and the pod has no main container; if the helper serves requests: %s", helpers[0].helper, in.flagsOf(helpers))
	}
	return skip(NoPort, "%s, and the other containers have no port for requests; if another container serves requests: %s; if the helper serves the requests: %s",
		helpers[0].helper, strings.Join(others, " or "), in.flagsOf(helpers))
}

func (in *injection) refuseWhichPort(all []*candidate) error {
	in.out.Missing = "the port that receives the requests"
	var names []string
	for _, c := range all {
		names = append(names, describePort(c.port))
	}
	which := "no container declares"
	switch containers := namesOf(all); {
	case len(containers) > 1:
		which = "the Services use"
	case containers[0] != "":
		which = "container " + containers[0] + " has"
	}
	return refuse(WhichPort, "%s the ports %s for requests; select a port: %s", which, strings.Join(names, " and "), in.flagsOf(all))
}

// remedy returns the flag and the annotation that set an option.
func remedy(option, value string) string {
	return fmt.Sprintf("--%s %s, or the annotation %s%s: %q", option, value, Prefix, option, value)
}
