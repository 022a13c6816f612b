package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// wantTimeToDrain checks that the grace period of a pod is at least the drain deadline,
// and not shorter than before.
func wantTimeToDrain(t *testing.T, now *int64, before int64, drain time.Duration) {
	t.Helper()
	switch {
	case now == nil:
		if drain.Seconds() > 30-3 {
			t.Errorf("got a drain of %v in a pod without a grace period", drain)
		}
	case *now < before:
		t.Errorf("got a grace period of %d s, want the original %d s", *now, before)
	case float64(*now) < drain.Seconds()+3:
		t.Errorf("got a drain of %v in a pod with a grace period of %d s", drain, *now)
	}
}

// FuzzOptions sets two annotations of a pod with any grace period. If the pod is injected, the
// sidecar must accept its settings, the grace period must be long enough for the drain and not
// shorter than before, and the variables must have the values of the annotations.
func FuzzOptions(f *testing.F) {
	for _, o := range Table() {
		f.Add(o.Name, o.Default, "concurrency", "3", int64(30), int64(0))
	}
	f.Add("settings", "CONNECT_RETRY=9s\nLOG=$(X) $$", "request-timeout", "33", int64(0), int64(5))
	f.Add("drain-deadline", "1s", "drain-min", "99h", int64(1), int64(1<<40))
	f.Add("request-timeout", "0x10", "exclude-paths", "/a, /b*", int64(1<<62), int64(-1))
	f.Add("cpu-limit", "1e3", "cpu-request", "1.5Ki", int64(-7), int64(0))
	f.Add("cpu-limit", "1e33133111", "cpu-request", "1858.", int64(24), int64(18))
	f.Fuzz(func(t *testing.T, name, value, other, otherValue string, grace, sleep int64) {
		if !utf8.ValidString(strings.Join([]string{name, value, other, otherValue}, " ")) {
			return // an API server would reject annotations with this key or size
		}
		before := web(t, fmt.Sprintf(`,"ports":[{"containerPort":8080}],"lifecycle":{"preStop":{"sleep":{"seconds":%d}}}`, sleep)).(map[string]any)
		before["metadata"] = map[string]any{"annotations": map[string]any{Prefix + name: value, Prefix + other: otherValue}}
		before["spec"].(map[string]any)["terminationGracePeriodSeconds"] = json.Number(strconv.FormatInt(grace, 10))
		out := Inject(before, nil)
		harness.Equal(t, strings.ContainsAny(out.Text, "\n\r"), false, "several lines", out.Text)
		if out.Verdict != Injected {
			return
		}
		after := changed(t, before, out.Changes)
		got := specOf(t, after)
		environ := environOf(t, findSidecar(t, got))
		c, err := config.Read(environ)
		if err != nil {
			t.Fatalf("invalid settings %v: %v", environ, err)
		}
		if again := config.Environ(c); !slices.Equal(again, environ) {
			t.Errorf("got settings %v, which are parsed as %v", environ, again)
		}
		wantTimeToDrain(t, got.TerminationGracePeriodSeconds, grace, c.DrainDeadline.V)
		if option, ok := find(name); ok && option.variable != "" && value != "" && name != other && name != drainMinOption && name != deadlineOption {
			vars := []config.EnvVar{{Name: "DRAIN_DEADLINE", Value: "10000h"}, {Name: option.variable, Value: value}}
			alone, err := config.Read(vars)
			if err != nil {
				t.Fatalf("%s=%q: got injected, want the error %v", name, value, err)
			}
			harness.Equal(t, setting(t, c, option.variable), setting(t, alone, option.variable), name, "=", value, option.variable, "=")
		}

		harness.Equal(t, string(encode(changed(t, after, Uninject(after).Changes))), string(encode(before)), "undone")
	})
}

// environOf returns the environment of a container as a kubelet sets it. The kubelet replaces $$
// with $.
func environOf(t *testing.T, c corev1.Container) []config.EnvVar {
	t.Helper()
	var all []config.EnvVar
	for _, v := range c.Env {
		if strings.Contains(strings.ReplaceAll(v.Value, "$$", ""), "$") {
			t.Errorf("%s: got value %q, want $$ instead of $", v.Name, v.Value)
		}
		all = append(all, config.EnvVar{Name: v.Name, Value: strings.ReplaceAll(v.Value, "$$", "$")})
	}
	return all
}

func setting(t *testing.T, c *config.Config, name string) string {
	t.Helper()
	for _, s := range c.Settings() {
		if s.Name == name {
			return s.Value
		}
	}
	t.Fatalf("no setting %s", name)
	return ""
}

