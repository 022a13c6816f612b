package inject

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestTemplateFindsPodTemplates(t *testing.T) {
	const template = `"spec":{"template":{"spec":{"containers":[{"name":"a"}]}}}`
	for _, c := range []struct {
		object, path string // path is empty if there is no pod template
		text         string // part of the expected text if there is no pod template
	}{
		{`"apiVersion":"extensions/v1beta1","kind":"Deployment",` + template, "spec/template", ""},
		{`"apiVersion":"apps/v1beta2","kind":"Deployment",` + template, "spec/template", ""},
		{`"apiVersion":"argoproj.io/v1alpha1","kind":"Rollout",` + template, "spec/template", ""},
		{`"apiVersion":"apps.kruise.io/v1alpha1","kind":"CloneSet",` + template, "spec/template", ""},
		{`"apiVersion":"example.com/v1","kind":"Workload",` + template, "spec/template", ""},
		{`"apiVersion":"argoproj.io/v1alpha1","kind":"Rollout","spec":{"workloadRef":{"kind":"Deployment","name":"web"}}`, "", "created by Deployment web"},
		{`"apiVersion":"serving.knative.dev/v1","kind":"Configuration",` + template, "", "Knative adds"},
		{`"apiVersion":"example.com/v1","kind":"Workload","spec":{}`, "", "if this object creates pods"},
		{`"apiVersion":"v1","kind":"ConfigMap"`, "", "ConfigMap does not create pods"},
		{`"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role"`, "", "Role does not create pods"},
	} {
		object := parse(t, "{"+c.object+"}")
		path, ok := Template(object)
		if got := strings.Join(path, "/"); got != c.path || ok != (c.path != "") {
			t.Errorf("%s: got %q, want %q", c.object, got, c.path)
		}
		if leaveText := Leave(object).Text; !ok && !strings.Contains(leaveText, c.text) {
			t.Errorf("%s: got %q, want %q", c.object, leaveText, c.text)
		}
	}
}

func TestWindowsPodsAreSkipped(t *testing.T) {
	term := func(key, operator, values string) string {
		return fmt.Sprintf(`{"matchExpressions":[{"key":%q,"operator":%q,"values":[%s]}]}`, key, operator, values)
	}
	affinity := func(terms string) string {
		return `"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` + terms + `]}}}`
	}
	windows := term("kubernetes.io/os", "In", `"windows"`)
	for _, c := range []struct {
		spec string
		want bool
	}{
		{`"os":{"name":"windows"}`, true},
		{`"nodeSelector":{"kubernetes.io/os":"windows"}`, true},
		{`"nodeSelector":{"beta.kubernetes.io/os":"windows"}`, true},
		{affinity(windows), true},
		{affinity(windows + "," + term("beta.kubernetes.io/os", "In", `"windows"`)), true},
		{affinity(windows + "," + term("zone", "In", `"a"`)), false}, // a Linux node in the zone satisfies the second term
		{affinity(term("kubernetes.io/os", "In", `"windows","linux"`)), false},
		{affinity(term("kubernetes.io/os", "NotIn", `"windows"`)), false},
		{affinity(""), false},
		{`"affinity":{"nodeAffinity":{}}`, false},
	} {
		out := Inject(parse(t, `{"metadata":{},"spec":{`+c.spec+`,"containers":[{"name":"a","ports":[{"containerPort":8080}]}]}}`), nil)
		if got := out.Reason == Windows; got != c.want || !got && out.Verdict != Injected {
			t.Errorf("%s: got %s (%s) %s, want windows %v", c.spec, out.Verdict, out.Reason, out.Text, c.want)
		}
	}
}

// WatchPolicy returns no warning if the policy permits connections to the sidecar port.
func TestNetworkPolicyWithoutSidecarPortIsReported(t *testing.T) {
	pods := []Pods{{Owner: "Pod web", Labels: map[string]string{"app": "web"}, Outcome: Outcome{Verdict: Injected, AppPort: 8080, ServingPort: 8012}}}
	for ingress, want := range map[string]int{
		`{"ports":[{"port":8080}]}`:                           1,
		`{"ports":[{"port":8000,"endPort":8100}]}`:            0,
		`{"ports":[{"port":8080,"endPort":8100}]}`:            1,
		`{"ports":[{"port":8080},{"protocol":"TCP"}]}`:        0,
		`{"ports":[{"port":8080},{"protocol":"UDP"}]}`:        1,
		`{"ports":[{"port":8080}]},{"ports":[{"port":8012}]}`: 0,
		`{"ports":[{"port":8080}]},{}`:                        0,
		`{"from":[{"podSelector":{}}],"ports":[{"port":8080}]},{"from":[{"podSelector":{}}],"ports":[{"port":8012}]}`:       0,
		`{"from":[{"podSelector":{}}],"ports":[{"port":8080}]},{"from":[{"namespaceSelector":{}}],"ports":[{"port":8012}]}`: 1,
		`{"ports":[{"port":"http"}]}`: 0,
	} {
		out := WatchPolicy(parse(t, `{"spec":{"podSelector":{},"ingress":[`+ingress+`]}}`), pods)
		harness.Equal(t, len(out.Warnings), want, ingress, out.Warnings)
	}
}
