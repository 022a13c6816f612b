package inject

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// This file collects evidence about the ports of a container from its command line, environment,
// probes and mounted certificates. Each source is read once, in linear time, because a pod can have
// thousands of ports.

// hints contain the evidence about the ports of a container.
type hints struct {
	image    evidence           // evidence from the name of the image; applies to all ports
	sleeps   evidence           // set if the command of the container only sleeps
	commands evidence           // evidence of a database client in the command of a probe; applies to all ports
	probed   map[int32]evidence // ports that probe commands connect to
	flags    map[int32]evidence // ports in flags and variables that indicate a protocol
	serves   map[int32]string   // flags and variables that contain the number of a port but do not indicate a protocol
	pair     evidence           // a flag contains a certificate, so a port without other evidence uses TLS
	flagged  bool               // a flag or a variable is the reason for pair
	insecure bool               // a flag or a variable turns TLS off
	consoles map[int32]bool     // ports of flags and variables whose names contain the word console
	private  map[int32]evidence // ports that a flag or a variable binds to the loopback address, with the evidence
	mounted  evidence           // a volume contains a certificate, so a port without other evidence uses TLS
	cert     bool               // a flag or a variable contains a certificate
	spring   spring

	rows   []*imageRow // rows of databases.txt that match the image, up to the first exception
	helper string      // the reason why the container is a helper, or ""

	requests map[int32][]string // paths of the HTTP probes by port, without health checks
	health   map[int32]bool     // ports that an HTTP health check probes

	undecided []int32 // ports without evidence other than a certificate; at most two
	hasTLS    bool    // a port is known to use TLS
	namesTLS  bool    // the name or the number of a declared port indicates TLS
}

// A parameter is a flag or an environment variable. words are the words of its name in lower case.
type parameter struct {
	name     string // name as written in the pod
	words    []string
	value    string
	variable bool
	property springProperty
}

// Words in the names of parameters.
var (
	listenWords = []string{"port", "ports", "addr", "addrs", "address", "addresses", "listen", "listener", "bind", "endpoint", "url", "urls", "on"}
	serveWords  = []string{"port", "addr", "address", "listen", "bind", "server", "host", "app", "service", "api", "main", "public", "endpoint", "container", "serving", "serve"}
	bindWords   = []string{"listen", "bind"}
	sideWords   = []string{"metrics", "metric", "prometheus", "prom", "telemetry", "monitoring", "health", "healthz", "healthcheck", "probe", "probes", "liveness", "readiness", "admin", "management", "mgmt", "debug", "pprof", "profiling", "profiler"}
	plainWords  = []string{"insecure", "plaintext", "http", "http1", "http2", "h2c", "grpc", "web", "rest", "ws", "websocket"}
	tlsWords    = []string{"https", "tls", "ssl", "mtls", "secure"}
	certWords   = []string{"cert", "certs", "certfile", "certificate", "certificates", "crt"}
	keyWords    = []string{"key", "keyfile"}
	mountWords  = []string{"tls", "ssl", "https", "pki", "cert", "certs", "certificate", "certificates", "keystore", "keystores"}
	// Words that indicate a certificate for another use: for clients, certificate authorities,
	// signing, metrics, or connections to other servers.
	otherCerts   = []string{"ca", "cas", "cacert", "cacerts", "cafile", "bundle", "client", "root", "trust", "trusted", "truststore", "peer", "issuer", "jwt", "signing", "signer", "token", "ssh", "gpg", "account", "sa", "license", "encryption", "metrics"}
	otherServers = []string{"saml", "oidc", "oauth", "idp", "sso", "ldap", "smtp", "etcd", "kubelet", "upstream", "backend", "remote", "target", "destination", "egress", "outbound", "db", "database", "sql", "mysql", "mariadb", "postgres", "postgresql", "pg", "redis",
		"kafka", "mongo", "mongodb", "rabbitmq", "amqp", "nats", "elastic", "elasticsearch", "cassandra", "vault"}
	// Environment variables refer to certificates for many purposes. The name of a variable for the
	// server certificate contains a word from serverWords, or consists only of words from ownCerts.
	serverWords = []string{"http", "https", "server", "serving", "web", "webserver", "listen", "listener", "listeners"}
	storeWords  = []string{"keystore", "store", "pfx", "p12", "pkcs12"}
	ownCerts    = []string{"tls", "ssl", "https", "http", "server", "serving", "web", "app", "file", "path", "dir", "private", "pem", "cert", "certs", "certfile", "certificate", "crt", "key", "keyfile", "enabled", "enable", "use", "serve"}
)

