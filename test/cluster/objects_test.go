//go:build cluster

package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// An object is a Kubernetes object of any kind.
type object map[string]any

// get reads an object.
func (a *api) get(path string, into any) error {
	body, err := a.do(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// list reads the objects of a collection.
func (a *api) list(path string) ([]object, error) {
	var all struct{ Items []object }
	err := a.get(path, &all)
	return all.Items, err
}

// at returns the value at a path of keys, or nil if there is none.
func (o object) at(path ...string) any {
	var v any = map[string]any(o)
	for _, key := range path {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

func (o object) text(path ...string) string {
	s, _ := o.at(path...).(string)
	return s
}

func (o object) number(path ...string) int {
	f, _ := o.at(path...).(float64)
	return int(f)
}

// each returns the objects of a list.
func (o object) each(path ...string) []object {
	list, _ := o.at(path...).([]any)
	var all []object
	for _, v := range list {
		if m, ok := v.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

func (o object) name() string { return o.text("metadata", "name") }

// condition reports whether a condition of the status is true.
func (o object) condition(kind string) bool {
	for _, c := range o.each("status", "conditions") {
		if c.text("type") == kind {
			return c.text("status") == "True"
		}
	}
	return false
}

// ending reports whether an object is being deleted but still exists.
func (o object) ending() bool { return o.text("metadata", "deletionTimestamp") != "" }

// containers returns the states of a pod's containers, including init containers.
func (o object) containers() []object {
	return append(o.each("status", "initContainerStatuses"), o.each("status", "containerStatuses")...)
}

// container returns the state of a container, or nil if there is none.
func (o object) container(name string) object {
	for _, c := range o.containers() {
		if c.text("name") == name {
			return c
		}
	}
	return nil
}

// spec returns a container of the pod spec, including init containers.
func (o object) spec(name string) object {
	for _, c := range append(o.each("spec", "initContainers"), o.each("spec", "containers")...) {
		if c.text("name") == name {
			return c
		}
	}
	return nil
}

// eventually calls ask until ask returns nil. The test fails if this takes longer than patience.
func eventually(t *testing.T, what string, ask func() error) {
	t.Helper()
	within(t, patience, what, ask)
}

func within(t *testing.T, bound time.Duration, what string, ask func() error) {
	t.Helper()
	for end := time.Now().Add(bound); ; time.Sleep(50 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: timeout after %v: %v", what, bound, err)
		}
	}
}

// kubectl runs kubectl with administrator rights. The test fails if kubectl fails.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := run(nil, append([]string{"kubectl"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply applies a manifest.
func apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := run([]byte(manifest), "kubectl", "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
}

// A space is the namespace of a test.
type space struct {
	t    *testing.T
	name string
	pod  *podLogs
}

// newSpace creates a namespace with labels ("key=value"). At the end of the test, the namespace
// is deleted with all its objects.
func newSpace(t *testing.T, name string, labels ...string) *space {
	t.Helper()
	text := ""
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		text += fmt.Sprintf("    %s: %q\n", key, value)
	}
	apply(t, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n  labels:\n    test: cluster\n%s", name, text))
	s := &space{t: t, name: name, pod: followLogs(name)}
	t.Cleanup(func() {
		if t.Failed() {
			s.explain()
		}
		s.pod.stop()
		// There is no need to wait for the deletion, because each test has its own namespace.
		_, _ = run(nil, "kubectl", "delete", "namespace", name, "--wait=false")
		_, _ = run(nil, "kubectl", "-n", name, "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")
	})
	eventually(t, "namespace "+name+" has a service account", func() error {
		return it.api.ok("/api/v1/namespaces/" + name + "/serviceaccounts/default")
	})
	return s
}

// explain logs the state of the namespace after a failed test.
func (s *space) explain() {
	for _, args := range [][]string{
		{"get", "pods", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp", "-o", "custom-columns=REASON:.reason,OF:.involvedObject.name,SAYS:.message"},
	} {
		out, err := run(nil, append([]string{"kubectl", "-n", s.name}, args...)...)
		if err != nil {
			out = err.Error()
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		s.t.Logf("kubectl %s:\n%s", strings.Join(args, " "), strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
	// Omit the lines of successful requests.
	for _, l := range s.pod.all() {
		var lines []string
		for _, line := range l.lines {
			if !strings.HasPrefix(line, "seen ") && !strings.Contains(line, `"reason":"ok"`) {
				lines = append(lines, fmt.Sprintf("%.300s", line))
			}
		}
		s.t.Logf("%s/%s, last of %d lines:\n%s", l.pod, l.container, len(l.lines), strings.Join(lines[max(0, len(lines)-6):], "\n"))
	}
}

// apply applies a manifest in this namespace.
func (s *space) apply(manifest string) {
	s.t.Helper()
	if _, err := run([]byte(manifest), "kubectl", "-n", s.name, "apply", "-f", "-"); err != nil {
		s.t.Fatalf("%v\n%s", err, manifest)
	}
}

func (s *space) kubectl(args ...string) string {
	s.t.Helper()
	return kubectl(s.t, append([]string{"-n", s.name}, args...)...)
}

// pods returns the pods with a label ("key=value") that are not terminating, or all such pods
// if label is empty.
func (s *space) pods(label string) ([]object, error) {
	all, err := it.api.list("/api/v1/namespaces/" + s.name + "/pods?labelSelector=" + strings.ReplaceAll(label, "=", "%3D"))
	var stay []object
	for _, p := range all {
		if !p.ending() {
			stay = append(stay, p)
		}
	}
	return stay, err
}

// ready waits until exactly n pods with a label are ready, and returns these pods.
func (s *space) ready(label string, n int) []object {
	s.t.Helper()
	var pods []object
	eventually(s.t, fmt.Sprintf("%d pods of %s in %s are ready", n, label, s.name), func() error {
		var err error
		if pods, err = s.pods(label); err != nil {
			return err
		}
		if len(pods) != n {
			return fmt.Errorf("got %d pods", len(pods))
		}
		for _, p := range pods {
			if !p.condition("Ready") {
				return fmt.Errorf("%s: phase %s, not ready", p.name(), p.text("status", "phase"))
			}
		}
		return nil
	})
	return pods
}

// one reads an object in this namespace. resource is "pods", "apps/v1/deployments" or similar.
func (s *space) one(resource, name string) (object, error) {
	path := "/api/v1/namespaces/" + s.name + "/" + resource
	if i := strings.LastIndex(resource, "/"); i >= 0 {
		path = "/apis/" + resource[:i] + "/namespaces/" + s.name + resource[i:]
	}
	var o object
	err := it.api.get(path+"/"+name, &o)
	return o, err
}
