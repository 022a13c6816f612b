package inject

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// validStatus returns a valid status with additional changes.
func validStatus(more ...string) string {
	all := append([]string{`{"path":"/spec/containers/queue-proxy"}`, `{"path":"/metadata/annotations/queue-proxy.dev~1status"}`}, more...)
	return `{"format":1,"undo":[` + strings.Join(all, ",") + `]}`
}

// injectedPod returns an injected pod with a status.
func injectedPod(t *testing.T, status string) any {
	t.Helper()
	return parse(t, `{"metadata":{"name":"web","namespace":"shop","annotations":{"queue-proxy.dev/status":`+string(encode(status))+`}},"spec":{"serviceAccountName":"web","containers":[`+
		`{"name":"web","image":"web:1","ports":[{"name":"user-port","containerPort":8080}],"livenessProbe":{"exec":{"command":["true"]}}},`+
		`{"name":"queue-proxy","image":"queue-proxy:dev","ports":[{"name":"http","containerPort":8012,"hostPort":80,"hostIP":"10.0.0.1"}]}]}}`)
}

// forgedUndos contains status annotations that an attacker can write and that must be
// rejected.
var forgedUndos = map[string]string{
	"a privileged container":           `{"path":"/spec/containers/web/securityContext","was":{"privileged":true}}`,
	"a privileged sidecar":             `{"path":"/spec/containers/queue-proxy/securityContext","was":{"privileged":true}}`,
	"a probe of the sidecar":           `{"path":"/spec/containers/queue-proxy/readinessProbe","was":{"tcpSocket":{"port":1}}}`,
	"the network of the node":          `{"path":"/spec/hostNetwork","was":true}`,
	"another namespace":                `{"path":"/metadata/namespace","was":"kube-system"}`,
	"another image":                    `{"path":"/spec/containers/web/image","was":"evil:1"}`,
	"another service account":          `{"path":"/spec/serviceAccountName","was":"admin"}`,
	"a whole container":                `{"path":"/spec/containers/web","was":{"name":"web","image":"evil:1"}}`,
	"an additional container":          `{"path":"/spec/containers/evil","was":{"name":"evil","image":"evil:1"}}`,
	"another sidecar":                  `{"path":"/spec/initContainers/queue-proxy","was":{"name":"queue-proxy","image":"evil:1"}}`,
	"all containers":                   `{"path":"/spec/containers","was":[{"name":"evil"}]}`,
	"all containers, if empty":         `{"path":"/spec/initContainers","was":[{"name":"evil"}],"ifEmpty":true}`,
	"the whole spec":                   `{"path":"/spec","was":{"hostNetwork":true}}`,
	"the whole object":                 `{"path":"","was":{"kind":"ClusterRoleBinding"}}`,
	"a volume":                         `{"path":"/spec/volumes","was":[{"hostPath":{"path":"/"}}]}`,
	"another annotation":               `{"path":"/metadata/annotations/seccomp","was":"unconfined"}`,
	"the value of a new annotation":    `{"path":"/metadata/annotations/prometheus.io~1scrape","was":"true"}`,
	"another status":                   `{"path":"/metadata/annotations/queue-proxy.dev~1image","was":"evil"}`,
	"a command as a probe":             `{"path":"/spec/containers/web/readinessProbe","was":{"exec":{"command":["evil"]}}}`,
	"a command in addition to a probe": `{"path":"/spec/containers/web/readinessProbe","was":{"tcpSocket":{"port":1},"exec":{"command":["evil"]}}}`,
	"a probe that is a string":         `{"path":"/spec/containers/web/readinessProbe","was":"evil"}`,
	"a probe without a handler":        `{"path":"/spec/containers/web/readinessProbe","was":{"periodSeconds":1}}`,
	"a command as the preStop hook":    `{"path":"/spec/containers/web/lifecycle/preStop","was":{"exec":{"command":["sh","-c","evil"]}}}`,
	"a command after a sleep":          `{"path":"/spec/containers/web/lifecycle/preStop","was":{"exec":{"command":["sh","-c","sleep 1; evil"]}}}`,
	"a command in addition to a sleep": `{"path":"/spec/containers/web/lifecycle/preStop","was":{"sleep":{"seconds":1},"exec":{"command":["evil"]}}}`,
	"a request as the preStop hook":    `{"path":"/spec/containers/web/lifecycle/preStop","was":{"httpGet":{"host":"evil","port":1}}}`,
	"a postStart hook":                 `{"path":"/spec/containers/web/lifecycle/postStart","was":{"exec":{"command":["evil"]}}}`,
	"a whole lifecycle":                `{"path":"/spec/containers/web/lifecycle","was":{"postStart":{"exec":{"command":["evil"]}}},"ifEmpty":true}`,
	"a liveness probe":                 `{"path":"/spec/containers/web/livenessProbe","was":{"exec":{"command":["evil"]}}}`,
	"the host of a probe":              `{"path":"/spec/containers/web/livenessProbe/httpGet/host","was":"evil"}`,
	"a port that is an object":         `{"path":"/spec/containers/web/livenessProbe/httpGet/port","was":{"a":1}}`,
	"a port that is a number":          `{"path":"/spec/containers/web/livenessProbe/httpGet/port","was":22}`,
	"another port of the node":         `{"path":"/spec/containers/web/ports/http/hostPort","was":22}`,
	"another address of the node":      `{"path":"/spec/containers/web/ports/http/hostIP","was":"0.0.0.0"}`,
	"a name with invalid syntax":       `{"path":"/spec/containers/web/ports/user-port/name","was":"../x"}`,
	"the name of another port":         `{"path":"/spec/containers/web/ports/metrics/name","was":"http"}`,
	"a time that is not a number":      `{"path":"/spec/terminationGracePeriodSeconds","was":"1"}`,
	"a time with a fraction":           `{"path":"/spec/terminationGracePeriodSeconds","was":0.5}`,
	"an index in a list":               `{"path":"/spec/containers/#0/readinessProbe","was":{"tcpSocket":{"port":1}}}`,
	"an equivalent path":               `{"path":"/spec//containers/web/readinessProbe","was":{"tcpSocket":{"port":1}}}`,
	"an escape in a path":              `{"path":"/spec/containers/web~1x/readinessProbe","was":{"tcpSocket":{"port":1}}}`,
	"a missing ifEmpty":                `{"path":"/spec/containers/web/lifecycle"}`,
	"an unexpected ifEmpty":            `{"path":"/spec/terminationGracePeriodSeconds","ifEmpty":true}`,
	"a duplicate path":                 `{"path":"/spec/terminationGracePeriodSeconds"},{"path":"/spec/terminationGracePeriodSeconds","was":1}`,
	"a path of a Service":              `{"path":"/spec/ports/#0/targetPort","was":1}`,
}