// Patterns for ports in command lines and in the commands of probes. localURL and dialed match
// connections to the pod itself, and listenURL and local match addresses on which a server
// listens.
var (
	localURL  = regexp.MustCompile(`(https?)://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1?\])(?::([0-9]{1,5}))?(/[^ "')]*|[?"' )]|$)`)
	grpcProbe = regexp.MustCompile(`(?:^|[/ \t\n;&|])grpc[_-]health[_-]probe(?:[-_.a-z0-9]*)(?:$|[ \t\n])`)
	dialed    = regexp.MustCompile(`(?:^|[ \t\n])--?addr[= \t](?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1?\])?:([0-9]{1,5})(?:$|[ \t\n])`)
	dialedTLS = regexp.MustCompile(`(?:^|[ \t\n])--?tls(?:$|[ \t\n=])`)
	relays    = regexp.MustCompile(`(?i)^(?:tcp[46]?|udp[46]?|sctp|openssl|ssl)-l(?:isten)?:([0-9]{1,5})`)
	listenURL = regexp.MustCompile(`^([a-z0-9]+)://(?:0\.0\.0\.0|\*|\+|\[::\])?:([0-9]{1,5})/?$`)
	loopback  = regexp.MustCompile(`^(127\.0\.0\.1|localhost|\[::1\]):`)
	local     = regexp.MustCompile(`^(?:(?:0\.0\.0\.0|127\.0\.0\.1|localhost|\*|\+|\[::1?\]|::)?:)?([0-9]{1,5})$`)
)

// hintsOf returns the hints of a container. They are computed once per container.
func (in *injection) hintsOf(c *corev1.Container) *hints {
	if h := in.hints[c.Name]; h != nil {
		return h
	}
	h := &hints{image: byImage(c), commands: byCommands(c), probed: map[int32]evidence{}, flags: map[int32]evidence{}, serves: map[int32]string{}, private: map[int32]evidence{}, consoles: map[int32]bool{}}
	h.rows, h.helper = rowsOf(c), helperReason(c, in.meta.Labels)
	h.requests, h.health = map[int32][]string{}, map[int32]bool{}
	in.hints[c.Name] = h
	h.readProbes(c)
	raw := At(in.object, "spec", "containers", c.Name)
	if onlySleeps(raw) {
		h.sleeps = evidence{notForRequests, "the command of container " + c.Name + " only sleeps"}
	}
	names := namesOfServer(c)
	parameters := h.readParameters(raw, names)
	h.readMounts(raw, listAt(in.object, "spec", "volumes"), secretVolumes(in.object), func(dir string) bool { return isForClients(dir, parameters, names) })
	if i := slices.IndexFunc(in.services, func(s ServicePort) bool { return s.Certificate }); i >= 0 && h.pair.why == "" {
		h.pair = evidence{overTLS, fmt.Sprintf("Service %s requests a certificate for its pods", in.services[i].Service)}
	}
	for _, p := range c.Ports {
		h.namesTLS = h.namesTLS || overTCP(p) && (tlsName.MatchString(p.Name) || isTLSNumber(p.ContainerPort))
	}
	h.hasTLS = slices.ContainsFunc(probesOf(c), func(p namedProbe) bool {
		return p.HTTPGet != nil && p.HTTPGet.Host == "" && p.HTTPGet.Scheme == corev1.URISchemeHTTPS
	})
	possible := in.possiblePorts(c)
	h.setSpringPort(slices.Concat(c.Ports, possible))
	for _, n := range possible {
		switch in.evidenceBeforeCertificates(c, n, h).protocol {
		case overTLS:
			h.hasTLS = true
		case unknownProtocol:
			if len(h.undecided) < 2 && !slices.Contains(h.undecided, n.ContainerPort) {
				h.undecided = append(h.undecided, n.ContainerPort)
			}
		}
	}
	return h
}

