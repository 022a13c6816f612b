package inject

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The sidecar only supports HTTP. If it were injected in front of a database, the pod would become
// ready, but every client would receive status 400. Therefore, the protocol of a port is examined
// before the port is selected.
//
// No evidence in a pod is conclusive. (*injection).evidenceOf defines the order of the evidence,
// and docs/injection.md describes it. The port option overrides all evidence.

// A protocol classifies the traffic of a port. It distinguishes only the cases that affect the
// injection.
type protocol int

const (
	unknownProtocol protocol = iota // there is no evidence for or against HTTP
	plainHTTP
	// Ports with the following protocols receive no requests. skipNotHTTP reports ports in
	// the order of these protocols.
	notHTTP
	overTLS
	notForRequests // the port is for metrics, health checks or peers, with any protocol
)

// evidence contains the protocol of a port and the reason for it.
type evidence struct {
	protocol protocol
	why      string
}

// takesRequests reports whether the port can receive requests.
func (s evidence) takesRequests() bool {
	return s.protocol == unknownProtocol || s.protocol == plainHTTP
}

// Patterns for port names. A name consists of words separated by dashes (RFC 6335 section 5.1). The
// names of Istio and of many charts begin with the protocol. byName defines the order of the
// patterns. The admission policy contains the same expressions.
var (
	sideName = regexp.MustCompile(`(^|-)(metrics?|prom|prometheus|telemetry|monitor|monitoring|stats|statsd|exporter|jmx|jolokia|admin|mgmt|mgt|management|actuator|` +
		`health|healthz|healthy|healthcheck|healthprobe|livez|liveness|readyz|readiness|probe|probes|status|debug|delve|dlv|pprof|profiling|profiler|http-endpoint|gossip|memberlist|raft|peer|peers|cluster|clustering)(-|$)`)
	tlsName  = regexp.MustCompile(`(^|-)([a-z]*https[0-9]*|tls|ssl|mtls|wss|secure|websecure|webhook-server|hbone)(-|$)`)
	httpName = regexp.MustCompile(`^(http[0-9]*|httpport|h2c|grpc|grpc-web|web|www|rest|graphql|ws|websocket)(-|$)`)
	rawName  = regexp.MustCompile(`(^|-)(tcp|udp|redis|valkey|sentinel|mysql|mariadb|mysqlx|postgres|postgresql|pgsql|postgre|pg|pgbouncer|mongo|mongodb|mongos|kafka|plaintext|broker|` +
		`zookeeper|zk|leader-election|election|etcd|cassandra|cql|thrift|dubbo|hessian|rmi|remoting|capnproto|memcache|memcached|amqp|amqps|mqtt|mqtts|nats|stomp|ldap|ldaps|smtp|smtps|imap|pop3|` +
		`ftp|sftp|ssh|dns|dns-tcp|nfs|mssql|tds|oracle|sql|db|database|syslog|fluent|forward|beats|graphite|openwire|epmd|bolt|aerospike|socat|fastcgi|fpm|php-fpm|rtmp|rtsp|sip|vnc|rdp|socks|socks5|` +
		`irc|ircd|ircs|turn|turns|stun|stuns|dicom|modbus|opcua|minecraft|rcon|pickle|iscsi|rsync|telnet|xmpp|bgp|kerberos|smb|gearman|clamd)(-|$)`)
)

