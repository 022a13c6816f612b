package inject

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// format is the version of the status annotation. It is incremented when older injectors cannot
// revert the changes of newer injectors.
const format = 1

// A status is the JSON value of the annotation queue-proxy.dev/status. Undo contains the changes
// that revert the injection, in order.
type status struct {
	Format     int        `json:"format"`
	Confidence Confidence `json:"confidence,omitempty"` // confidence in the port; Uninject ignores it
	Undo       []Change   `json:"undo"`
	Text       string     `json:"text,omitempty"` // original layout of a file: see [WithText]
}

// beginStatus creates the status annotation as the first change. The undo changes are in
// reverse order, so the annotation and its parents are removed last.
func (in *injection) beginStatus() error {
	in.set("", "metadata", "annotations", StatusAnnotation)
	return nil
}

// endStatus sets the value of the status annotation.
func (in *injection) endStatus() error {
	if in.err == nil {
		in.changes[0].Value = statusValue(in.out.Confidence, in.undoChanges())
	}
	return in.checkAnnotations(in.addedAnnotationBytes())
}

// addedAnnotationBytes returns the size in bytes of the annotations that the changes add.
func (in *injection) addedAnnotationBytes() int {
	n := 0
	for _, c := range in.changes {
		var text string
		if tokens := Tokens(c.Path); len(tokens) == 3 && tokens[1] == "annotations" && json.Unmarshal(c.Value, &text) == nil {
			n += len(tokens[2]) + len(text)
		}
	}
	return n
}

// statusValue returns the value of the status annotation as JSON.
func statusValue(confidence Confidence, undoChanges []Change) json.RawMessage {
	return encode(string(encode(status{Format: format, Confidence: confidence, Undo: undoChanges})))
}

// IsStatus reports whether a change writes a status annotation.
func IsStatus(c Change) bool {
	return c.Value != nil && strings.HasSuffix(c.Path, "/metadata/annotations/queue-proxy.dev~1status")
}

// WithText returns a change that writes a status with the given text added. The text describes the
// layout of the object in its file. Package inject does not interpret it; [TextOf] returns it.
func WithText(c Change, text string) Change {
	var value string
	var s status
	if json.Unmarshal(c.Value, &value) == nil && json.Unmarshal([]byte(value), &s) == nil {
		s.Text = text
		c.Value = encode(string(encode(s)))
	}
	return c
}

// TextOf returns the text that [WithText] added to the status of a pod template or a Service, or
// "".
func TextOf(object any) string {
	text, _ := At(object, "metadata", "annotations", StatusAnnotation).(string)
	var s status
	if len(text) > maxAnnotationBytes || json.Unmarshal([]byte(text), &s) != nil {
		return ""
	}
	return s.Text
}

// existingSidecar returns the ports of the sidecar in a pod: the values in its environment, or the
// default ports. It returns nil if the pod has no sidecar. Each injection uses these ports to
// rewrite Services, so that a second injection makes the same changes.
func existingSidecar(pod any) *Outcome {
	usual := defaults()
	for _, list := range []string{"containers", "initContainers"} {
		sidecar := At(pod, "spec", list, SidecarName)
		if sidecar == nil {
			continue
		}
		o := &Outcome{AppPort: int32(usual.UserPort.V), ServingPort: int32(usual.Port.V), native: At(sidecar, "restartPolicy") != nil}
		for name, to := range map[string]*int32{usual.UserPort.Name(): &o.AppPort, usual.Port.Name(): &o.ServingPort} {
			if n, err := strconv.Atoi(Text(At(sidecar, "env", name), "value")); err == nil && n > 0 && n < 1<<16 {
				*to = int32(n)
			}
		}
		for _, p := range listAt(sidecar, "ports") {
			name := Text(p, "name")
			if Text(p, "containerPort") == decimal(o.ServingPort) && name != unnamedPort && containerOfName(pod, name) == SidecarName {
				o.PortName = name
			}
		}
		return o
	}
	return nil
}