// possiblePorts returns the declared ports of a container, and the ports of the Services and the
// readiness probe.
func (in *injection) possiblePorts(c *corev1.Container) []corev1.ContainerPort {
	all := slices.DeleteFunc(slices.Clone(c.Ports), func(p corev1.ContainerPort) bool { return !overTCP(p) })
	add := func(n int32) {
		if n > 0 && !slices.ContainsFunc(all, func(p corev1.ContainerPort) bool { return p.ContainerPort == n }) {
			all = append(all, corev1.ContainerPort{ContainerPort: n})
		}
	}
	for r := range in.routes {
		if r.container == c.Name {
			add(r.number)
		}
	}
	if slices.ContainsFunc(all, func(p corev1.ContainerPort) bool { return len(in.servicesOf(c, p)) > 0 }) { // prefer the ports with a Service; the other ports are ignored
		all = slices.DeleteFunc(all, func(p corev1.ContainerPort) bool { return len(in.servicesOf(c, p)) == 0 })
	}
	if len(all) == 0 {
		add(probedPort(c.ReadinessProbe))
	}
	return all
}

// readProbes reads the paths of HTTP probes, and the ports that the commands of probes connect to.
func (h *hints) readProbes(c *corev1.Container) {
	for _, probe := range probesOf(c) {
		if get := probe.HTTPGet; get != nil && get.Host == "" && get.Scheme != corev1.URISchemeHTTPS {
			n, _ := resolve(get.Port, c) // n is 0 if the port name is unknown
			h.addPath(n, cmp.Or(get.Path, "/"))
		}
		if probe.Exec == nil {
			continue
		}
		text := strings.Join(probe.Exec.Command, " ")
		for _, m := range localURL.FindAllStringSubmatch(text, 100) {
			if m[1] == "https" {
				add(h.probed, cmp.Or(m[2], "443"), probe.probeEvidence("HTTPS", overTLS))
			} else {
				add(h.probed, cmp.Or(m[2], "80"), probe.probeEvidence("HTTP", plainHTTP))
				if n, err := strconv.ParseUint(cmp.Or(m[2], "80"), 10, 16); err == nil {
					h.addPath(int32(n), m[3])
				}
			}
		}
		switch m := dialed.FindStringSubmatch(text); {
		case m == nil || !grpcProbe.MatchString(text):
		case dialedTLS.MatchString(text):
			add(h.probed, m[1], probe.probeEvidence("gRPC over TLS", overTLS))
		default:
			add(h.probed, m[1], probe.probeEvidence("gRPC", plainHTTP))
		}
	}
}

// addPath records the path of a request that a probe sends to a port.
func (h *hints) addPath(n int32, target string) {
	if healthPath.MatchString(target) {
		h.health[n] = true
	} else if target = cmp.Or(target, "/"); !slices.Contains(h.requests[n], target) {
		h.requests[n] = append(h.requests[n], target)
	}
}

// add sets the evidence for a port. Existing evidence is replaced only if its protocol is unknown or if s indicates
// HTTP.
func add(all map[int32]evidence, port string, s evidence) {
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 {
		return
	}
	if old := all[int32(n)]; old.protocol == unknownProtocol || s.protocol == plainHTTP {
		all[int32(n)] = s
	}
}

// readParameters reads the command line and the environment, and returns the parameters. names are
// the names of the server: see namesOfServer.
func (h *hints) readParameters(container any, names [][]string) (all []parameter) {
	all = parametersOf(container)
	h.spring = springOf(all)
	name := wordsOf(Text(container, "name"))
	var found certificate
	h.insecure = slices.ContainsFunc(commandLine(container), func(line string) bool {
		return slices.ContainsFunc(strings.Fields(line), withoutTLS.MatchString)
	})
	for _, s := range all {
		h.insecure = h.insecure || s.variable && withoutTLS.MatchString(asFlag(s, names))
		h.readListener(s, name)
		if !h.spring.handles(s.property) && !authorityFile.MatchString(s.value) {
			found.read(s, names)
		}
	}
	h.cert = found.cert != ""
	if h.cert && (found.key != "" || found.scheme != "") {
		h.pair, h.flagged = evidence{overTLS, fmt.Sprintf("%.60s configures TLS, and there is no stronger evidence for the port", found.cert)}, true
	}
	return all
}