// Patterns for probe commands that run database clients, and for images of servers that do not use
// HTTP. The last component of an image name identifies the server. redis and redis-server match,
// but redis-exporter and redis-commander do not. The expression mosquit+o matches the MQTT broker;
// its literal name fails the spelling linter.
var (
	clientCommand = regexp.MustCompile(`(^|[/ \t\n;&|("'\x60])(redis-cli|valkey-cli|keydb-cli|mysql|mysqladmin|mariadb|mariadb-admin|healthcheck\.sh --connect|pg_isready|psql|mongo|mongosh|` +
		`kafka-topics(\.sh)?|kafka-broker-api-versions(\.sh)?|kafka-cluster(\.sh)?|zkServer\.sh|zkOk\.sh|zkCli\.sh|zookeeper-ready|etcdctl|cqlsh|nodetool|rabbitmqctl|rabbitmq-diagnostics|` +
		`ldapsearch|sqlcmd|cypher-shell|nats-server|asinfo|mqtt_sub|mosquit+o_sub)($|[ \t\n;&|)"'\x60])`)
	serverImage = regexp.MustCompile(`(^|/)(redis|valkey|keydb|dragonfly|mysql|mysql57|mariadb|mariadb-galera|percona|percona-xtradb|percona-xtradb-cluster|percona-server|percona-server-mongodb|postgres|postgresql|` +
		`postgresql-repmgr|postgis|timescaledb|pgbouncer|pgpool|pgvector|spilo|spilo-[0-9]+|mongo|mongodb|mongodb-sharded|mongodb-community|db2|ignite|redpanda|kafka|cp-kafka|cp-server|zookeeper|cp-zookeeper|kubernetes-zookeeper|` +
		`etcd|cassandra|scylla|memcached|rabbitmq|nats|nats-streaming|activemq|activemq-artemis|(eclipse-)?mosquit+o|emqx|vernemq|openldap|mssql|mssql-server-linux|mssql/server|oracle-xe|aerospike|cockroach|socat|gb-redisslave|gb-redis-follower)` +
		`(-(server|alpine|debian|node|broker|master|slave|primary|replica|leader|follower|standalone|ha|cluster|sentinel|single|db|database|server-linux|community|enterprise))*` +
		`([:@]|$)|:([^/@]*-)?fpm(-[^/@]*)?(@|$)|(^|/)php-fpm([:@]|$)`)
	exporterImage = regexp.MustCompile(`[-_]exporter([:@]|$)`) // the image exports the metrics of another server
)

//go:embed ports.txt
var portsText string

// rawPorts contains the ports of servers that do not use HTTP. ports.txt documents the format.
var rawPorts = parsePorts(portsText)

func parsePorts(text string) map[int32]string {
	all := map[int32]string{}
	for _, fields := range rowsIn("ports.txt", text, 3) {
		n, err := strconv.ParseUint(fields[0], 10, 16)
		if err != nil || all[int32(n)] != "" {
			panic("inject: ports.txt: invalid or repeated port: " + fields[0])
		}
		all[int32(n)] = fields[1]
	}
	return all
}

// tlsPorts contains port numbers that commonly use TLS. Port numbers that end in 443 also commonly
// use TLS: see isTLSNumber.
var tlsPorts = map[int32]string{
	443: "HTTPS", 853: "DNS over TLS", 2376: "Docker over TLS", 4443: "HTTPS", 6443: "the Kubernetes API", 6514: "syslog over TLS", 8443: "HTTPS", 8444: "HTTPS", 9443: "HTTPS, and webhooks",
	10250: "the kubelet's HTTPS", 10257: "Kubernetes' HTTPS", 10259: "Kubernetes' HTTPS", 15012: "Istio's TLS", 15017: "Istio's webhook",
}

// isTLSNumber reports whether TLS is common on a port.
func isTLSNumber(n int32) bool { return tlsPorts[n] != "" || n%1000 == 443 }

// isHTTPS reports whether a Service port has one of the usual HTTPS port numbers.
func isHTTPS(n int32) bool { return n == 443 || n == 8443 }

// offersHTTPS reports whether a Service has a usual HTTPS port, and no load balancer that
// terminates TLS.
func offersHTTPS(s ServicePort) bool { return isHTTPS(s.Number) && !s.Terminated }

// offersTLS is like offersHTTPS, but a name for TLS is also sufficient.
func offersTLS(s ServicePort) bool {
	return offersHTTPS(s) || tlsName.MatchString(s.Name) && !s.Terminated
}

// onlyHTTPS reports whether Services offer a port only as HTTPS. It returns false if there are no Services.
func onlyHTTPS(services []ServicePort) bool {
	return len(services) > 0 && !slices.ContainsFunc(services, func(s ServicePort) bool { return !offersHTTPS(s) })
}

// peerName matches the names of ports through which the nodes of a cluster find each
// other. peerPorts contains the numbers of such ports: memberlist, Consul, and
// Alertmanager.
var (
	peerName  = regexp.MustCompile(`(^|-)(gossip|memberlist|serf)(-|$)`)
	peerPorts = []int32{7946, 8300, 8301, 8302, 9094}
)