func TestUninjectRejectsForgedStatus(t *testing.T) {
	statuses := map[string]string{
		"no changes":                `{"format":1,"undo":[]}`,
		"no status removed":         `{"format":1,"undo":[{"path":"/spec/containers/queue-proxy"}]}`,
		"no sidecar removed":        `{"format":1,"undo":[{"path":"/metadata/annotations/queue-proxy.dev~1status"}]}`,
		"no format":                 strings.Replace(validStatus(), `"format":1,`, "", 1),
		"an older format":           strings.Replace(validStatus(), `"format":1`, `"format":0`, 1),
		"a newer format":            strings.Replace(validStatus(), `"format":1`, `"format":2`, 1),
		"no JSON":                   `{`,
		"a status that is too long": validStatus() + strings.Repeat(" ", maxAnnotationBytes),
	}
	for name, undo := range forgedUndos {
		statuses[name] = validStatus(undo)
	}
	for name, status := range statuses {
		if out := Uninject(injectedPod(t, status)); out.Verdict != Refused || out.Reason != BadStatus || len(out.Changes) > 0 {
			t.Errorf("%s: got %s (%s) %s with %d changes, want refused (bad-status) without changes", name, out.Verdict, out.Reason, out.Text, len(out.Changes))
		}
	}
}

func TestUninjectAcceptsValidStatus(t *testing.T) {
	pod := injectedPod(t, validStatus(
		`{"path":"/spec/terminationGracePeriodSeconds","was":5}`, `{"path":"/spec/containers/web/lifecycle/preStop","was":{"sleep":{"seconds":3}}}`,
		`{"path":"/spec/containers/web/readinessProbe","was":{"httpGet":{"port":"http","ofTheFuture":1}}}`, `{"path":"/spec/containers/web/ports/user-port/name","was":"http"}`,
		`{"path":"/spec/containers/web/ports/http/hostPort","was":80}`, `{"path":"/spec/containers/web/ports/http/hostIP","was":"10.0.0.1"}`,
		`{"path":"/spec/initContainers","ifEmpty":true}`, `{"path":"/metadata/annotations","ifEmpty":true}`))
	out := Uninject(pod)
	harness.Equal(t, verdictOf(out), "uninjected", out.Text)
	want := `{"metadata":{"name":"web","namespace":"shop"},"spec":{"containers":[{"image":"web:1","lifecycle":{"preStop":{"sleep":{"seconds":3}}},"livenessProbe":{"exec":{"command":["true"]}},"name":"web",` +
		`"ports":[{"containerPort":8080,"hostIP":"10.0.0.1","hostPort":80,"name":"http"}],"readinessProbe":{"httpGet":{"ofTheFuture":1,"port":"http"}}}],"serviceAccountName":"web","terminationGracePeriodSeconds":5}}`
	harness.Equal(t, string(encode(changed(t, pod, out.Changes))), want)
}

