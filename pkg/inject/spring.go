package inject

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// This file reads the properties of the HTTP servers of Spring Boot, Micronaut and Quarkus.
// They are set by variables, system properties, the variable SPRING_APPLICATION_JSON, and
// arguments. Kibana has properties with the same names as Spring Boot.

// The sources of properties, in ascending order of precedence in Spring Boot.
const (
	noProperty = iota
	fromVariable
	fromSystemProperty // for example -Dserver.port=8080
	fromJSON
	fromArgument // for example --server.port=8080
)

// springJSON is the property that contains other properties as JSON.
const springJSON = "spring.application.json"

// A springProperty is the canonical name of a Spring Boot property and the place where it is set.
// The name is empty if the flag or variable does not set a Spring Boot property.
type springProperty struct {
	name   string
	source int
}

// propertyOf returns the property that a flag or a variable sets. Spring Boot accepts several forms
// of a name, such as SERVER_SSL_KEYSTORE, --server.ssl.key-store and -Dserver.ssl.keyStore. The
// result for all of them is server.ssl.keystore.
func propertyOf(name string, isVariable bool) springProperty {
	p := springProperty{source: fromVariable}
	if isVariable {
		name = strings.ReplaceAll(strings.ToLower(name), "_", ".")
	} else {
		var isSystem bool
		p.source = fromArgument
		if name, isSystem = strings.CutPrefix(name, "-D"); isSystem {
			p.source = fromSystemProperty
		}
		name = strings.TrimLeft(name, "-")
	}
	for _, prefix := range []string{"server.ssl.", "server.", "management.server.", "spring.application.", "micronaut.server.", "micronaut.", "quarkus.http."} {
		if rest, is := strings.CutPrefix(name, prefix); is {
			p.name = prefix + strings.NewReplacer("-", "", "_", "", ".", "").Replace(strings.ToLower(rest))
			return p
		}
	}
	return springProperty{}
}

// tlsProperty matches the properties that enable TLS, except server.ssl.enabled. Spring Boot
// enables TLS if one of them is set. The properties of the trust store, which are for client
// certificates, do not match.
var tlsProperty = regexp.MustCompile(`^server\.ssl\.(bundle|certificate|certificateprivatekey|ciphers|clientauth|enabledprotocols|key[a-z]*|protocol)$`)

// sslEnabled is the property that disables TLS if its value is false.
const sslEnabled = "server.ssl.enabled"

// jsonProperties calls visit for each property of the HTTP server in a JSON document. variable is
// the name of the variable that contains the document.
func jsonProperties(variable, document string, visit func(parameter)) {
	value, err := Decode([]byte(document))
	if err != nil {
		return
	}
	var read func(path string, value any)
	read = func(path string, value any) {
		if m, isMap := value.(map[string]any); isMap {
			for _, key := range slices.Sorted(maps.Keys(m)) {
				read(strings.TrimPrefix(path+"."+key, "."), m[key])
			}
			return
		}
		p := propertyOf("--"+path, false)
		p.source = fromJSON
		switch p.name {
		case "server.port", "management.server.port", sslEnabled:
		default:
			if !tlsProperty.MatchString(p.name) {
				return
			}
		}
		text, isText := value.(string)
		if value == nil || isText && text == "" {
			return
		}
		if !isText {
			text = fmt.Sprint(value)
		}
		visit(parameter{name: path + " of " + variable, words: wordsOf(path), value: text, property: p})
	}
	read("", value)
}