func isPeer(p corev1.ContainerPort) bool {
	return peerName.MatchString(p.Name) || slices.Contains(peerPorts, p.ContainerPort)
}

// metricsName matches the names of ports for metrics and health checks only.
var metricsName = regexp.MustCompile(`(^|-)(metrics?|exporter|health[a-z]*|probes?)(-|$)`)

// generatedName matches names that a tool generates from the number of a port, such as 8080-tcp.
// Such a name does not describe the protocol.
var generatedName = regexp.MustCompile(`^[0-9]+-tcp$`)

// byName returns the evidence from a port name. what describes the name in the text of the
// evidence, for example "the port name".
func byName(what, name string) evidence {
	if generatedName.MatchString(name) {
		return evidence{}
	}
	for _, row := range []struct {
		name     *regexp.Regexp
		protocol protocol
	}{{tlsName, overTLS}, {sideName, notForRequests}, {httpName, plainHTTP}, {rawName, notHTTP}} {
		if row.name.MatchString(name) {
			return evidence{row.protocol, fmt.Sprintf("%s is %s", what, name)}
		}
	}
	return evidence{}
}

// asideService matches the names of Services for metrics or for peers, such as web-metrics and
// web-memberlist. It does not match metrics-browser, because this can be the name of an application.
var asideService = regexp.MustCompile(`-(metrics|gossip|memberlist)(-|$)`)

// isAside reports whether a Service is only for metrics or for peers. Such a Service is not
// evidence for requests. c is the container that the Service reaches, or nil. isAside returns false
// if c and the Service have the same name and the name of the Service port indicates HTTP, because
// the Service is then named after the application.
func isAside(s ServicePort, c *corev1.Container) bool {
	isApp := c != nil && c.Name == s.Service && byName("", s.Name).protocol == plainHTTP
	return asideService.MatchString(s.Service) && !isApp
}

// nameInService returns the evidence from the name of a Service port that reaches container port p.
// If the Service is for metrics or for peers, the name of the Service is the evidence, because the
// port of such a Service can also be named http.
func nameInService(s ServicePort, c *corev1.Container, p corev1.ContainerPort) evidence {
	if isAside(s, c) {
		return evidence{notForRequests, fmt.Sprintf("the port belongs to Service %s", s.Service)}
	}
	name := s.Name
	if name == s.Service && strings.ContainsRune(name, '-') && byName("", name).protocol == notForRequests {
		return evidence{} // the port is named after the application, such as store-admin
	}
	if name == "tcp-"+p.Name { // some charts generate this name for each protocol
		name = p.Name
	}
	if isTCPName(name) && byName("", strings.TrimPrefix(strings.TrimPrefix(name, "tcp"), "-")).protocol == unknownProtocol {
		return evidence{} // namedTCP evaluates this name
	}
	return byName("the port name in Service "+s.Service, name)
}

// isTCPName reports whether the name of a port in a Service is tcp or begins with tcp-. Istio uses
// this convention for plain TCP.
func isTCPName(name string) bool { return name == "tcp" || strings.HasPrefix(name, "tcp-") }

// namedTCP returns evidence against HTTP if all Services use a name for plain TCP for the port.
// Some tools generate such a name for each protocol, so other evidence overrides the name. A common
// port number does not override it.
func namedTCP(services []ServicePort, p corev1.ContainerPort) evidence {
	isTCP := func(s ServicePort) bool { return s.Name != "tcp-"+p.Name && isTCPName(s.Name) }
	if len(services) == 0 || slices.ContainsFunc(services, func(s ServicePort) bool { return !isTCP(s) }) {
		return evidence{}
	}
	return evidence{notHTTP, fmt.Sprintf("the port name in Service %s is %s", services[0].Service, services[0].Name)}
}

