//go:build cluster

package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// rightsOfTop grants a user the minimum permissions for `kubectl queue-proxy top`.
const rightsOfTop = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: top}
rules:
- {apiGroups: [""], resources: [pods], verbs: [list]}
- {apiGroups: [""], resources: [pods/proxy], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: top}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: top}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: onlooker}]
`

// plugin runs the kubectl plugin in the namespace.
func (s *space) plugin(args ...string) (code int, out string) {
	s.t.Helper()
	out, code, err := runFor(patience, nil, append([]string{"../../bin/kubectl-queue_proxy"}, append(args, "-n", s.name)...)...)
	if err != nil {
		s.t.Log(err)
	}
	return code, out
}

// shown is a row in the JSON output of the plugin.
type shown struct {
	Pod, State, Note, LastFailure string
	Limit                         *int
	RequestsPerSecond, P99Seconds *float64
}

func (s *space) top() map[string]shown {
	s.t.Helper()
	code, out := s.plugin("top", "--once", "-o", "json", "--as=onlooker")
	var report struct{ Sidecars []shown }
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != 0 {
		s.t.Fatalf("top: got exit code %d, %v and %s, want JSON", code, err, out)
	}
	rows := map[string]shown{}
	for _, row := range report.Sidecars {
		rows[row.Pod] = row
	}
	return rows
}

func TestPluginTopWithMinimumPermissions(t *testing.T) {
	t.Parallel()
	webhook(t)
	s := newSpace(t, "plugin", restricted, wanted)
	s.apply(rightsOfTop)
	for _, mode := range modes {
		s.apply(app{name: "web-" + mode, annotations: logged("mode="+mode, "concurrency=3", "metrics-port=9191")}.pod())
	}
	s.apply(strings.Replace(app{name: "plain"}.pod(), "labels: {", `labels: {queue-proxy.dev/inject: "false", `, 1))
	for _, mode := range modes {
		s.ready("app=web-"+mode, 1)
	}
	first := s.ready("app=web-"+modes[0], 1)[0]
	address := "http://" + first.text("status", "podIP")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				ask("GET", address+":8012/slow?ms=20")
			}
		}
	}()
	rows := s.top()
	close(stop)
	<-stopped
	for _, mode := range modes {
		row := rows["web-"+mode]
		if row.State != "ready" || row.Limit == nil || *row.Limit != 3 || row.RequestsPerSecond == nil {
			t.Errorf("web-%s: got %+v, want a ready sidecar with limit 3", mode, row)
		}
	}
	if row := rows["web-"+modes[0]]; row.P99Seconds == nil || *row.P99Seconds < 0.01 || *row.RequestsPerSecond <= 0 {
		t.Errorf("pod with traffic: got %+v, want response times of 20 ms", row)
	}
	if len(rows) != len(modes) {
		t.Errorf("got rows %+v, want %d rows, one for each pod with a sidecar", rows, len(modes))
	}
	if code, out := s.plugin("why", first.name()); code != 0 || !strings.HasPrefix(out, "ready for ") {
		t.Errorf("why of a ready pod: got exit code %d and %q, want 0", code, out)
	}
	ask("POST", address+":8080/ready?status=503")
	eventually(t, "top reports the pod as not ready", func() error {
		if row := s.top()["web-"+modes[0]]; row.State != "not-ready" || !strings.HasPrefix(row.Note, "not ready: ") {
			return fmt.Errorf("%+v", row)
		}
		return nil
	})
	if code, out := s.plugin("why", first.name()); code != 1 || !strings.Contains(out, "not ready") {
		t.Errorf("why of a pod that is not ready: got exit code %d and %q, want 1", code, out)
	}
}