func TestUninjectServiceRejectsForgedStatus(t *testing.T) {
	const gone = `{"path":"/metadata/annotations/queue-proxy.dev~1status"}`
	for undo, want := range map[string]Verdict{
		gone + `,{"path":"/spec/ports/#0/targetPort","was":8080}`:                             Uninjected,
		gone + `,{"path":"/spec/ports/#0/targetPort"}`:                                        Uninjected,
		`{"path":"/spec/ports/#0/targetPort","was":8080}`:                                     Refused,
		gone + `,{"path":"/spec/type","was":"LoadBalancer"}`:                                  Refused,
		gone + `,{"path":"/spec/externalIPs","was":["1.2.3.4"]}`:                              Refused,
		gone + `,{"path":"/spec/selector","was":{"app":"bank"}}`:                              Refused,
		gone + `,{"path":"/spec/ports/#0/nodePort","was":30000}`:                              Refused,
		gone + `,{"path":"/spec/ports/#0","was":{}}`:                                          Refused,
		gone + `,{"path":"/spec/containers/web/readinessProbe","was":{"grpc":{"port":1}}}`:    Refused,
		gone + `,{"path":"/spec/ports/http/targetPort","was":1},{"path":"/spec/ports/-"}`:     Refused,
		gone + `,{"path":"/spec/ports/#0/targetPort","was":{"type":1}},{"path":"/spec/type"}`: Refused,
	} {
		service := parse(t, `{"metadata":{"annotations":{"queue-proxy.dev/status":`+string(encode(`{"format":1,"undo":[`+undo+`]}`))+`}},"spec":{"ports":[{"port":80,"targetPort":"http"}]}}`)
		if out := UninjectService(service); out.Verdict != want || want == Refused && (out.Reason != BadStatus || len(out.Changes) > 0) {
			t.Errorf("%s: got %s (%s) %s with %d changes, want %s", undo, out.Verdict, out.Reason, out.Text, len(out.Changes), want)
		}
	}
}

// The cost must be linear in the length of the status, and must not depend on the size of the
// object.
func TestLongStatusNeedsLittleMemory(t *testing.T) {
	var more []string
	for i := range 2000 {
		more = append(more, fmt.Sprintf(`{"path":"/spec/containers/c%d/readinessProbe","was":{"tcpSocket":{"port":1}}}`, i))
	}
	pod := injectedPod(t, validStatus(more...))
	pod.(map[string]any)["spec"].(map[string]any)["x"] = make([]any, 100_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out := Uninject(pod)
	runtime.ReadMemStats(&after)
	if out.Verdict != Uninjected || len(out.Warnings) != 2000 {
		t.Errorf("got %s %s with %d warnings, want uninjected with 2000 warnings", out.Verdict, out.Text, len(out.Warnings))
	}
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(100<<20); got > most {
		t.Errorf("got %d MiB allocated, want at most %d", got>>20, most>>20)
	}
}

func TestUninjectTextDescribesResult(t *testing.T) {
	const port = `{"path":"/spec/containers/web/ports/user-port/name","was":"http"}`
	renamed := injectedPod(t, validStatus(port))
	At(renamed, "spec", "containers", "web", "ports", "user-port").(map[string]any)["name"] = "other"
	unknown := injectedPod(t, validStatus())
	delete(At(unknown, "metadata", "annotations").(map[string]any), StatusAnnotation)
	for want, pod := range map[string]any{
		"the changes of the injector are undone":                                                                    injectedPod(t, validStatus(port)),
		"the changes of the injector are partly undone":                                                             renamed,
		"container queue-proxy was not added by the injector, or the annotation queue-proxy.dev/status was removed": unknown,
	} {
		harness.Equal(t, Uninject(pod).Text, want)
	}
}