// byAppProtocol returns the evidence from the appProtocol of a Service port. It supports the IANA
// names, the names of Kubernetes with their prefix (KEP-3726), and the names of Istio. Other names
// with a prefix are not evidence.
func byAppProtocol(service, name string) evidence {
	why := fmt.Sprintf("Service %s has appProtocol %s", service, name)
	switch plain := strings.ToLower(strings.TrimPrefix(name, "kubernetes.io/")); {
	case plain == "":
		return evidence{}
	case slices.Contains([]string{"http", "http2", "h2c", "grpc", "grpc-web", "ws"}, plain):
		return evidence{plainHTTP, why}
	case slices.Contains([]string{"https", "wss", "tls", "ssl"}, plain):
		return evidence{overTLS, why}
	case strings.Contains(plain, "/"):
		return evidence{}
	}
	return evidence{notHTTP, why}
}

// evidenceOf returns the evidence for the protocol of a container port. The strongest evidence is
// the appProtocol of a Service. It is followed by the image, names for metrics and health checks,
// probes, the properties of Spring Boot, names, flags, numbers, the commands of probes, and
// certificates. If Services or probes disagree, the evidence for HTTP is used, because clients send
// requests to the port.
func (in *injection) evidenceOf(c *corev1.Container, p corev1.ContainerPort) evidence {
	h := in.hintsOf(c)
	s := in.evidenceBeforeCertificates(c, p, h)
	if h.flagged && s.protocol == plainHTTP && slices.ContainsFunc(in.servicesOf(c, p), func(o ServicePort) bool { return s == byServiceNumber([]ServicePort{o}) }) {
		// A flag or a variable for a certificate is stronger evidence than a port number.
		return firstOf(h.byCertificate(p), s)
	}
	return firstOf(s, h.byCertificate(p), byCommonNumber(p))
}

// evidenceBeforeCertificates is like evidenceOf, but ignores the weakest evidence: certificates and
// common port numbers.
func (in *injection) evidenceBeforeCertificates(c *corev1.Container, p corev1.ContainerPort, h *hints) evidence {
	if h.sleeps.why != "" {
		return h.sleeps
	}
	var services []ServicePort // all Services except those for metrics and for peers
	var protocols, names []evidence
	p.Name = apiName(c, p.ContainerPort, p.Name)
	for _, s := range in.servicesOf(c, p) {
		s.Name = apiName(c, p.ContainerPort, s.Name)
		if !isAside(s, c) {
			services = append(services, s)
		}
		if s.AppProtocol != "tcp" || byName("", s.Name).protocol != plainHTTP { // some charts use tcp for gRPC
			protocols = append(protocols, byAppProtocol(s.Service, s.AppProtocol))
		}
		name := h.encrypted(s.Name, nameInService(s, c, p))
		if name.protocol == plainHTTP && offersHTTPS(s) && !strings.HasPrefix(s.Name, "http") {
			name = evidence{overTLS, fmt.Sprintf("Service %s exposes the port as %s on port %d, which is an HTTPS port", s.Service, s.Name, s.Number)}
		}
		names = append(names, name)
	}
	probes := []evidence{h.probed[p.ContainerPort]}
	for _, probe := range probesOf(c) {
		probes = append(probes, byProbe(probe, c, p))
	}
	if private := h.private[p.ContainerPort]; private.why != "" && h.serves[p.ContainerPort] == "" {
		return private // no Service can reach the port, but the sidecar would make it reachable from other pods
	}
	own, named, flag, aside := h.encrypted(p.Name, byName("the port name", p.Name)), agree(names), h.flags[p.ContainerPort], evidence{}
	if isPeer(p) && own.protocol != plainHTTP {
		named = evidence{} // in a Service, a port for peers is often named http, so the name is not evidence
	}
	if isMisleading(c, p, own, named, flag, services) {
		own = evidence{}
	}
	if flag.protocol == notForRequests && (h.serves[p.ContainerPort] != "" || named.protocol == plainHTTP) {
		flag = evidence{}
	}
	// A port for metrics or health checks is recognized even if a probe or a Service uses
	// it.
	isSide := func(s evidence) bool { return s.protocol == notForRequests }
	switch {
	case isSide(own):
		aside = own
	case len(names) > 0 && len(services) == 0:
		aside = agree(names) // a Service for metrics does not receive requests
	case len(names) > 0 && !slices.ContainsFunc(names, func(s evidence) bool { return !isSide(s) }) && len(h.requests[p.ContainerPort]) == 0:
		aside = agree(names) // the name of the declared port does not override the names in Services
	case own.protocol != plainHTTP && isSide(flag):
		aside = flag
	}
	if aside.why != "" && agree(protocols).protocol == plainHTTP { // metrics are also served over HTTP
		return aside
	}
	return firstOf(agree(protocols), h.image, aside, h.offeredAsBoth(p, services), agree(probes), h.bySpring(p.ContainerPort), h.offeredAsTLS(p, services), own, named, flag, byNumber(p, services, h), h.commands, namedTCP(services, p))
}

