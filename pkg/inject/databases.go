package inject

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

//go:embed databases.txt
var imagesText string

// images contains the rows of databases.txt, which documents the format.
var images = parseImages(imagesText)

// imageHelper is the kind of rows for containers that are not the main container of a pod.
const imageHelper = "helper"

// imageWeb is the kind of rows for web servers.
const imageWeb = "web"

// imageAPI is the kind of rows for images whose ports for requests have a name such as http-metrics.
const imageAPI = "api"

// imageProxy is the kind of rows for helpers that can read the address of an upstream server from a file.
const imageProxy = "proxy"

// hasKind reports whether a row of the given kind matches an image.
func hasKind(image, kind string) bool {
	return slices.ContainsFunc(images, func(r imageRow) bool { return r.kind == kind && r.image.MatchString(image) })
}

// isWebServer reports whether a container's image contains a web server.
func isWebServer(c *corev1.Container) bool {
	return hasKind(c.Image, imageWeb)
}

// An imageRow is a row of databases.txt.
type imageRow struct {
	pattern string // regular expression for the whole name of an image
	image   *regexp.Regexp
	ports   []int32 // nil means all ports that are not in a Service
	kind    string
	reason  string
	source  string
}

// rowsIn returns the fields of each row of a text file with n columns. Lines that begin with # are comments. It
// panics if a row does not have n fields.
func rowsIn(file, text string, n int) (rows [][]string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Split(line, " | ") // an expression in a field can contain | without spaces around it
		if len(fields) != n {
			panic(fmt.Sprintf("inject: %s: got %d fields, want %d: %s", file, len(fields), n, line))
		}
		rows = append(rows, fields)
	}
	return rows
}

func parseImages(text string) []imageRow {
	var all []imageRow
	for _, fields := range rowsIn("databases.txt", text, 5) {
		r := imageRow{pattern: "(^|/)(" + fields[0] + ")([:@]|$)", kind: fields[2], reason: fields[3], source: fields[4]}
		r.image = regexp.MustCompile(r.pattern)
		for port := range strings.SplitSeq(fields[1], ",") {
			if n, err := strconv.ParseUint(port, 10, 16); err == nil {
				r.ports = append(r.ports, int32(n))
			}
		}
		all = append(all, r)
	}
	return all
}

// imageException is the kind of rows for images to which no later row applies.
const imageException = "none"

// imageProtocols contains the kinds of rows that are evidence for the protocol of a port.
var imageProtocols = map[string]protocol{"side": notForRequests, "raw": notHTTP, "tls": overTLS}

// rowsOf returns the rows of databases.txt that match the image of a container and are evidence for
// the protocol of its ports. It stops at the first matching row of the kind imageException.
func rowsOf(c *corev1.Container) []*imageRow {
	var all []*imageRow
	for i, r := range images {
		_, isEvidence := imageProtocols[r.kind]
		if !isEvidence && r.kind != imageException || !r.image.MatchString(c.Image) {
			continue
		}
		if !isEvidence {
			break
		}
		all = append(all, &images[i])
	}
	return all
}

// apiName returns the name of port n without the suffix -metrics, if the image of the
// container serves requests on ports with such a name. Otherwise, it returns name.
func apiName(c *corev1.Container, n int32, name string) string {
	isAPI := func(r imageRow) bool { return r.kind == imageAPI && r.applies(n) && r.image.MatchString(c.Image) }
	if short, found := strings.CutSuffix(name, "-metrics"); found && slices.ContainsFunc(images, isAPI) {
		return short
	}
	return name
}

// applies reports whether the row contains port n or is for all ports.
func (r *imageRow) applies(n int32) bool { return r.ports == nil || slices.Contains(r.ports, n) }

// evidence returns the evidence from the row for a port of a container.
func (r *imageRow) evidence(c *corev1.Container) evidence {
	return evidence{imageProtocols[r.kind], fmt.Sprintf("the image is %.100s (%s)", c.Image, r.reason)}
}

// helperNames are names of containers that support the main container of a pod.
var helperNames = regexp.MustCompile(`(^|-)(auth|oauth|oauth2|rbac|helper|sidecar|exporter|reloader|reload|agent|sync|syncer|watcher|logger|logging|fluentbit|fluentd|promtail|filebeat|cloudsql|adc)(-|$)`)

// nameLabels are the pod labels that usually contain the name of the main container.
var nameLabels = []string{"app", "name", "k8s-app", "component", "app.kubernetes.io/name", "app.kubernetes.io/component"}

// helperReason returns the reason why a container is a helper of another container, or "". If a pod
// label contains the container's name, the container is not a helper.
func helperReason(c *corev1.Container, labels map[string]string) string {
	if slices.ContainsFunc(nameLabels, func(key string) bool { return labels[key] == c.Name }) {
		return ""
	}
	if helperNames.MatchString(c.Name) {
		return "the name of container " + c.Name + " is typical of a helper"
	}
	for _, r := range images {
		if (r.kind == imageHelper || r.kind == imageProxy) && r.image.MatchString(c.Image) {
			return fmt.Sprintf("the image of container %s is %.100s (%s)", c.Name, c.Image, r.reason)
		}
	}
	return ""
}