// withoutTLS matches a flag that turns TLS off.
var withoutTLS = regexp.MustCompile(`(?i)^--?(insecure|plaintext|(no|disable)-tls)(=true)?$|^--?tls(-enabled)?=false$`)

// asFlag returns the flag that is equivalent to a variable, without the name of the server. In a
// container called shop, SHOP_SERVER_INSECURE=true becomes --insecure=true. names are the names of
// the server: see namesOfServer.
func asFlag(s parameter, names [][]string) string {
	words := s.words
	for _, name := range names {
		if len(words) > len(name) && slices.Equal(words[:len(name)], name) {
			words = words[len(name):]
		}
	}
	if len(words) > 1 && slices.Contains(serverWords, words[0]) {
		words = words[1:]
	}
	return "--" + strings.Join(words, "-") + "=" + s.value
}

// A certificate contains the names of the parameters that set the certificate of a server, the key
// of the certificate, and the scheme https. TLS is configured if cert and key, or cert and scheme,
// are set. A variable such as REGISTRY_HTTP_TLS_CERTIFICATE sets both cert and key.
type certificate struct{ cert, key, scheme string }

// read reads a parameter. names are the names of the server: see namesOfServer.
func (c *certificate) read(s parameter, names [][]string) {
	words := s.words
	if kestrelCertificate.MatchString(s.name) {
		c.cert, c.key = s.name, s.name
		return
	}
	if s.variable {
		words = withoutName(words, names)
	}
	if len(words) == 0 || !certifies(s) && len(words) == len(s.words) {
		return
	}
	last := words[len(words)-1]
	isSetting := s.variable || systemProperty.MatchString(s.name)
	switch isFile := strings.ContainsRune(s.value, '/') || certificateFile.MatchString(s.value); {
	case isFile && slices.Equal(words, uvicornKey):
		c.cert, c.key = s.name, s.name
	case isFile && isSetting && anyOf(s.words, serverWords) && anyOf(s.words, tlsWords) && (anyOf(s.words, certWords) || anyOf(s.words, storeWords)):
		c.cert, c.key = s.name, s.name
	case isFile && anyOf(words, keyWords):
		c.key = s.name
	case isFile && anyOf(words, certWords):
		c.cert = s.name
		isDir := (last == "dir" || last == "path") && !strings.ContainsRune(s.value[strings.LastIndexByte(s.value, '/'):], '.')
		if isDir && s.name != "SSL_CERT_DIR" { // SSL_CERT_DIR is the OpenSSL variable for the directory of certificate authorities
			c.key = s.name // the directory contains the certificate and its key
		}
	case (last == "protocol" || last == "scheme") && strings.EqualFold(s.value, "https"):
		c.scheme = s.name
	case anyOf(words, []string{"enabled", "enable", "use", "serve"}) && anyOf(s.words, tlsWords) && allOf(words, ownCerts) && slices.Contains([]string{"true", "1", "yes", "on"}, strings.ToLower(s.value)):
		c.cert, c.key = s.name, s.name
	}
}

// kestrelCertificate matches the certificate settings of Kestrel, the web server of ASP.NET Core.
var kestrelCertificate = regexp.MustCompile(`(?i)^-*((ASPNETCORE|DOTNET)_)?Kestrel(__|:)(Certificates(__|:)Default|Endpoints(__|:)[^:]+(__|:)Certificate)(__|:)(Path|KeyPath|Subject)$`)

// uvicornKey contains the words of the flag --ssl-keyfile and the variable
// UVICORN_SSL_KEYFILE. Uvicorn does not require a separate file for the certificate.
var uvicornKey = []string{"ssl", "keyfile"}

// namesOfServer returns the words in the names of a container and its image, without a generic last
// word such as server. Many servers use their name as the prefix of their variables, such as
// VAULT_TLS_CERT_FILE. The variables of clients have the same form, but begin with the name of
// another server.
func namesOfServer(c *corev1.Container) [][]string {
	image, _, _ := strings.Cut(path.Base(c.Image), "@")
	image, _, _ = strings.Cut(image, ":")
	all := [][]string{{"uvicorn"}} // Uvicorn variables have this prefix in all images
	for _, name := range []string{c.Name, image} {
		words := wordsOf(name)
		if n := len(words) - 1; n > 0 && slices.Contains([]string{"server", "service", "app", "api"}, words[n]) {
			words = words[:n]
		}
		if len(words) > 0 {
			all = append(all, words)
		}
	}
	return all
}

