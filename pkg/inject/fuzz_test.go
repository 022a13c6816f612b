package inject

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

// FuzzOptions says anything in two annotations of a pod with any time to end. What is
// not refused makes a sidecar that starts with those very settings, in a pod that
// gives its drain time, no less than it had before; and what was said of one option is
// what its variable holds.
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
			return // no API server keeps it
		}
		pod := map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{Prefix + name: value, Prefix + other: otherValue}},
			"spec": map[string]any{
				"terminationGracePeriodSeconds": grace,
				"containers": []any{map[string]any{
					"name": "web", "ports": []any{map[string]any{"containerPort": 8080}},
					"lifecycle": map[string]any{"preStop": map[string]any{"sleep": map[string]any{"seconds": sleep}}},
				}},
			},
		}
		before := parse(t, string(encode(pod)))
		out := Inject(before, nil)
		if out.Verdict != Injected {
			if strings.ContainsAny(out.Text, "\n\r") {
				t.Errorf("got the text %q, want one line", out.Text)
			}
			return
		}
		after, err := Apply(clone(before), out.Changes)
		if err != nil {
			t.Fatal(err)
		}
		var got corev1.PodTemplateSpec
		if err := json.Unmarshal(encode(after), &got); err != nil {
			t.Fatalf("got %v of\n%s", err, encode(after))
		}
		var environ []config.EnvVar
		for _, e := range findSidecar(t, got.Spec).Env {
			environ = append(environ, config.EnvVar{Name: e.Name, Value: expand(t, e.Value)})
		}
		c, err := config.Read(environ)
		if err != nil {
			t.Fatalf("got a sidecar that does not start with %v: %v", environ, err)
		}
		if again := config.Environ(c); !slices.Equal(again, environ) {
			t.Errorf("got the settings %v, which are read as %v", environ, again)
		}
		now := got.Spec.TerminationGracePeriodSeconds
		switch {
		case now == nil:
			if c.DrainDeadline.Seconds() > 30-3 {
				t.Errorf("got a drain of %v in a pod that says nothing of its end", c.DrainDeadline)
			}
		case *now < grace:
			t.Errorf("got %d s to end, want the %d s that there were", *now, grace)
		case float64(*now) < c.DrainDeadline.Seconds()+3:
			t.Errorf("got a drain of %v in a pod with %d s to end", c.DrainDeadline, *now)
		}

		if option, ok := find(name); ok && option.variable != "" && value != "" && name != other && name != drainMinOption && name != deadlineOption {
			said := []config.EnvVar{{Name: "DRAIN_DEADLINE", Value: "10000h"}, {Name: option.variable, Value: value}}
			alone, err := config.Read(said)
			if err != nil {
				t.Fatalf("%s=%q: got it injected, config says %v", name, value, err)
			}
			if got, want := setting(t, c, option.variable), setting(t, alone, option.variable); got != want {
				t.Errorf("%s=%q: got %s=%s, want %s", name, value, option.variable, got, want)
			}
		}

		restored, err := Apply(clone(after), Uninject(after).Changes)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := string(encode(restored)), string(encode(before)); got != want {
			t.Errorf("undone: got\n%s\nwant\n%s", got, want)
		}
	})
}

// expand reads a value as a kubelet does that knows no other variable: $$ is $.
func expand(t *testing.T, value string) string {
	t.Helper()
	if strings.Contains(strings.ReplaceAll(value, "$$", ""), "$") {
		t.Errorf("got the value %q, want each $ twice", value)
	}
	return strings.ReplaceAll(value, "$$", "$")
}

func setting(t *testing.T, c *config.Config, name string) string {
	t.Helper()
	for _, s := range c.Settings() {
		if s.Name == name {
			return s.Value
		}
	}
	t.Fatalf("got no setting %s, want one", name)
	return ""
}

// FuzzUninject follows any status in any object, as changes and as a patch: both are
// made without an error, come to the same, and leave what they were given alone.
func FuzzUninject(f *testing.F) {
	f.Add([]byte(`{"spec":{"containers":[{"name":"queue-proxy"},{"name":"a","ports":[{"containerPort":1}]}]}}`),
		`{"format":1,"undo":[{"path":"/spec/containers/queue-proxy"},{"path":"/spec/containers/a/ports/1/name","was":"x"}]}`)
	f.Add([]byte(`{"spec":{"containers":[null,{"name":"a"}]}}`), `{"format":1,"undo":[{"path":"/spec/containers/#0/x","was":null},{"path":"","was":1},{"path":"/metadata","ifEmpty":true}]}`)
	f.Add([]byte(`{"spec":{}}`), `{"undo":[{"path":"/a~1b~0/containers/c/d","was":{}},{"path":"/spec/initContainers/-","was":[]}]}`)
	f.Add([]byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"x":[{"name":"1"},{"port":1}]}}`), `{"undo":[{"path":"/spec/x/1"},{"path":"/spec/x/1","was":2},{"path":"/spec/x/#0","was":{"name":"n"}}]}`)
	f.Fuzz(func(t *testing.T, text []byte, status string) {
		object, err := Decode(text)
		if err != nil {
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
		meta["annotations"] = map[string]any{Prefix + statusKey: status}
		was := string(encode(object))
		out := Uninject(object)
		if got := string(encode(object)); got != was {
			t.Fatalf("got the object changed to\n%s\nwant\n%s", got, was)
		}
		if out.Verdict != Uninjected {
			return
		}
		after, err := Apply(clone(object), out.Changes)
		if err != nil {
			t.Fatalf("%s of\n%s: got %v", status, was, err)
		}
		patch, err := JSONPatch(clone(object), out.Changes)
		if err != nil {
			t.Fatal(err)
		}
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			t.Fatal(err)
		}
		patched, err := operations.Apply([]byte(was))
		if err != nil {
			t.Fatalf("%s of\n%s: got %v", patch, was, err)
		}
		if got, want := string(encode(parse(t, string(patched)))), string(encode(after)); got != want {
			t.Errorf("%s of\n%s: got\n%s\nwant\n%s", status, was, got, want)
		}
	})
}

// FuzzPointer takes a pointer apart and puts it together.
func FuzzPointer(f *testing.F) {
	f.Add("a/b", "~", "")
	f.Add("~1", "~0/", "\x00")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		want := []string{a, b, c}
		path := pointer(want...)
		if got := Tokens(path); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", path, got, want)
		}
		if strings.Count(path, "/") != 3 {
			t.Errorf("%q: got %d slashes, want 3", path, strings.Count(path, "/"))
		}
	})
}
