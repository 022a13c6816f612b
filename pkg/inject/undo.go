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
)

// A status annotation contains the changes that revert an injection. Anyone who can write a
// manifest can forge the annotation, for example so that the pod has a privileged container after
// uninject. Therefore, Uninject only accepts the paths that an injection changes, and only values
// that an injection can replace.

// A trace describes a path that an injection changes.
type trace struct {
	path    string                          // path of a [Change]; see compileTraces for the placeholders in angle brackets
	was     func(object any, was any) error // validates the value to restore; nil means that there must be no value
	ifEmpty bool                            // IfEmpty of the [Change]
	must    bool                            // each injection changes the path

	whole *regexp.Regexp // matches the whole path
}

// podTraces contains the paths that an injection changes in pods, and serviceTraces contains the
// paths that it changes in Services.
var (
	podTraces = compileTraces([]trace{
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
	serviceTraces = compileTraces([]trace{
		{path: "/metadata", ifEmpty: true},
		{path: "/metadata/annotations", ifEmpty: true},
		{path: "/metadata/annotations/queue-proxy.dev~1status", must: true},
		{path: "/spec/ports/<place>/targetPort", was: wasTarget},
	})
)

// compileTraces sets the regular expressions of traces.
func compileTraces(traces []trace) []trace {
	tokens := strings.NewReplacer(
		"<metrics>", "(scrape|port|path)",
		"<list>", "(containers|initContainers)",
		"<container>", "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", // the same pattern as validation.IsDNS1123Label
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

// checkUndo returns an error if all contains changes that no injection writes to the status of object.
func checkUndo(object any, all []Change, traces []trace) error {
	seen := map[string]bool{}
	left := map[string]bool{}
	for _, c := range all {
		i := slices.IndexFunc(traces, func(t trace) bool { return t.ifEmpty == c.IfEmpty && t.whole.MatchString(c.Path) })
		if i < 0 || strings.Contains(c.Path, "/containers/"+SidecarName+"/") { // the sidecar is removed as a whole
			return fmt.Errorf("unexpected path %.100q", c.Path)
		}
		t := traces[i]
		if seen[c.Path] {
			return fmt.Errorf("%s is duplicated", c.Path)
		}
		seen[c.Path], left[t.path] = true, true
		was, _ := Decode(c.Value) // was is nil if there is no value
		switch {
		case was == nil:
		case t.was == nil:
			return fmt.Errorf("%s: unexpected value", c.Path)
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
	return errors.New("want an integer")
}

// wasTarget accepts a port number, or an empty string, because the target port of a Service defaults
// to the port number.
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
	return errors.New("want the name of a port")
}

func wasPause(_, was any) error {
	if _, ok := pauseOf(was); !ok {
		return errors.New("want a hook that only sleeps")
	}
	return nil
}

func wasProbeMoved(_, was any) error {
	p := new(corev1.Probe)
	err := decodeInto(was, p)
	if _, ok := was.(map[string]any); !ok || err != nil || !canMove(p) || handlers(p) != 1 {
		return errors.New("want an HTTP, TCP or gRPC probe")
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

// wasOfSidecar returns a function that validates the original value of a field of the application
// port. An injection moves this field to the sidecar, so the value must be equal to the value in a
// sidecar port.
func wasOfSidecar(field string) func(object, was any) error {
	return func(object, was any) error {
		for _, list := range []string{"containers", "initContainers"} {
			for _, p := range listAt(object, "spec", list, SidecarName, "ports") {
				if now := At(p, field); now != nil && now == was {
					return nil
				}
			}
		}
		return fmt.Errorf("the sidecar has a different %s", field)
	}
}