// withoutName removes the name of the server from the words of a variable if the remaining words
// describe a server certificate. Otherwise, it returns words.
func withoutName(words []string, names [][]string) []string {
	for _, name := range names {
		if len(words) > len(name) && slices.Equal(words[:len(name)], name) && allOf(words[len(name):], ownCerts) {
			return words[len(name):]
		}
	}
	return words
}

// Patterns for the values of parameters for certificates. authorityFile matches the files
// of certificate authorities.
var (
	authorityFile   = regexp.MustCompile(`(?i)(^|/)(root[-_]?)?ca([-_.][^/]*)?$|bundle[^/]*$`)
	certificateFile = regexp.MustCompile(`(?i)\.(pem|crt|p12|pfx|jks)$`)
)

// idleCommands are shell commands that do not start a server.
var idleCommands = []string{
	"while", "until", "for", "do", "done", "if", "then", "else", "fi", "[", "test", "true", ":", "{", "}", "set", "export", "cd", "trap", "exit",
	"sleep", "wait", "tail", "echo", "printf", "date", "touch", "rm", "mkdir", "cat",
}

// onlySleeps reports whether the command line of a container is sleep, tail, or a script that
// consists of idleCommands and contains one of these two. Examples and debug containers often have
// such a command and declare a port.
func onlySleeps(container any) bool {
	const maxLength = 2000 // maximum length of a script in bytes
	words := commandLine(container)
	if len(words) == 0 {
		return false
	}
	program := path.Base(words[0])
	if program == "sleep" || program == "tail" {
		return true
	}
	i := slices.IndexFunc(words, func(w string) bool { return len(w) < 6 && strings.HasPrefix(w, "-") && strings.HasSuffix(w, "c") })
	if i >= 0 && i+1 < len(words) && words[i+1] == "--" {
		i++
	}
	if !slices.Contains([]string{"sh", "bash", "ash", "dash"}, program) || i < 0 || i > 3 || i+1 >= len(words) || len(words[i+1]) > maxLength {
		return false
	}
	sleeps := false
	for line := range strings.FieldsFuncSeq(words[i+1], func(r rune) bool { return strings.ContainsRune(";&|\n", r) }) {
		fields := strings.Fields(line)
		for len(fields) > 1 && slices.Contains([]string{"do", "then", "else", "{", "while", "if"}, fields[0]) {
			fields = fields[1:]
		}
		if len(fields) == 0 {
			continue
		}
		program := path.Base(fields[0])
		if !slices.Contains(idleCommands, program) {
			return false
		}
		sleeps = sleeps || program == "sleep" || program == "tail"
	}
	return sleeps
}

// mentions reports whether a flag or a variable of a container contains an address with
// port number n.
func mentions(container any, n int32) bool {
	for _, s := range parametersOf(container) {
		for part := range strings.FieldsFuncSeq(s.value, func(r rune) bool { return r == ',' || r == ';' }) {
			if m := local.FindStringSubmatch(part); m != nil && m[1] == decimal(n) {
				return true
			}
			if m := listenURL.FindStringSubmatch(part); m != nil && m[2] == decimal(n) {
				return true
			}
		}
	}
	return false
}

// listens reports whether a flag or a variable contains the address on which the container
// listens.
func listens(container any) bool {
	return slices.ContainsFunc(parametersOf(container), func(s parameter) bool {
		if len(s.words) == 0 || !slices.Contains(listenWords, s.words[len(s.words)-1]) || s.variable && !allOf(s.words, serveWords) {
			return false
		}
		return !anyOf(s.words, sideWords) && (local.MatchString(s.value) || listenURL.MatchString(s.value))
	})
}

// Maximum lengths in bytes of a flag, of a variable, and of a variable that contains
// flags or JSON.
const (
	maxFlagBytes    = 256
	maxOptionsBytes = 4096
)

