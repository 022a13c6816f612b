package inject

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// This file finds reverse proxies in front of the application, such as oauth2-proxy. A
// Service that uses the application port directly would bypass the authentication.
// Therefore, the injector never selects a port behind a proxy unless an option or a
// Service names the port.

// An upstream is a container that forwards requests to a port of another container of the pod.
type upstream struct {
	container string
	parameter string // the flag or the variable that contains the address
}

var (
	// upstreamWords are words in the names of flags and variables that contain the address of the
	// server behind a proxy. Exporters use other names, such as --scrape-uri.
	upstreamWords = []string{"upstream", "upstreams", "backend", "backends", "proxy", "proxied", "forward", "target", "targets", "to"}
	// egressWords are words in the names of variables for a forward proxy, such as HTTPS_PROXY.
	egressWords = []string{"http", "https", "all", "no", "ftp", "proxy"}
	configWords = []string{"config", "cfg", "configuration"}
	scrapeWords = []string{"scrape", "scraper", "exporter"}
	upstreamURL = regexp.MustCompile(`(?i)^(?:([a-z0-9+]+)://)?(?:localhost|127\.0\.0\.1|\[::1\])(?::([0-9]{1,5}))?(/.*)?$`)
)

// isUpstream reports whether the name of a parameter contains the word upstream or upstreams.
func isUpstream(words []string) bool { return anyOf(words, []string{"upstream", "upstreams"}) }

// isUpstreamAddress reports whether a parameter's name, such as upstream-url, indicates
// the address of an upstream server. It returns false for other settings of the server,
// such as upstream-timeout.
func isUpstreamAddress(words []string) bool {
	if n := len(words); n > 1 && words[n-1] == "url" {
		words = words[:n-1]
	}
	return len(words) > 0 && isUpstream(words[len(words)-1:])
}

// upstreamOf returns the port in part, a part of the value of s, if s contains the address of a
// server behind a proxy. Otherwise, it returns 0.
func upstreamOf(s parameter, part string) int32 {
	if len(s.words) == 0 || !anyOf(s.words, upstreamWords) || allOf(s.words, egressWords) && len(s.words) > 1 {
		return 0
	}
	port := part
	if m := upstreamURL.FindStringSubmatch(part); m != nil {
		port = m[2]
		switch {
		case port != "" || m[1] == "":
		case m[1] == "https":
			port = "443"
		default:
			port = "80"
		}
		// An exporter reads metrics from an address of this form. The flags of a proxy in front of the
		// metrics contain the word upstream.
		if (anyOf(s.words, scrapeWords) || anyOf(s.words, sideWords) || healthPath.MatchString(m[3])) && !isUpstream(s.words) {
			return 0
		}
	} else if last := s.words[len(s.words)-1]; last != "port" && last != "ports" {
		return 0
	}
	n, _ := strconv.ParseUint(port, 10, 16) // n is 0 if the port is not a valid number
	return int32(n)
}

// hiddenUpstream returns the parameter that hides the address of the server behind a proxy such as oauth2-proxy: a
// configuration file, or a value from another object. It returns "" if the address is visible, or if the container is not
// such a proxy.
func hiddenUpstream(container any) string {
	if !hasKind(Text(container, "image"), imageProxy) {
		return ""
	}
	visible, hidden := false, ""
	for _, s := range parametersOf(container) {
		visible = visible || isUpstreamAddress(s.words)
		if anyOf(s.words, configWords) && strings.ContainsRune(s.value, '/') {
			hidden = fmt.Sprintf("%.60s=%.60s", s.name, s.value)
		}
	}
	for _, v := range listAt(container, "env") {
		if name := Text(v, "name"); At(v, "valueFrom") != nil && isUpstreamAddress(wordsOf(name)) {
			hidden = fmt.Sprintf("env %.60s", name)
		}
	}
	switch {
	case visible:
		return ""
	case hidden == "" && len(listAt(container, "envFrom")) > 0:
		return "envFrom"
	}
	return hidden
}

// upstreams returns the containers that forward requests to each port of the pod, at most two for
// each port. It also sets in.hidden.
func (in *injection) upstreams() map[int32][]upstream {
	if in.behind != nil {
		return in.behind
	}
	in.behind = map[int32][]upstream{}
	for _, c := range containersAtRuntime(in.object) {
		name := Text(c, "name")
		if parameter := hiddenUpstream(c); parameter != "" {
			in.hidden = append(in.hidden, upstream{name, parameter})
		}
		for _, s := range parametersOf(c) {
			for part := range strings.FieldsFuncSeq(s.value, func(r rune) bool { return strings.ContainsRune(",; \t\n", r) }) {
				if n := upstreamOf(s, part); n != 0 && len(in.behind[n]) < 2 && !in.forwards(name, n) {
					in.behind[n] = append(in.behind[n], upstream{name, fmt.Sprintf("%.60s=%.60s", s.name, part)})
				}
			}
		}
	}
	return in.behind
}

// forwards reports whether a container forwards requests to a port.
func (in *injection) forwards(container string, n int32) bool {
	return slices.ContainsFunc(in.upstreams()[n], func(u upstream) bool { return u.container == container })
}

// proxyOf returns the reason why a port of a container is behind a proxy in another container, or "".
func (in *injection) proxyOf(c *corev1.Container, n int32) string {
	for _, u := range in.upstreams()[n] {
		if u.container != c.Name {
			return fmt.Sprintf("container %s forwards requests to the port (%s)", u.container, u.parameter)
		}
	}
	for _, u := range in.hidden {
		if u.container != c.Name {
			return fmt.Sprintf("container %s forwards requests to an unknown port (%s)", u.container, u.parameter)
		}
	}
	return ""
}

// skipProxied returns the error for a pod that has a port behind a proxy and no other port that
// clearly serves requests.
func (in *injection) skipProxied(proxied *candidate, all []*candidate) error {
	in.out.Missing = "a Service that uses the port"
	possible := slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return !c.proxied && !c.evidence.takesRequests() })
	return skip(NotHTTP, "port %s of container %s is the target of a proxy: %s; a Service that uses the port bypasses the proxy; to select a port: %s",
		describePort(proxied.port), proxied.container.Name, proxied.evidence.why, in.flagsOf(possible))
}

// notProxiedCEL returns an expression that is false if the pod has several containers and one of
// them can be a proxy in front of another one. It is stricter than upstreams, because a word for a
// proxy and the address can be in different flags, and the server of a proxy such as oauth2-proxy is
// always considered unknown.
func notProxiedCEL() string {
	const (
		words   = `(?i)upstream|backend|prox(y|ied)|forward|target|to([^a-z]|$)`
		address = `(?i)localhost|127\.0\.0\.1|\[::1\]`
		ports   = `(?i)(upstream|backend|proxy|proxied|forward|target|to)[^= ]*ports?([= ]|$)`
	)
	var proxies []string
	for _, r := range images {
		if r.kind == imageProxy {
			proxies = append(proxies, r.pattern)
		}
	}
	isProxy := matchesCEL("c.?image.orValue('')", strings.Join(proxies, "|"))
	return fmt.Sprintf("size(%[1]s) == 1 || !%[1]s.exists(c, %[2]s) && %[3]s", stay, isProxy, boundedTextsCEL(fmt.Sprintf("!(%s && %s || %s)",
		matchesCEL("text", words), matchesCEL("text", address), matchesCEL("text", ports))))
}