// isMisleading reports whether own, the evidence from the declared name of a port, must be ignored.
// named is the evidence from the names of the port in Services, and flag is the evidence from a
// flag or a variable.
func isMisleading(c *corev1.Container, p corev1.ContainerPort, own, named, flag evidence, services []ServicePort) bool {
	if strings.HasPrefix(p.Name, "grpc") && onlyHTTPS(services) {
		return true // an HTTPS port number shows that clients use the port
	}
	likeContainer := p.Name == c.Name && strings.ContainsRune(p.Name, '-')
	switch own.protocol {
	case notForRequests:
		// If a port and its container have the same name, this is the name of the application, such
		// as store-admin. A port can also be named after its metrics although it receives requests.
		// Therefore, an HTTP name in a Service overrides the declared name, unless a flag or a
		// variable confirms the declared name.
		return likeContainer && !metricsName.MatchString(p.Name) || flag.protocol != notForRequests && named.protocol == plainHTTP
	case notHTTP:
		return likeContainer && named.protocol == plainHTTP // the name can contain the name of another server, such as redis-commander
	default:
		return false
	}
}

// offeredAsTLS returns evidence for TLS if Services offer the port only as HTTPS. An example is the
// port of a webhook. The port number or a certificate must confirm the evidence, because a load
// balancer can terminate TLS.
func (h *hints) offeredAsTLS(p corev1.ContainerPort, services []ServicePort) evidence {
	isPlain := func(s ServicePort) bool { return s.Number != 443 && !tlsName.MatchString(s.Name) }
	if len(services) == 0 || slices.ContainsFunc(services, isPlain) {
		return evidence{}
	}
	if !isTLSNumber(p.ContainerPort) && (h.namesTLS || h.pair.why == "" && h.mounted.why == "") {
		return evidence{}
	}
	return evidence{overTLS, fmt.Sprintf("Service %s only exposes the port as HTTPS", services[0].Service)}
}

// offeredAsBoth returns evidence for TLS if a Service offers the port both as HTTP and as HTTPS.
// The container can serve both on the same port, and TLS clients would not reach it through the
// sidecar. There is no such evidence if the name of the port or a parameter shows that the
// container uses plain HTTP.
func (h *hints) offeredAsBoth(p corev1.ContainerPort, services []ServicePort) evidence {
	if h.insecure || p.ContainerPort == 80 || webName.MatchString(p.Name) || h.flags[p.ContainerPort].protocol == plainHTTP {
		return evidence{}
	}
	for _, s := range services {
		isPlain := func(o ServicePort) bool { return o.Service == s.Service && !offersTLS(o) }
		if i := slices.IndexFunc(services, isPlain); i >= 0 && offersTLS(s) {
			return evidence{overTLS, fmt.Sprintf("Service %s exposes the port as port %d and as port %d, which is an HTTPS port", s.Service, services[i].Number, s.Number)}
		}
	}
	return evidence{}
}

// firstOf returns the first evidence with a known protocol.
func firstOf(all ...evidence) evidence {
	for _, s := range all {
		if s.protocol != unknownProtocol {
			return s
		}
	}
	return evidence{}
}

// agree returns the first evidence that indicates HTTP. If there is none, it returns the first evidence
// with a known protocol.
func agree(all []evidence) evidence {
	if i := slices.IndexFunc(all, func(s evidence) bool { return s.protocol == plainHTTP }); i >= 0 {
		return all[i]
	}
	return firstOf(all...)
}