// systemProperty matches Java system property flags, such as -Dname=value.
var systemProperty = regexp.MustCompile(`^-D[a-z]`)

// optionWords are the words of variables that contain flags, such as JAVA_TOOL_OPTIONS, JAVA_OPTS
// and GUNICORN_CMD_ARGS.
var optionWords = []string{"opts", "options", "args"}

// parametersOf returns the command-line flags and the environment variables of a container. The result also
// contains the flags in variables such as JAVA_OPTS, and the properties of the HTTP server in SPRING_APPLICATION_JSON.
func parametersOf(container any) (all []parameter) {
	each := func(s parameter) { all = append(all, s) }
	flags := func(name, value string) {
		s := parameter{name: name, words: wordsOf(name), value: value, property: propertyOf(name, false)}
		if systemProperty.MatchString(name) {
			s.words = wordsOf(name[len("-D"):])
			if slices.Contains(s.words, "proxy") { // -Dhttp.proxyPort=3128 contains the port of a proxy on another host
				return
			}
		}
		each(s)
	}
	readFlags(slices.Concat(listAt(container, "command"), listAt(container, "args")), false, flags, each)
	for _, v := range listAt(container, "env") {
		name, value := Text(v, "name"), Text(v, "value")
		if len(name) > maxFlagBytes {
			continue
		}
		s := parameter{name: name, words: wordsOf(name), value: value, variable: true, property: propertyOf(name, true)}
		isLong := len(name)+len(value) > maxFlagBytes
		switch {
		case len(value) > maxOptionsBytes:
		case anyOf(s.words, optionWords):
			readFlags([]any{value}, slices.Contains(s.words, "gunicorn"), flags, each)
		case s.property.name == springJSON:
			jsonProperties(name, value, each)
		}
		if tlsProperty.MatchString(s.property.name) && (isLong || value == "" && At(v, "valueFrom") != nil) {
			s.value = ""
			each(s) // the name is sufficient evidence; the value is not read
		} else if value != "" && !isLong {
			each(s)
		}
	}
	return all
}

// readFlags calls flag for each command-line flag in words. It calls other for the address
// arguments of socat, Django (runserver) and Gunicorn (-b), and for the properties in
// --spring.application.json. isGunicorn indicates that words contains only Gunicorn flags.
func readFlags(words []any, isGunicorn bool, flag func(name, value string), other func(parameter)) {
	bind := func(name, address string) {
		other(parameter{name: name, words: []string{"bind"}, value: unquoted(address)})
	}
	last := "" // the preceding word, if it is a flag without a value; otherwise ""
	isDjango := false
	for _, word := range words {
		line, _ := word.(string)
		jsonInFlags(line, other)
		for text := range strings.FieldsSeq(line) { // a word can be a shell script that contains flags
			name, value, whole := strings.Cut(text, "=")
			address, before := relays.FindStringSubmatch(text), last
			last = ""
			isGunicorn = isGunicorn || path.Base(text) == "gunicorn"
			switch {
			case len(text) > maxFlagBytes:
			case address != nil:
				other(parameter{name: address[0], value: address[1]})
			case text == djangoServer:
				isDjango = true
			case isDjango && local.MatchString(text):
				bind(djangoServer, text)
			case isGunicorn && before == "-b":
				bind(before, text)
			case isGunicorn && len(text) > 2 && strings.HasPrefix(text, "-b") && local.MatchString(text[2:]):
				bind("-b", text[2:])
			case !strings.HasPrefix(text, "-") && before != "":
				flag(before, unquoted(text))
			case !strings.HasPrefix(text, "-"):
			case whole:
				flag(name, unquoted(value))
			default:
				last = name
			}
		}
	}
}

// djangoServer is the command of Django that starts a server. Its argument is an address.
const djangoServer = "runserver"

func unquoted(text string) string { return strings.Trim(text, `"';,`) }

// wordsOf splits a name into lower-case words. The results for --tlsCertFile, TLS_CERT_FILE and
// tls.cert-file are the same.
func wordsOf(name string) []string {
	var spaced strings.Builder
	for i := range len(name) {
		b := name[i]
		switch {
		case b == '-' || b == '_' || b == '.':
			b = ' '
		case 'A' <= b && b <= 'Z':
			if i > 0 && 'a' <= name[i-1] && name[i-1] <= 'z' {
				spaced.WriteByte(' ')
			}
			b += 'a' - 'A'
		}
		spaced.WriteByte(b)
	}
	return strings.Fields(spaced.String())
}

