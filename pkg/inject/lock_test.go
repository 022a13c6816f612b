package inject

import (
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// annotated returns a pod with an annotation.
func annotated(t *testing.T, key, value string) any {
	t.Helper()
	return parse(t, `{"metadata":{"annotations":{`+string(encode(key))+`:`+string(encode(value))+`}},"spec":{"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080}]}]}}`)
}

func TestAnnotationOfLockedOptionIsRefused(t *testing.T) {
	values := map[string]string{
		containerOption: "web", portOption: "http", modeOption: "native", imageOption: "other:1", pullOption: "Never", "full-duplex": "Enabled", "log-level": "debug",
		"exclude-paths": "/a", "exclude-user-agents": "a", settingsOption: "CONNECT_RETRY=1s", metricsOption: "false", percentOption: "10",
		deadlineOption: "60s", "drain-streams": "wait", sureOption: "any", drainMinOption: "5s", "drain-quiet-period": "5s",
	}
	for _, o := range Table() {
		if o.Name == injectOption || o.operator {
			continue
		}
		value := values[o.Name]
		switch {
		case value != "":
		case strings.HasSuffix(o.Name, "-port"):
			value = "7777"
		default:
			value = "60"
		}
		for _, key := range o.Annotations() {
			pod := annotated(t, key, value)
			harness.Equal(t, verdictOf(Inject(pod, nil)), "injected", key, value, "without a lock")
			out := Inject(pod, Options{lockOption: o.Name})
			if verdictOf(out) != "refused locked" || !strings.Contains(out.Text, key) || len(out.Changes) > 0 {
				t.Errorf("%s: got %s (%s) %s, want refused (locked)", key, out.Verdict, out.Reason, out.Text)
			}
			harness.Equal(t, verdictOf(Inject(annotated(t, key, ""), Options{lockOption: o.Name})), "injected", key, "empty annotation")
		}
	}
}

func TestLockGroupContainsAllOptions(t *testing.T) {
	for text, want := range map[string][]string{
		"":                      nil,
		"image, settings":       {"image", "settings"},
		"ports":                 {"serving-port", "tls-port", "admin-port", "autoscaler-port", "metrics-port", "status-port"},
		"resources":             {"cpu-request", "cpu-limit", "memory-request", "memory-limit", "ephemeral-storage-request", "ephemeral-storage-limit", "resource-percentage"},
		",ports,,tls-port,mode": {"mode", "serving-port", "tls-port", "admin-port", "autoscaler-port", "metrics-port", "status-port"},
	} {
		o := Options{}
		if err := o.Set(lockOption, text); err != nil || !slices.Equal(o.locked(), want) {
			t.Errorf("%q: got %v, %v, want %v", text, o.locked(), err, want)
		}
	}
	for text, want := range map[string]string{"imgae": `did you mean "image"?`, "port,lock": "the option lock cannot be locked", "inject": "cannot be locked", "resource": `did you mean "resources"?`} {
		if err := (Options{}).Set(lockOption, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestLockedOptionKeepsItsValue(t *testing.T) {
	opts := Options{imageOption: "ours:1", lockOption: "image"}
	pod := annotated(t, "a", "b")
	out := Inject(pod, opts)
	harness.Equal(t, Text(sidecarOf(changed(t, pod, out.Changes)), "image"), "ours:1", out.Text)
	if !slices.ContainsFunc(out.Notes, func(n string) bool { return strings.Contains(n, "locked options image") }) {
		t.Errorf("got notes %q, want a note about the locked options", out.Notes)
	}
	harness.Equal(t, verdictOf(Inject(annotated(t, Prefix+lockOption, ""), opts)), "refused bad-option", "annotation for the option lock")
}

// A policy reads only the annotations for options that are not locked. It ignores pods
// with annotations for other options.
func TestPolicyIgnoresLockedOptions(t *testing.T) {
	text, err := Policy(Options{lockOption: "concurrency,queue-depth,request-timeout"})
	harness.NoError(t, err)
	known := func(text string) string {
		_, rest, _ := strings.Cut(text, "|| key in [")
		list, _, _ := strings.Cut(rest, "]")
		return list
	}
	harness.Equal(t, known(text), "'queue-proxy.dev/container', 'queue-proxy.dev/inject', 'queue-proxy.dev/port'", "policy for pods with")
	free, err := Policy(nil)
	if err != nil || !strings.Contains(known(free), "'queue-proxy.dev/concurrency'") {
		t.Errorf("got %s, %v without a lock, want it to contain concurrency", known(free), err)
	}
}