// byProbe returns the evidence from a probe of container c for port p. A TCP probe is not evidence.
func byProbe(probe namedProbe, c *corev1.Container, p corev1.ContainerPort) evidence {
	switch {
	case probe.HTTPGet != nil && probe.HTTPGet.Host == "":
		if n, err := resolve(probe.HTTPGet.Port, c); err != nil || n != p.ContainerPort {
			return evidence{}
		}
		if probe.HTTPGet.Scheme == corev1.URISchemeHTTPS {
			return probe.probeEvidence("HTTPS", overTLS)
		}
		return probe.probeEvidence("HTTP", plainHTTP)
	case probe.GRPC != nil && probe.GRPC.Port == p.ContainerPort:
		return probe.probeEvidence("gRPC", plainHTTP)
	}
	return evidence{}
}

// byNumber returns the evidence from a port number. It also uses the port numbers in the Services
// that offer the port. An HTTPS port number is not evidence if a flag contains the number and the
// container has no certificate. If a Service offers container port 80 only as port 443, byNumber
// assumes that a load balancer terminates TLS.
func byNumber(p corev1.ContainerPort, services []ServicePort, h *hints) evidence {
	if of := rawPorts[p.ContainerPort]; of != "" && !slices.ContainsFunc(services, isOnPort80) {
		return evidence{notHTTP, fmt.Sprintf("%d is the port of %s", p.ContainerPort, of)}
	}
	if isTLSNumber(p.ContainerPort) && (h.serves[p.ContainerPort] == "" || h.pair.why != "" || h.mounted.why != "" || h.cert) {
		return evidence{overTLS, fmt.Sprintf("%d is a port of %s", p.ContainerPort, cmp.Or(tlsPorts[p.ContainerPort], "HTTPS"))}
	}
	if p.ContainerPort != 80 && onlyHTTPS(services) {
		s := services[len(services)-1]
		return evidence{overTLS, fmt.Sprintf("Service %s exposes the port as port %d, which is an HTTPS port", s.Service, s.Number)}
	}
	return byServiceNumber(services)
}

// byServiceNumber returns the evidence from a Service that exposes the port as port 80.
func byServiceNumber(services []ServicePort) evidence {
	if i := slices.IndexFunc(services, isOnPort80); i >= 0 {
		return evidence{plainHTTP, fmt.Sprintf("Service %s exposes the port as port 80", services[i].Service)}
	}
	return evidence{}
}

// byCommands returns evidence against HTTP if a probe command runs a database client.
func byCommands(c *corev1.Container) evidence {
	for _, probe := range probesOf(c) {
		if probe.Exec == nil {
			continue
		}
		for _, word := range probe.Exec.Command {
			if found := clientCommand.FindStringSubmatch(word); found != nil {
				return evidence{notHTTP, fmt.Sprintf("the %s probe runs %s", probe.name, found[2])}
			}
		}
	}
	return evidence{}
}

func byImage(c *corev1.Container) evidence {
	why := fmt.Sprintf("the image is %.100s", c.Image)
	switch {
	case serverImage.MatchString(c.Image):
		return evidence{notHTTP, why}
	case exporterImage.MatchString(c.Image):
		return evidence{notForRequests, why}
	}
	return evidence{}
}

// httpPorts contains port numbers that HTTP and gRPC servers commonly use.
var httpPorts = map[int32]string{
	80: "HTTP", 81: "HTTP", 3000: "HTTP", 4000: "HTTP", 5000: "HTTP", 8000: "HTTP", 8001: "HTTP", 8008: "HTTP", 8080: "HTTP", 8081: "HTTP", 8082: "HTTP", 8083: "HTTP", 8084: "HTTP",
	8085: "HTTP", 8086: "HTTP", 8088: "HTTP", 8090: "HTTP", 8888: "HTTP", 50051: "gRPC", 4317: "OTLP", 4318: "OTLP",
}

// byCommonNumber returns the weakest evidence, which is a common port number. It distinguishes a
// web server next to a database from a helper of the database.
func byCommonNumber(p corev1.ContainerPort) evidence {
	if of := httpPorts[p.ContainerPort]; of != "" {
		return evidence{plainHTTP, fmt.Sprintf("%d is a common port of %s", p.ContainerPort, of)}
	}
	return evidence{}
}

