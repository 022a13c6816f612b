package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

const web = `# a comment
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {team: shop}}
spec:
  template:
    metadata: {labels: {app: web, team: shop}, annotations: {prometheus.io/port: "9090", checksum: abc}}
    spec:
      containers:
      - name: web
        image: registry.example/web:1
        env: [{name: PORT, value: "8080"}, {name: DB_PASSWORD, value: hunter2}, {name: COLOR, value: red}]
        ports: [{name: http, containerPort: 8080}]
        resources: {limits: {cpu: 1}}
---
{{ template }}: no YAML
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
`

const patch = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": {"spec": {"containers": [{"name": "web"}]}}}}`

// clone commits files to a new repository below a directory and returns a list that contains it.
func clone(t *testing.T, dir string, files map[string]string) (list string) {
	t.Helper()
	repository := filepath.Join(dir, "shop", "web")
	for name, text := range files {
		file := filepath.Join(repository, name)
		harness.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		harness.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	var commit []byte
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=t", "-c", "user.email=t@example", "commit", "-q", "-m", "t"}, {"rev-parse", "HEAD"}} {
		out, err := git(repository, args...)
		harness.NoError(t, err)
		commit = out
	}
	list = filepath.Join(dir, "list")
	harness.NoError(t, os.WriteFile(list, []byte("# a comment\ngithub.com/shop/web "+string(commit)), 0o644))
	return list
}

// extract returns the output of the command for a list.
func extract(t *testing.T, list, dir string, s selection) []facts {
	t.Helper()
	var out bytes.Buffer
	harness.NoError(t, run(&out, list, dir, s))
	var all []facts
	for line := range bytes.Lines(out.Bytes()) {
		var f facts
		harness.NoError(t, json.Unmarshal(line, &f))
		all = append(all, f)
	}
	return all
}

func TestFactsContainPortsAndServices(t *testing.T) {
	dir := t.TempDir()
	list := clone(t, dir, map[string]string{"web.yaml": web, "overlay/patch.json": patch, "test/web.yaml": web})
	all := extract(t, list, dir, selection{seed: "s", max: 5})
	if len(all) != 1 {
		t.Fatalf("got %d workloads, want 1: %+v", len(all), all)
	}
	f := all[0]
	if len(f.Services) != 1 || f.Services[0].Spec.Ports[0].TargetPort != "http" {
		t.Errorf("got Services %+v, want web with targetPort http", f.Services)
	}
	text, err := json.Marshal(f.Template)
	harness.NoError(t, err)
	want := `{"metadata":{"labels":{"app":"web"},"annotations":{"prometheus.io/port":"9090"}},"spec":{"containers":[{"name":"web",` +
		`"image":"registry.example/web:1","env":[{"name":"PORT","value":"8080"}],"ports":[{"name":"http","containerPort":8080}]}]}}`
	if string(text) != want {
		t.Errorf("got template\n%s, want\n%s", text, want)
	}
}

func TestSelectionIsRepeatable(t *testing.T) {
	dir, files := t.TempDir(), map[string]string{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		files[name+"/web.yaml"] = strings.ReplaceAll(web, "registry.example/web", "registry.example/"+name)
		files[name+"/copy.yaml"] = files[name+"/web.yaml"]
	}
	list := clone(t, dir, files)
	paths := func(s selection) (all []string) {
		for _, f := range extract(t, list, dir, s) {
			all = append(all, f.Path)
		}
		return all
	}
	first := paths(selection{seed: "s", max: 3})
	if again := paths(selection{seed: "s", max: 3}); len(first) != 3 || strings.Join(first, " ") != strings.Join(again, " ") {
		t.Errorf("got %v and %v, want the same 3 workloads", first, again)
	}
	if all := paths(selection{seed: "s", max: 10}); len(all) != 5 {
		t.Errorf("got %v, want one path for each image", all)
	}
}

func TestMissingCloneErrorContainsCommand(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	harness.NoError(t, os.WriteFile(list, []byte("github.com/shop/none 0123\n"), 0o644))
	err := run(&bytes.Buffer{}, list, t.TempDir(), selection{})
	if err == nil || !strings.Contains(err.Error(), "git clone --no-checkout https://github.com/shop/none") {
		t.Errorf("got error %v, want the command that creates the clone", err)
	}
}