// FuzzUninject reverts any status in any object. The changes and the JSON patch must be valid and
// have the same result, the input must not be modified, and all fields that an injection does not
// change must remain unchanged.
func FuzzUninject(f *testing.F) {
	const gone = `{"path":"/spec/containers/queue-proxy"},{"path":"/metadata/annotations/queue-proxy.dev~1status"}`
	pod := []byte(`{"spec":{"containers":[{"name":"queue-proxy","ports":[{"hostPort":80}]},{"name":"a","image":"a","ports":[{"containerPort":1},{"name":"user-port","containerPort":2}],"lifecycle":{}}]}}`)
	for _, undo := range []string{
		gone, gone + `,{"path":"/spec/containers/a/ports/user-port/name","was":"x"},{"path":"/spec/containers/a/lifecycle","ifEmpty":true}`,
		gone + `,{"path":"/spec/containers/a/readinessProbe","was":{"tcpSocket":{"port":1}}},{"path":"/spec/containers/b/readinessProbe","was":{"grpc":{"port":1}}}`,
		gone + `,{"path":"/spec/containers/a/lifecycle/preStop","was":{"exec":{"command":["sh","-c","sleep 5"]}}},{"path":"/spec/terminationGracePeriodSeconds","was":7}`,
		gone + `,{"path":"/spec/containers/a/ports/1/hostPort","was":80},{"path":"/metadata/annotations","ifEmpty":true},{"path":"/spec/initContainers","was":null,"ifEmpty":true}`,
		gone + `,{"path":"/spec/containers/a/image","was":"evil"}`, gone + `,{"path":"/spec/containers/#0/x","was":null},{"path":"","was":1}`,
	} {
		f.Add(pod, `{"format":1,"undo":[`+undo+`]}`)
	}
	f.Add([]byte(`{"spec":{"containers":[null,{"name":"a"}]}}`), `{"format":1,"undo":[`+gone+`,{"path":"/spec/containers/a/lifecycle/preStop","was":{"sleep":{"seconds":1}}}]}`)
	f.Add([]byte(`{"spec":{}}`), `{"undo":[{"path":"/a~1b~0/containers/c/d","was":{}},{"path":"/spec/initContainers/-","was":[]}]}`)
	f.Fuzz(func(t *testing.T, text []byte, status string) {
		object, err := Decode(text)
		if err != nil || !utf8.ValidString(status) { // JSON strings must be valid UTF-8
			return
		}
		root, ok := object.(map[string]any)
		if !ok {
			return
		}
		meta, ok := root["metadata"].(map[string]any)
		if !ok {
			meta = map[string]any{}
			root["metadata"] = meta
		}
		meta["annotations"] = map[string]any{StatusAnnotation: status}
		was := string(encode(object))
		out := Uninject(object)
		if got := string(encode(object)); got != was {
			t.Fatalf("got the object modified to\n%s\nwant\n%s", got, was)
		}
		if out.Verdict != Uninjected {
			return
		}
		after := changed(t, object, out.Changes)
		harness.Equal(t, string(encode(patched(t, object, out.Changes))), string(encode(after)), status, "of", was)
		if got, want := string(encode(untouched(after))), string(encode(untouched(object))); got != want {
			t.Errorf("%s: got other fields modified:\n%s\nwant\n%s", status, got, want)
		}
	})
}

// untouched returns a copy of a pod without the sidecar and without the fields that an injection
// changes.
func untouched(pod any) any {
	pod = runtime.DeepCopyJSONValue(pod)
	annotations, _ := At(pod, "metadata", "annotations").(map[string]any)
	for _, key := range []string{StatusAnnotation, "prometheus.io/scrape", "prometheus.io/port", "prometheus.io/path"} {
		delete(annotations, key)
	}
	dropEmpty(At(pod, "metadata"), "annotations")
	dropEmpty(pod, "metadata")
	spec, _ := At(pod, "spec").(map[string]any)
	delete(spec, "terminationGracePeriodSeconds")
	for _, key := range []string{"containers", "initContainers"} {
		list, isList := spec[key].([]any)
		if !isList {
			continue
		}
		if i := Find(list, SidecarName); i >= 0 && Text(list[i], "name") == SidecarName {
			list = slices.Delete(list, i, i+1)
		}
		spec[key] = list
		if key == "containers" {
			for _, item := range list {
				strip(item)
			}
		}
	}
	dropEmpty(spec, "initContainers")
	return pod
}

// strip removes from a container the fields that an injection changes.
func strip(container any) {
	c, _ := container.(map[string]any)
	delete(c, "readinessProbe")
	for _, field := range []string{"livenessProbe", "startupProbe"} {
		if probe, ok := c[field].(map[string]any); ok && probe["exec"] == nil {
			delete(c, field)
		}
	}
	lifecycle, _ := c["lifecycle"].(map[string]any)
	delete(lifecycle, "preStop")
	delete(lifecycle, "postStart")
	dropEmpty(c, "lifecycle")
	ports, _ := c["ports"].([]any)
	for _, p := range ports {
		port, _ := p.(map[string]any)
		for _, field := range []string{"name", "hostPort", "hostIP"} {
			delete(port, field)
		}
	}
}

func dropEmpty(in any, key string) {
	if m, _ := in.(map[string]any); isEmpty(m[key]) {
		delete(m, key)
	}
}

// FuzzPointer joins tokens to a JSON pointer and splits the pointer again.
func FuzzPointer(f *testing.F) {
	f.Add("a/b", "~", "")
	f.Add("~1", "~0/", "\x00")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		want := []string{a, b, c}
		path := pointer(want...)
		harness.Equal(t, Tokens(path), want, path)
		harness.Equal(t, strings.Count(path, "/"), 3, path, "slashes")
	})
}
