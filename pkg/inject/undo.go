package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
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
	path    string                          // as in a [Change], where <x> is one of tokens
	was     func(object any, was any) error // what may have stood there, nil for nothing; nil: nothing alone
	ifEmpty bool                            // as in a [Change]
	must    bool                            // each injection leaves it

	whole *regexp.Regexp // of path
}

// podTraces are those in pods, serviceTraces those in Services.
var (
	podTraces = compiled([]trace{
		{path: "/metadata", ifEmpty: true},
		{path: "/metadata/annotations", ifEmpty: true},
		{path: "/metadata/annotations/queue-proxy.dev~1status", must: true},
		{path: "/metadata/annotations/prometheus.io~1<metrics>"},
		{path: "/spec/<list>/queue-proxy", must: true},
		{path: "/spec/initContainers", ifEmpty: true},
		{path: "/spec/terminationGracePeriodSeconds", was: wasNumber},
		{path: "/spec/containers/<container>/readinessProbe", was: wasProbeMoved},
		{path: "/spec/containers/<container>/lifecycle", ifEmpty: true},
		{path: "/spec/containers/<container>/lifecycle/preStop", was: wasPause},
		{path: "/spec/containers/<container>/lifecycle/<hook>/<handler>/port", was: wasPortName},
		{path: "/spec/containers/<container>/<probe>/<handler>/port", was: wasPortName},
		{path: "/spec/containers/<container>/ports/<renamed>/name", was: wasPortName},
		{path: "/spec/containers/<container>/ports/<port>/hostPort", was: wasOfSidecar("hostPort")},
		{path: "/spec/containers/<container>/ports/<port>/hostIP", was: wasOfSidecar("hostIP")},
	})
	serviceTraces = compiled([]trace{
		{path: "/metadata", ifEmpty: true},
		{path: "/metadata/annotations", ifEmpty: true},
		{path: "/metadata/annotations/queue-proxy.dev~1status", must: true},
		{path: "/spec/ports/<place>/targetPort", was: wasTarget},
	})
)

// compiled adds the expressions of traces.
func compiled(traces []trace) []trace {
	tokens := strings.NewReplacer(
		"<metrics>", "(scrape|port|path)",
		"<list>", "(containers|initContainers)",
		"<container>", "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", // validation.IsDNS1123Label
		"<hook>", "(postStart|preStop)",
		"<handler>", "(httpGet|tcpSocket)",
		"<probe>", "(livenessProbe|startupProbe)",
		"<renamed>", "user-port(-[0-9]+)?",
		"<port>", "[a-z0-9-]{1,15}",
		"<place>", "#[0-9]{1,5}",
	)
	for i, t := range traces {
		traces[i].whole = regexp.MustCompile("^" + tokens.Replace(regexp.QuoteMeta(t.path)) + "$")
	}
	return traces
}

// checkUndo returns what is wrong with the way back of an object.
func checkUndo(object any, all []Change, traces []trace) error {
	seen := map[string]bool{}
	left := map[string]bool{}
	for _, c := range all {
		i := slices.IndexFunc(traces, func(t trace) bool { return t.ifEmpty == c.IfEmpty && t.whole.MatchString(c.Path) })
		if i < 0 || strings.Contains(c.Path, "/containers/"+sidecarName+"/") { // the sidecar goes as a whole
			return fmt.Errorf("%.100q is no place that an injection changes", c.Path)
		}
		t := traces[i]
		if seen[c.Path] {
			return fmt.Errorf("%s stands there twice", c.Path)
		}
		seen[c.Path], left[t.path] = true, true
		was, _ := Decode(c.Value) // JSON, or nothing
		switch {
		case was == nil:
		case t.was == nil:
			return fmt.Errorf("%s: an injection puts it where nothing stood", c.Path)
		default:
			if err := t.was(object, was); err != nil {
				return fmt.Errorf("%s: %w", c.Path, err)
			}
		}
	}
	for _, t := range traces {
		if t.must && !left[t.path] {
			return fmt.Errorf("%s is missing", strings.ReplaceAll(t.path, "<list>", "containers"))
		}
	}
	return nil
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
			for _, p := range listAt(object, "spec", list, sidecarName, "ports") {
				if now := at(p, field); now != nil && now == was {
					return nil
				}
			}
		}
		return fmt.Errorf("the sidecar has no such %s", field)
	}
}