// A namedProbe is a probe of a container and the name of the probe in messages.
type namedProbe struct {
	name string
	*corev1.Probe
}

// probeEvidence returns the evidence that the port of the probe uses a protocol. how is the name of
// the protocol in the evidence.
func (p namedProbe) probeEvidence(how string, protocol protocol) evidence {
	return evidence{protocol, fmt.Sprintf("the %s probe uses %s", p.name, how)}
}

// probesOf returns the probes of a container.
func probesOf(c *corev1.Container) []namedProbe {
	all := []namedProbe{{"readiness", c.ReadinessProbe}, {"liveness", c.LivenessProbe}, {"startup", c.StartupProbe}}
	return slices.DeleteFunc(all, func(p namedProbe) bool { return p.Probe == nil })
}

// isProbed reports whether a probe of a container uses a port.
func isProbed(c *corev1.Container, port int32) bool {
	return slices.ContainsFunc(probesOf(c), func(p namedProbe) bool { return probedPort(p.Probe) == port })
}

// Patterns of the admission policy for flags, variables, mounts and commands. They match any word
// that can be evidence in evidenceOf, for any port. If one of them matches, the policy only
// accepts ports with a name for HTTP.
const (
	hintWords  = `(tls|ssl|https|secure|cert|crt|metric|prom|telemetry|monitoring|health|probe|liveness|readiness|admin|manag.*(port|addr)|mgmt|debug|pprof|profil)`
	hintFlags  = `(?i)(^|[ \t\n])-[-a-z0-9_.]*` + hintWords + `|(https|wss|tls|ssl)://|(^|[ \t\n])[a-z0-9]+-l(isten)?:[0-9]`
	hintNames  = `(?i)` + hintWords
	hintMounts = `(?i)(tls|ssl|https|pki|cert|keystore)`
	// itemsCEL is true if a volume contains the key tls.key of a Secret. See hasTLSItems.
	itemsCEL = `object.spec.?volumes.orValue([]).exists(v, ([v.?secret] + v.?projected.?sources.orValue([]).map(source, source.?secret)).exists(secret, ` +
		`secret.?items.orValue([]).exists(i, i.key == 'tls.key' || i.path == 'tls.key')))`
	tlsCommands = `https://|-tls`
	// hintSleeps matches the command line of a container that only sleeps. See onlySleeps.
	hintSleeps = `^([a-z/]*/)?(sleep|tail)( |$)|^([a-z/]*/)?(sh|bash|ash|dash) -[a-z]{0,3}c (-- )?` +
		`([;&|\s]*((do|then|else|while|until|if|\{)\s+)*(for|done|fi|\[|test|true|:|\}|set|export|cd|trap|exit|sleep|wait|tail|echo|printf|date|touch|rm|mkdir|cat)\b[^;&|\n]*)+[;&|\s]*$`
	// hintBind matches the names of variables with the address on which a container listens.
	hintBind = `(?i)listen|bind`
	// hintLoopback matches a flag that binds a port to the loopback address.
	hintLoopback = `(^|[= \t\n])(127\.0\.0\.1|localhost|\[::1\]):[0-9]`
	// hintOptions matches the names of variables that contain flags. See optionWords.
	hintOptions = `(?i)opts|options|args`
	// hintTLSProperty matches the properties of Spring Boot that enable TLS. See tlsProperty.
	hintTLSProperty = `server[._]ssl[._](bundle|cert|cipher|client|enabled[-_.]?protocols|key|protocol)`
	// hintJSON matches the name of the variable that contains Spring Boot properties as JSON.
	hintJSON = `(?i)^spring[._]application[._]json$`
)