// jsonInFlags calls visit for each property of the HTTP server in --spring.application.json or
// -Dspring.application.json. line is an argument, which can be a shell script.
func jsonInFlags(line string, visit func(parameter)) {
	before, rest, found := strings.Cut(line, springJSON+"=")
	if !found {
		return
	}
	document := strings.TrimLeft(rest[:min(len(rest), maxOptionsBytes)], `\"'`)
	if strings.HasPrefix(document, `{\`) { // quotes can be escaped in a shell script
		document = strings.ReplaceAll(document, `\"`, `"`)
	}
	var object json.RawMessage // the document without the rest of the script
	if err := json.NewDecoder(strings.NewReader(document)).Decode(&object); err == nil {
		jsonProperties(before[strings.LastIndexAny(before, " \t\n")+1:]+springJSON, string(object), visit)
	}
}

// spring contains the configuration of the HTTP server of Spring Boot, Micronaut or Quarkus.
type spring struct {
	port     int32              // 0 if the port is unknown
	evidence evidence           // overTLS if TLS is enabled, and plainHTTP if it is disabled
	others   map[int32]evidence // evidence for other ports
}

// springOf returns the Spring configuration that the parameters of a container contain.
func springOf(all []parameter) spring {
	values := map[string]parameter{}
	for _, s := range all {
		if s.property.name != "" && s.property.source >= values[s.property.name].property.source {
			values[s.property.name] = s
		}
	}
	found := spring{port: portIn(values, "server.port"), others: map[int32]evidence{}}
	found.readMicronaut(values)
	found.readQuarkus(values)
	enabled := values[sslEnabled]
	switch strings.ToLower(enabled.value) {
	case "false", "off", "no", "0":
		found.evidence = evidence{plainHTTP, fmt.Sprintf("%.60s=%.10s disables TLS", enabled.name, enabled.value)}
		return found
	case "true", "on", "yes", "1":
		found.evidence = evidence{overTLS, fmt.Sprintf("%.60s configures TLS", enabled.name)}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if tlsProperty.MatchString(name) {
			found.evidence = evidence{overTLS, fmt.Sprintf("%.60s configures TLS", values[name].name)}
			break
		}
	}
	return found
}

// portIn returns the port number in the first of the named properties that is set, or 0.
func portIn(values map[string]parameter, names ...string) int32 {
	for _, name := range names {
		if n, err := strconv.ParseUint(values[name].value, 10, 16); err == nil {
			return int32(n)
		}
	}
	return 0
}

// readMicronaut reads the properties of Micronaut. If TLS is enabled, the HTTP port is closed
// unless the server supports both protocols.
func (s *spring) readMicronaut(values map[string]parameter) {
	const prefix, old = "micronaut.server.", "micronaut." // Micronaut 1 uses the prefix micronaut. instead of micronaut.server.
	enabled, has := values[prefix+"sslenabled"]
	if !has {
		enabled = values[old+"sslenabled"]
	}
	if !strings.EqualFold(enabled.value, "true") {
		return
	}
	tls := evidence{overTLS, fmt.Sprintf("%.60s configures TLS", enabled.name)}
	port := portIn(values, prefix+"sslport", old+"sslport")
	s.others[cmp.Or(port, 8443)] = tls
	if !strings.EqualFold(values[prefix+"dualprotocol"].value, "true") {
		s.others[cmp.Or(portIn(values, prefix+"port"), 8080)] = tls
		s.port, s.evidence = port, tls
	}
}

// readQuarkus reads the properties of Quarkus. The HTTP port is open in addition to the HTTPS port
// unless insecure requests are disabled.
func (s *spring) readQuarkus(values map[string]parameter) {
	requests := values["quarkus.http.insecurerequests"]
	port := portIn(values, "quarkus.http.port")
	switch strings.ToLower(requests.value) {
	case "disabled":
		tls := evidence{overTLS, fmt.Sprintf("%.60s=%.10s disables plain HTTP", requests.name, requests.value)}
		s.others[cmp.Or(port, 8080)] = tls
		s.port, s.evidence = port, tls
	case "enabled":
		s.others[cmp.Or(port, 8080)] = evidence{plainHTTP, fmt.Sprintf("%.60s=%.10s enables plain HTTP", requests.name, requests.value)}
	}
}

// handles reports whether s already accounts for the effect of a property on TLS. It returns true
// for all properties of the management port, because they do not affect the port for requests.
func (s spring) handles(p springProperty) bool {
	isSSL := strings.HasPrefix(p.name, "server.ssl.")
	return p.name == sslEnabled || tlsProperty.MatchString(p.name) || isSSL && s.evidence.protocol == plainHTTP || strings.HasPrefix(p.name, "management.server.")
}

// setSpringPort sets the Spring Boot port if it is not known yet. If the port is still unknown, the
// TLS setting applies only to ports that have no stronger evidence.
func (h *hints) setSpringPort(ports []corev1.ContainerPort) {
	if h.spring.port == 0 && h.spring.evidence.protocol != unknownProtocol {
		h.spring.port = h.likelySpringPort(ports)
	}
	if h.spring.port == 0 && h.spring.evidence.protocol == overTLS && h.pair.why == "" {
		h.pair, h.flagged = evidence{overTLS, h.spring.evidence.why + ", and there is no stronger evidence for the port"}, true
	}
}

// likelySpringPort returns 8080, the default port of Spring Boot, if it is one of the ports.
// Otherwise, it returns the only port for requests, or the only one that has an HTTP name. It
// returns 0 if there is no such port, or if TLS is enabled and the name or the number of a port
// indicates TLS.
func (h *hints) likelySpringPort(ports []corev1.ContainerPort) int32 {
	if h.spring.evidence.protocol == overTLS && h.namesTLS {
		return 0
	}
	ports = slices.DeleteFunc(slices.Clone(ports), func(p corev1.ContainerPort) bool {
		return !overTCP(p) || cmp.Or(byName("", p.Name).protocol, h.flags[p.ContainerPort].protocol) == notForRequests
	})
	for _, isLikely := range []func(corev1.ContainerPort) bool{
		func(p corev1.ContainerPort) bool { return p.ContainerPort == 8080 },
		func(corev1.ContainerPort) bool { return true },
		func(p corev1.ContainerPort) bool { return webName.MatchString(p.Name) },
	} {
		numbers := map[int32]bool{}
		for _, p := range ports {
			if isLikely(p) {
				numbers[p.ContainerPort] = true
			}
		}
		for n := range numbers {
			if len(numbers) == 1 {
				return n
			}
		}
	}
	return 0
}

// bySpring returns the evidence that the Spring Boot, Micronaut or Quarkus configuration contains for a
// port.
func (h *hints) bySpring(n int32) evidence {
	if other := h.spring.others[n]; other.why != "" {
		return other
	}
	if n != h.spring.port {
		return evidence{}
	}
	return h.spring.evidence
}

// matchesCEL returns the CEL expression text.matches(expression).
func matchesCEL(text, expression string) string {
	return text + ".matches(" + quoteCEL(expression) + ")"
}

// springCEL returns an expression that is false if the properties of Spring Boot enable TLS, or if
// a flag in a variable binds a port to the loopback address. If the expression isHTTP is false, the
// result is also false if a variable with flags contains other evidence. The expression is stricter
// than bySpring, because it ignores the port, and a property for TLS in an argument is sufficient
// evidence for TLS. The limits bound the number and the length of the texts that are matched.
func springCEL(isHTTP string) string {
	const (
		maxArguments  = 1000
		maxVariables  = 500
		maxProperties = 30   // maximum number of variables that can contain a property
		maxMatched    = 10   // maximum number of texts that are matched with an expensive expression
		maxTextLength = 2000 // maximum length in bytes of a string that is matched against hintFlags
		isEnabled     = `(?i)^server[._]ssl[._]enabled$`
	)
	isTLS := matchesCEL("text", `(^|[ \t\n])-(-|D)?((?i:`+hintTLSProperty+`)|server\.ssl\.(?i:enabled)(=["']?(?i:true|on|yes|1)|[ \t\n]|$))`)
	value := func(name, isValue string) string {
		return fmt.Sprintf("found.exists(e, %s && [e.?value.orValue('')].exists(text, size(text) <= %d && %s))", matchesCEL("e.name", name), maxOptionsBytes, isValue)
	}
	return fmt.Sprintf(`![app.?command.orValue([]) + app.?args.orValue([])].exists(all, size(all) > %[1]d
      || all.exists(text, %[18]s)
      || [all.filter(text, text.contains('server.ssl'))].exists(found, size(found) > %[2]d || found.exists(text, size(text) > %[3]d || %[4]s)))
    && size(app.?env.orValue([])) <= %[5]d
    && [app.?env.orValue([]).filter(e, size(e.name) <= %[6]d && %[7]s)].all(found, size(found) <= %[8]d
      && [found.filter(e, %[9]s).map(e, e.?value.orValue(''))].all(options, size(options) <= %[2]d
        && !options.exists(text, size(text) <= %[3]d && (%[10]s || %[18]s || text.contains('server.ssl') && %[4]s))
        && (%[11]s || !options.exists(text, size(text) > %[12]d || %[13]s)))
      && !found.exists(e, %[19]s)
      && !%[14]s
      && !%[15]s
      && (!found.exists(e, %[16]s) || %[17]s))`,
		maxArguments, maxMatched, maxOptionsBytes, isTLS, maxVariables,
		maxFlagBytes, matchesCEL("e.name", hintOptions+`|^(server|spring|quarkus|micronaut)[._]`), maxProperties,
		matchesCEL("e.name", hintOptions), matchesCEL("text", hintLoopback),
		isHTTP, maxTextLength, matchesCEL("text", hintFlags),
		value(hintJSON, "("+matchesCEL("text", `(?i)ssl`)+" || !("+isHTTP+") && text.contains('management'))"), value(isEnabled, matchesCEL("text", `(?i)^(true|on|yes|1)$`)),
		matchesCEL("e.name", `(?i)^`+hintTLSProperty), value(isEnabled, matchesCEL("text", `(?i)^(false|off|no|0)$`)),
		fmt.Sprintf("(text.contains('micronaut.') || text.contains('quarkus.http.insecure') || text.contains('%s') && (text.contains('ssl') || !(%s)))", springJSON, isHTTP),
		matchesCEL("e.name", `(?i)^(quarkus[._]http[._]insecure|micronaut[._])`))
}