func anyOf(words, these []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(these, w) })
}

func allOf(words, these []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(these, w) })
}

// readListener reads a parameter that contains ports, such as --https-port=8443, HTTP_ADDR=:8080
// and --listen https://0.0.0.0:8443.
//
// If the name of the container is admin, the variable ADMIN_PORT contains the port for requests.
func (h *hints) readListener(s parameter, container []string) {
	if len(s.words) == 0 { // s is an address that socat receives
		add(h.flags, s.value, evidence{notHTTP, fmt.Sprintf("%.60s contains the port", s.name)})
		return
	}
	for part := range strings.FieldsFuncSeq(s.value, func(r rune) bool { return r == ',' || r == ';' }) {
		if m := listenURL.FindStringSubmatch(part); m != nil {
			h.readURL(m[1], m[2], fmt.Sprintf("%.60s=%.60s contains the port", s.name, part))
		} else {
			h.readAddress(s, part, container)
		}
	}
}

// readURL reads the scheme and the port of a URL that a parameter contains.
func (h *hints) readURL(scheme, port, why string) {
	switch scheme {
	case "https", "wss", "tls", "ssl":
		add(h.flags, port, evidence{overTLS, why})
	case "http", "ws", "h2c", "grpc":
		add(h.flags, port, evidence{plainHTTP, why})
	}
}

// readAddress reads the port in part, a part of the value of s, if part is a port or an address with
// a port.
func (h *hints) readAddress(s parameter, part string, container []string) {
	last := s.words[len(s.words)-1]
	m := local.FindStringSubmatch(part)
	if m == nil || !slices.Contains(listenWords, last) && (len(s.words) > 1 || !anyOf(s.words, plainWords) && !anyOf(s.words, tlsWords)) {
		return
	}
	n, err := strconv.ParseUint(m[1], 10, 16)
	if err == nil && slices.Contains(s.words, "console") {
		h.consoles[int32(n)] = true
	}
	why := fmt.Sprintf("%.60s=%.60s contains the port", s.name, part)
	own := allOf(s.words, serveWords) || s.variable && slices.Equal(s.words[:len(s.words)-1], container)
	switch {
	case (own || anyOf(s.words, plainWords)) && loopback.MatchString(part):
		if !s.variable || anyOf(s.words, bindWords) { // a variable with another name can contain the address of another container
			add(h.private, m[1], evidence{notForRequests, fmt.Sprintf("%.60s=%.60s listens on the loopback address only", s.name, part)})
		}
	case own:
		if err == nil {
			h.serves[int32(n)] = why
		}
	case anyOf(s.words, sideWords) || slices.Equal(s.words, []string{"http", "endpoint"}): // http-endpoint is a flag of CSI drivers for metrics
		add(h.flags, m[1], evidence{notForRequests, why})
	case anyOf(s.words, tlsWords) && !slices.Contains(s.words, "insecure"):
		add(h.flags, m[1], evidence{overTLS, why})
	case anyOf(s.words, plainWords):
		add(h.flags, m[1], evidence{plainHTTP, why})
	}
}

// certifies reports whether a parameter's name can refer to the server's certificate.
func certifies(s parameter) bool {
	if s.variable {
		isServer := anyOf(s.words, serverWords) && !hasOtherUse(s.words) || slices.Equal(s.words, []string{"protocol"}) || slices.Equal(s.words, []string{"scheme"})
		return isServer || allOf(s.words, ownCerts)
	}
	return !hasOtherUse(s.words)
}

// hasOtherUse reports whether the words of a name show that a certificate does not belong to the server.
func hasOtherUse(words []string) bool { return anyOf(words, otherCerts) || anyOf(words, otherServers) }

// secretVolumes returns the names of the volumes that can contain a private key.
func secretVolumes(object any) map[string]bool {
	names := map[string]bool{}
	for _, v := range listAt(object, "spec", "volumes") {
		if At(v, "secret") != nil || At(v, "projected") != nil || At(v, "csi") != nil {
			names[Text(v, "name")] = true
		}
	}
	return names
}