// containerOfName returns the container that a Service finds by the name of a TCP port, which is
// the first container that declares the name. Kubernetes searches the containers before the init
// containers (FindPort of k8s.io/kubernetes/pkg/api/v1/pod).
func containerOfName(pod any, name string) string {
	for _, c := range containersAtRuntime(pod) {
		for _, p := range listAt(c, "ports") {
			if protocol := Text(p, "protocol"); name != "" && Text(p, "name") == name && (protocol == "" || protocol == "TCP") {
				return Text(c, "name")
			}
		}
	}
	return ""
}

// describeStatus returns a sentence about the version of the injector that wrote a status.
func describeStatus(text string) string {
	var s status
	switch err := json.Unmarshal([]byte(text), &s); {
	case err != nil:
		return "the pod has a container " + SidecarName + ", but the annotation " + StatusAnnotation + " was not written by the injector, so the container cannot be updated; inject the original manifest"
	case s.Format > format:
		return fmt.Sprintf("injected with a newer format (%d, this injector writes %d)", s.Format, format)
	case s.Format < format:
		return fmt.Sprintf("injected with format %d, but the current format is %d; run uninject and inject to update it", s.Format, format)
	}
	return "already injected; run uninject first to inject with other options"
}

// Uninject returns the changes that remove the queue-proxy from a pod and restore the values that
// [Inject] replaced. Other edits since the injection are kept. Uninject does not modify template.
func Uninject(template any) Outcome {
	t, err := decodeTemplate(template)
	if err != nil {
		return Outcome{Verdict: Refused, Reason: Unreadable, Text: fmt.Sprintf("invalid pod: %v", err)}
	}
	text, injected := t.Annotations[StatusAnnotation]
	switch {
	case !injected && hasContainer(t.Spec, SidecarName):
		return Outcome{Verdict: Skipped, Reason: HasQueueProxy, Text: "container " + SidecarName + " was not added by the injector, or the annotation " + StatusAnnotation + " was removed"}
	case !injected:
		return Outcome{Verdict: Skipped, Reason: NotInjected, Text: "not injected"}
	}
	return revertChanges(template, text, podTraces)
}

// revertChanges returns the changes that revert an injection. text is the status annotation of the
// object. The outcome is [Refused] if the annotation contains changes that traces do not permit.
func revertChanges(object any, text string, traces []trace) Outcome {
	refused := func(format string, args ...any) Outcome {
		return Outcome{Verdict: Refused, Reason: BadStatus, Text: fmt.Sprintf(format, args...)}
	}
	if len(text) > maxAnnotationBytes {
		return refused("annotation %s: %d bytes exceed the Kubernetes limit", StatusAnnotation, len(text))
	}
	var s status
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return refused("annotation %s was not written by the injector, so the changes of the injector are not known; restore the original manifest, or remove the annotation and the container %s", StatusAnnotation, SidecarName)
	}
	switch {
	case s.Format > format:
		return refused("injected by a newer injector (format %d); run uninject with that version", s.Format)
	case s.Format < format:
		return refused("annotation %s was not written by the injector: unknown format %d", StatusAnnotation, s.Format)
	}
	if err := checkUndo(object, s.Undo, traces); err != nil {
		return refused("annotation %s is not a valid injection status: %v; the object was not changed", StatusAnnotation, err)
	}
	out := Outcome{Verdict: Uninjected, Text: "the changes of the injector are undone"}
	copied := copies{}
	for _, c := range s.Undo {
		after, err := copied.apply(object, c)
		if err != nil { // skip a change that has no effect
			out.Text = "the changes of the injector are partly undone"
			out.Warnings = append(out.Warnings, fmt.Sprintf("the original value cannot be restored: %v", err))
			continue
		}
		object = after
		out.Changes = append(out.Changes, c)
	}
	return out
}
