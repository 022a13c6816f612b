package inject

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

// format is the version of the status annotation. It counts up when an older injector
// could not take back what a newer one did.
const format = 1

// A status is what the annotation queue-proxy.dev/status holds, as JSON: how to take
// the injection back, in this order.
type status struct {
	Format     int        `json:"format"`
	Confidence Confidence `json:"confidence,omitempty"` // of the port; uninject ignores it
	Undo       []Change   `json:"undo"`
	Text       string     `json:"text,omitempty"` // how a file was written: see [WithText]
}

// beginStatus makes the status annotation first, so that what it takes to have one is
// taken back last.
func (in *injection) beginStatus() error {
	in.set("", "metadata", "annotations", Prefix+statusKey)
	return nil
}

// endStatus writes into it what has been done since.
func (in *injection) endStatus() error {
	if in.err == nil {
		in.changes[0].Value = statusValue(in.out.Confidence, in.back())
	}
	return in.checkAnnotations(in.annotated())
}

// annotated is how many bytes of annotations the changes add.
func (in *injection) annotated() int {
	n := 0
	for _, c := range in.changes {
		var text string
		if tokens := Tokens(c.Path); len(tokens) == 3 && tokens[1] == "annotations" && json.Unmarshal(c.Value, &text) == nil {
			n += len(tokens[2]) + len(text)
		}
	}
	return n
}

// statusValue is the annotation's value, as JSON.
func statusValue(confidence Confidence, back []Change) json.RawMessage {
	return encode(string(encode(status{Format: format, Confidence: confidence, Undo: back})))
}

// IsStatus reports whether a change writes a status annotation.
func IsStatus(c Change) bool {
	return c.Value != nil && strings.HasSuffix(c.Path, "/metadata/annotations/queue-proxy.dev~1status")
}

// WithText is a change that writes a status, with a text in it that says how the object was
// written in a file. Here nothing is done with it; [TextOf] gives it back.
func WithText(c Change, text string) Change {
	var value string
	var s status
	if json.Unmarshal(c.Value, &value) == nil && json.Unmarshal([]byte(value), &s) == nil {
		s.Text = text
		c.Value = encode(string(encode(s)))
	}
	return c
}

// TextOf is what [WithText] has put into the status of a template or Service, "" for nothing.
func TextOf(object any) string {
	text, _ := at(object, "metadata", "annotations", Prefix+statusKey).(string)
	var s status
	if len(text) > mostAnnotations || json.Unmarshal([]byte(text), &s) != nil {
		return ""
	}
	return s.Text
}

// recognize returns the choices of the injection of a pod: the values in the sidecar's environment, or the usual
// ports. It returns nil if the pod has no sidecar. Each injection uses it for the rewrite of the Services, so that a second
// injection makes the same changes.
func recognize(pod any) *Outcome {
	usual := config.Default()
	for _, list := range []string{"containers", "initContainers"} {
		sidecar := at(pod, "spec", list, sidecarName)
		if sidecar == nil {
			continue
		}
		o := &Outcome{AppPort: int32(usual.UserPort.V), ServingPort: int32(usual.Port.V), native: at(sidecar, "restartPolicy") != nil}
		for name, to := range map[string]*int32{usual.UserPort.Name(): &o.AppPort, usual.Port.Name(): &o.ServingPort} {
			if n, err := strconv.Atoi(text(at(sidecar, "env", name), "value")); err == nil && n > 0 && n < 1<<16 {
				*to = int32(n)
			}
		}
		for _, p := range listAt(sidecar, "ports") {
			name := text(p, "name")
			if text(p, "containerPort") == decimal(o.ServingPort) && name != unnamedPort && containerOfName(pod, name) == sidecarName {
				o.PortName = name
			}
		}
		return o
	}
	return nil
}

// containerOfName returns the container that a Service reaches by the name of a TCP port: the first one with the name.
// Kubernetes searches the containers before the init containers (FindPort of k8s.io/kubernetes/pkg/api/v1/pod).
func containerOfName(pod any, name string) string {
	for _, list := range []string{"containers", "initContainers"} {
		for _, c := range listAt(pod, "spec", list) {
			if list == "initContainers" && at(c, "restartPolicy") == nil {
				continue
			}
			for _, p := range listAt(c, "ports") {
				if protocol := text(p, "protocol"); name != "" && text(p, "name") == name && (protocol == "" || protocol == "TCP") {
					return text(c, "name")
				}
			}
		}
	}
	return ""
}

// describeStatus says by whom a pod was injected.
func describeStatus(text string) string {
	var s status
	switch err := json.Unmarshal([]byte(text), &s); {
	case err != nil:
		return "it was injected, but its status cannot be read"
	case s.Format > format:
		return fmt.Sprintf("by a newer injector (format %d; this one writes %d)", s.Format, format)
	case s.Format < format:
		return fmt.Sprintf("by an older injector (format %d; this one writes %d); uninject and inject again to renew it", s.Format, format)
	}
	return "nothing is changed; uninject first to inject with other options"
}

// Uninject says how the queue-proxy gets out of a pod again: whatever [Inject] changed
// is as it was, and what somebody has changed since stays. template is not changed.
func Uninject(template any) Outcome {
	t, err := decodeTemplate(template)
	if err != nil {
		return Outcome{Verdict: Refused, Reason: Unreadable, Text: fmt.Sprintf("not a pod: %v", err)}
	}
	text, injected := t.Annotations[Prefix+statusKey]
	switch {
	case !injected && hasContainer(t.Spec, sidecarName):
		return Outcome{Verdict: Skipped, Reason: HasQueueProxy, Text: "its container " + sidecarName + " was not injected: there is no annotation " + Prefix + statusKey}
	case !injected:
		return Outcome{Verdict: Skipped, Reason: NotInjected, Text: "there is nothing to take back"}
	}
	return takeBack(template, text, podTraces)
}

// takeBack follows the status of an object, if it is one that an injection leaves.
func takeBack(object any, text string, traces []trace) Outcome {
	refused := func(format string, args ...any) Outcome {
		return Outcome{Verdict: Refused, Reason: BadStatus, Text: fmt.Sprintf(format, args...)}
	}
	if len(text) > mostAnnotations {
		return refused("the annotation %s%s has %d bytes: more than Kubernetes takes", Prefix, statusKey, len(text))
	}
	var s status
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return refused("the annotation %s%s cannot be read: %v", Prefix, statusKey, err)
	}
	switch {
	case s.Format > format:
		return refused("it was injected by a newer injector (format %d), which must take it back", s.Format)
	case s.Format < format:
		return refused("the annotation %s%s is of the format %d, which no injector writes", Prefix, statusKey, s.Format)
	}
	if err := checkUndo(object, s.Undo, traces); err != nil {
		return refused("the annotation %s%s is not what an injection leaves: %v; nothing is changed", Prefix, statusKey, err)
	}
	out := Outcome{Verdict: Uninjected, Text: "it is as it was"}
	object = runtime.DeepCopyJSONValue(object)
	for _, c := range s.Undo {
		if _, err := apply(object, c); err != nil { // then it has changed nothing
			out.Warnings = append(out.Warnings, fmt.Sprintf("what stood there is lost: %v", err))
			continue
		}
		out.Changes = append(out.Changes, c)
	}
	return out
}