// hasTLSItems reports whether a volume contains the key tls.key of a Secret as an item.
func hasTLSItems(volume any) bool {
	isKey := func(item any) bool { return Text(item, "key") == "tls.key" || Text(item, "path") == "tls.key" }
	return slices.ContainsFunc(listAt(volume, "secret", "items"), isKey) || slices.ContainsFunc(listAt(volume, "projected", "sources"), func(source any) bool {
		return slices.ContainsFunc(listAt(source, "secret", "items"), isKey)
	})
}

// containsPath reports whether a value contains the absolute path dir or a file in it. A longer path that
// contains dir, such as /etc/kafka/certs for /certs, is not a match.
func containsPath(value, dir string) bool {
	if dir = strings.TrimSuffix(dir, "/") + "/"; dir == "/" {
		return false
	}
	for before, after, found := strings.Cut(value+"/", dir); found; before, after, found = strings.Cut(after, dir) {
		if before == "" || !isNameByte(before[len(before)-1]) {
			return true
		}
	}
	return false
}

// isNameByte reports whether b is common at the end of a directory name.
func isNameByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_' || b == '-'
}

// isForClients reports whether parameters name files in a directory, and all of these parameters are
// settings for connections to another server, such as KAFKA_KEYSTORE_FILE. names are the names of the
// server in the container: see namesOfServer.
func isForClients(dir string, parameters []parameter, names [][]string) bool {
	found := false
	for _, s := range parameters {
		if !containsPath(s.value, dir) {
			continue
		}
		isOwn := func(name []string) bool { return len(s.words) > len(name) && slices.Equal(s.words[:len(name)], name) }
		if !anyOf(s.words, otherServers) || anyOf(s.words, serverWords) || slices.ContainsFunc(names, isOwn) {
			return false
		}
		found = true
	}
	return found
}

// maxClientMounts is the maximum number of mounts per container for which isForClients is called,
// because a call reads all parameters.
const maxClientMounts = 10

// readMounts looks for certificates among the secrets that a container mounts. It ignores the
// directories for which isForClients returns true.
func (h *hints) readMounts(container any, volumes []any, secrets map[string]bool, isForClients func(dir string) bool) {
	calls := 0
	pairs := map[string]bool{} // names of the volumes with the item tls.key
	for _, v := range volumes {
		pairs[Text(v, "name")] = hasTLSItems(v)
	}
	for _, m := range listAt(container, "volumeMounts") {
		name, dir := Text(m, "name"), Text(m, "mountPath")
		if len(dir) > 256 || !secrets[name] || strings.HasPrefix(dir, "/etc/ssl/certs") || strings.HasPrefix(dir, "/var/run/secrets/kubernetes.io/") {
			continue
		}
		words := append(wordsOf(name), wordsOf(strings.ReplaceAll(strings.TrimPrefix(dir, "/root/"), "/", "-"))...)
		if (anyOf(words, mountWords) || pairs[name]) && !hasOtherUse(words) {
			if calls++; calls <= maxClientMounts && isForClients(dir) {
				continue
			}
			h.mounted = evidence{overTLS, fmt.Sprintf("the container mounts a certificate at %.60s, and there is no other evidence for the port", dir)}
		}
	}
}

// encrypted returns s, the evidence from a port name, unless the name begins with grpc. Because such a
// name does not exclude TLS, encrypted then returns the evidence from the container's certificate if the
// container has one and no declared port has a name or a number for TLS.
func (h *hints) encrypted(name string, s evidence) evidence {
	if !strings.HasPrefix(name, "grpc") || s.protocol != plainHTTP || h.namesTLS {
		return s
	}
	return firstOf(h.pair, h.mounted, s)
}

// byCertificate returns the evidence from a certificate for a port. A certificate is evidence only
// if the container has no other port without evidence, and no port that is known to use TLS.
func (h *hints) byCertificate(p corev1.ContainerPort) evidence {
	if h.hasTLS || h.namesTLS || slices.ContainsFunc(h.undecided, func(n int32) bool { return n != p.ContainerPort }) {
		return evidence{}
	}
	return firstOf(h.pair, h.mounted)
}
