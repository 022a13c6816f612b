package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
)

// What takes an injection back stands in an annotation, and whoever writes a manifest can
// write that as well: a pod that looks harmless, and would have a privileged container once
// it was uninjected. So of a status only those paths are followed that an injection of ours
// changes, and only back to what can have stood there.

// A trace is one kind of place that an injection changes.
type trace struct {
	path    string                          // as in a [Change], where {x} is one of tokens
	was     func(object any, was any) error // what may have stood there, nil for nothing; nil: nothing alone
	ifEmpty bool                            // as in a [Change]
	must    bool                            // each injection leaves it
}

// podTraces are those in pods, serviceTraces those in Services.
var (
	podTraces = []trace{
		{path: "/metadata", ifEmpty: true},
		{path: "/metadata/annotations", ifEmpty: true},
		{path: "/metadata/annotations/queue-proxy.dev~1status", must: true},
		{path: "/metadata/annotations/prometheus.io~1{metrics}"},
		{path: "/spec/{list}/queue-proxy", must: true},
		{path: "/spec/initContainers", ifEmpty: true},
		{path: "/spec/terminationGracePeriodSeconds", was: wasNumber},
		{path: "/spec/containers/{container}/readinessProbe", was: wasProbeMoved},
		{path: "/spec/containers/{container}/lifecycle", ifEmpty: true},
		{path: "/spec/containers/{container}/lifecycle/preStop", was: wasPause},
		{path: "/spec/containers/{container}/lifecycle/{hook}/{handler}/port", was: wasPortName},
		{path: "/spec/containers/{container}/{probe}/{handler}/port", was: wasPortName},
		{path: "/spec/containers/{container}/ports/{renamed}/name", was: wasPortName},
		{path: "/spec/containers/{container}/ports/{port}/hostPort", was: wasOfSidecar("hostPort")},
		{path: "/spec/containers/{container}/ports/{port}/hostIP", was: wasOfSidecar("hostIP")},
	}
	serviceTraces = []trace{
		{path: "/metadata", ifEmpty: true},
		{path: "/metadata/annotations", ifEmpty: true},
		{path: "/metadata/annotations/queue-proxy.dev~1status", must: true},
		{path: "/spec/ports/{place}/targetPort", was: wasTarget},
	}
	// tokens are what stands for a name in a trace.
	tokens = map[string]*regexp.Regexp{
		"{metrics}":   regexp.MustCompile(`^(scrape|port|path)$`),
		"{list}":      regexp.MustCompile(`^(containers|initContainers)$`),
		"{container}": regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`), // validation.IsDNS1123Label
		"{hook}":      regexp.MustCompile(`^(postStart|preStop)$`),
		"{handler}":   regexp.MustCompile(`^(httpGet|tcpSocket)$`),
		"{probe}":     regexp.MustCompile(`^(livenessProbe|startupProbe)$`),
		"{renamed}":   regexp.MustCompile(`^user-port(-[0-9]+)?$`),
		"{port}":      regexp.MustCompile(`^[a-z0-9-]{1,15}$`),
		"{place}":     regexp.MustCompile(`^#[0-9]{1,5}$`),
	}
)

// checkUndo returns what is wrong with the way back of an object.
func checkUndo(object any, all []undo, traces []trace) error {
	seen := map[string]bool{}
	left := map[string]bool{}
	for _, u := range all {
		t, ok := findTrace(traces, u)
		if !ok {
			return fmt.Errorf("%.100q is no place that an injection changes", u.Path)
		}
		if seen[u.Path] {
			return fmt.Errorf("%s stands there twice", u.Path)
		}
		seen[u.Path], left[t.path] = true, true
		var was any
		if u.Was != nil {
			var err error
			if was, err = Decode(u.Was); err != nil {
				return fmt.Errorf("%s: %w", u.Path, err)
			}
		}
		switch {
		case was == nil:
		case t.was == nil:
			return fmt.Errorf("%s: an injection puts it where nothing stood", u.Path)
		default:
			if err := t.was(object, was); err != nil {
				return fmt.Errorf("%s: %w", u.Path, err)
			}
		}
	}
	for _, t := range traces {
		if t.must && !left[t.path] {
			return fmt.Errorf("%s is missing", strings.ReplaceAll(t.path, "{list}", "containers"))
		}
	}
	return nil
}

// findTrace is the trace that a part of the way back follows.
func findTrace(traces []trace, u undo) (trace, bool) {
	parts := strings.Split(u.Path, "/")
	if strings.Contains(u.Path, "/containers/"+sidecarName+"/") { // the sidecar goes as a whole
		return trace{}, false
	}
	for _, t := range traces {
		want := strings.Split(t.path, "/")
		matches := len(parts) == len(want) && u.IfEmpty == t.ifEmpty
		for i := 0; matches && i < len(want); i++ {
			before, token, after := cutToken(want[i])
			switch part, ok := strings.CutPrefix(parts[i], before); {
			case token == "":
				matches = parts[i] == want[i]
			case !ok || !strings.HasSuffix(part, after):
				matches = false
			default:
				matches = tokens[token].MatchString(strings.TrimSuffix(part, after))
			}
		}
		if matches {
			return t, true
		}
	}
	return trace{}, false
}

// cutToken finds a name in braces, "" for none, in a part of a trace's path.
func cutToken(part string) (before, token, after string) {
	from := strings.IndexByte(part, '{')
	if from < 0 {
		return part, "", ""
	}
	to := strings.IndexByte(part, '}') + 1
	return part[:from], part[from:to], part[to:]
}

func wasNumber(_, was any) error {
	if n, ok := was.(json.Number); ok {
		if _, err := n.Int64(); err == nil {
			return nil
		}
	}
	return errors.New("a whole number is wanted")
}

// wasTarget takes a port's number, or what Kubernetes fills in for.
func wasTarget(object, was any) error {
	if was == "" {
		return nil
	}
	return wasNumber(object, was)
}

func wasPortName(_, was any) error {
	if name, ok := was.(string); ok && len(validation.IsValidPortName(name)) == 0 {
		return nil
	}
	return errors.New("the name of a port is wanted")
}

func wasPause(_, was any) error {
	if _, ok := pauseOf(was); !ok {
		return errors.New("a hook that does nothing but wait is wanted: no other is replaced")
	}
	return nil
}

func wasProbeMoved(_, was any) error {
	p := new(corev1.Probe)
	err := kjson.UnmarshalCaseSensitivePreserveInts(encode(was), p)
	if _, ok := was.(map[string]any); !ok || err != nil || !canMove(p) || handlers(p) != 1 {
		return errors.New("a probe by HTTP, TCP or gRPC is wanted: no other moves")
	}
	return nil
}

func handlers(p *corev1.Probe) int {
	n := 0
	for _, is := range []bool{p.HTTPGet != nil, p.TCPSocket != nil, p.GRPC != nil, p.Exec != nil} {
		if is {
			n++
		}
	}
	return n
}

// wasOfSidecar takes what a port of the sidecar has now: it came from the app's.
func wasOfSidecar(field string) func(object, was any) error {
	return func(object, was any) error {
		for _, list := range []string{"containers", "initContainers"} {
			ports, _ := at(object, "spec", list, sidecarName, "ports").([]any)
			for _, p := range ports {
				if now := at(p, field); now != nil && now == was {
					return nil
				}
			}
		}
		return fmt.Errorf("the sidecar has no such %s", field)
	}
}