// servesHTTPCEL returns evidenceOf as a CEL expression for a port of a container app. The expression
// is stricter than evidenceOf and reads only the pod. It is false if a name, a number or an image is
// evidence against HTTP, even if an HTTP probe uses the port.
func servesHTTPCEL(high bool) string {
	var numbers, helpers, known []string
	ported := "" // conditions for the rows with port numbers, and for the sure option
	for _, r := range images {
		switch r.kind {
		case imageException, imageWeb, imageAPI, imageListens: // the policy does not need these kinds, because it is stricter than evidenceOf
		case imageHelper, imageProxy:
			helpers = append(helpers, r.pattern)
		default:
			if r.ports == nil {
				known = append(known, r.pattern)
				continue
			}
			ported += fmt.Sprintf("    && !(port.containerPort in %s && app.?image.orValue('').matches(%s))\n", strings.ReplaceAll(fmt.Sprint(r.ports), " ", ", "), quoteCEL(r.pattern))
		}
	}
	if high {
		ported += "    && name.matches(" + quoteCEL(httpName.String()) + ")\n"
	}
	for _, n := range slices.Concat(slices.Sorted(maps.Keys(rawPorts)), slices.Sorted(maps.Keys(tlsPorts))) {
		numbers = append(numbers, fmt.Sprint(n))
	}
	matches := matchesCEL
	// The cost of a match is the product of the lengths of the string and the expression, and the
	// API server rejects a pod that exceeds the budget. Therefore, lists and strings above these
	// limits are treated as matches.
	matchesAny := func(list, word, text string, limit int, expression string) string {
		return fmt.Sprintf("[%[1]s].exists(all, size(all) > %[2]d || all.exists(%[3]s, size(%[4]s) > 2000 || %[5]s))", list, limit, word, text, matches(text, expression))
	}
	commands := func(expression string) string {
		return "[app.?readinessProbe, app.?livenessProbe, app.?startupProbe].exists(r, " + matchesAny("r.?exec.?command.orValue([])", "word", "word", 20, expression) + ")"
	}
	isHTTP := matches("name", httpName.String()) + ` && !name.startsWith('grpc')`
	return `  [port.?name.orValue('')].all(name,
    !` + matches("name", sideName.String()) + `
    && !` + matches("name", tlsName.String()) + `
    && !` + matches("app.?image.orValue('')", serverImage.String()) + `
    && !` + matches("app.?image.orValue('')", exporterImage.String()) + `
    && !` + matches("app.?image.orValue('')", strings.Join(known, "|")) + `
` + ported + `    && (size(object.spec.containers) == 1
      || !` + matches("app.name", helperNames.String()) + `
      && !` + matches("app.?image.orValue('')", strings.Join(helpers, "|")) + `
      && (size(object.spec.containers.filter(c, c.?ports.orValue([]).exists(p, ` + isTCP + `))) == 1 || ` + matches("name", httpName.String()) + `))
    && !` + commands(tlsCommands) + `
    && ![app.?command.orValue([]) + app.?args.orValue([])].exists(all, size(all) > 0 && size(all) <= 5 && all.all(word, size(word) <= 2000) && ` + matches("all.join(' ')", hintSleeps) + `)
    && ![app.?command.orValue([]) + app.?args.orValue([])].exists(all, size(all) <= 100 && all.exists(word, size(word) <= 256 && ` + matches("word", hintLoopback) + `))
    && ![app.?env.orValue([])].exists(all, size(all) <= 500 && all.exists(e, size(e.name) <= 256 && size(e.?value.orValue('')) <= 256 && ` +
		matches("e.name", hintBind) + ` && ` + matches("e.?value.orValue('')", hintLoopback) + `))
    && ` + springCEL(isHTTP) + `
    && (` + isHTTP + `
      || !` + matches("name", rawName.String()) + `
      && !(port.containerPort in [` + strings.Join(numbers, ", ") + `])
      && port.containerPort % 1000 != 443
      && !` + matchesAny("app.?command.orValue([]) + app.?args.orValue([])", "word", "word", 100, hintFlags) + `
      && !` + matchesAny("app.?env.orValue([])", "e", "e.name", 500, hintNames) + `
      && !app.?env.orValue([]).exists(e, ` + matches("e.?value.orValue('')", `(https|wss|tls|ssl)://`) + `)
      && !` + matchesAny("app.?volumeMounts.orValue([])", "m", "m.name", 500, hintMounts) + `
      && !` + matchesAny("app.?volumeMounts.orValue([])", "m", "m.mountPath", 500, hintMounts) + `
      && !` + itemsCEL + `
      && !` + commands(clientCommand.String()) + `))`
}
