package inject

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestInvalidFieldErrorContainsPath(t *testing.T) {
	const container = `{"spec":{"containers":[{"name":"web"},{"name":"app",%s}]}}`
	for _, c := range []struct{ template, want string }{
		{`"ports":"x"`, `spec.containers[1].ports: must be a list, but is the string "x"`},
		{`"ports":[{"containerPort":"80"}]`, `spec.containers[1].ports[0].containerPort: must be an integer, but is the string "80"; remove the quotes`},
		{`"ports":[{"containerPort":80000000000000}]`, `spec.containers[1].ports[0].containerPort: must be an integer, but is the number 80000000000000; the number is out of range`},
		{`"ports":[{"containerPort":80.5}]`, `spec.containers[1].ports[0].containerPort: must be an integer, but is the number 80.5`},
		{`"resources":{"limits":{"cpu":"abc"}}`, `spec.containers[1].resources.limits[cpu]: must be a quantity such as 25m or 32Mi, but is the string "abc"`},
		{`"readinessProbe":{"httpGet":{"port":true}}`, `spec.containers[1].readinessProbe.httpGet.port: must be a string or an integer, but is the boolean true`},
		{`"image":1`, `spec.containers[1].image: must be a string, but is the number 1; put the value in quotes`},
		{`"env":{"A":"b"}`, `spec.containers[1].env: must be a list, but is a map`},
		{`"env":"x"`, `spec.containers[1].env: must be a list, but is the string "x"`},
		{`"env":[{"name":"A"},"B=c"]`, `spec.containers[1].env[1]: must be a map, but is the string "B=c"`},
		{`"env":[{"name":"A","value":"x"},{"name":"B","value":8080}]`, `spec.containers[1].env[1].value: must be a string, but is the number 8080; put the value in quotes`},
		{`"env":[{"name":true}]`, `spec.containers[1].env[0].name: must be a string, but is the boolean true; put the value in quotes`},
		{`"env":[{"name":"A","value":{}}]`, `spec.containers[1].env[0].value: must be a string, but is a map`},
		{`{"spec":{"hostNetwork":"true"}}`, `spec.hostNetwork: must be true or false, but is the string "true"; remove the quotes`},
		{`"args":"x"`, `spec.containers[1].args: must be a list, but is the string "x"`},
		{`"command":["x",8080]`, `spec.containers[1].command[1]: must be a string, but is the number 8080; put the value in quotes`},
		{`{"spec":"x"}`, `spec: must be a map, but is the string "x"`},
		{`{"spec":{"containers":{}}}`, `spec.containers: must be a list, but is a map`},
		{`{"metadata":{"annotations":{"a/b":[1]}},"spec":{}}`, `metadata.annotations[a/b]: must be a string, but is a list`},
	} {
		text := c.template
		if !strings.HasPrefix(text, "{") {
			text = strings.Replace(container, "%s", text, 1)
		}
		value, err := Decode([]byte(text))
		harness.NoError(t, err)
		out := Inject(value, nil)
		harness.Equal(t, out.Text, "invalid pod: "+c.want)
		harness.Equal(t, Uninject(value).Text, out.Text, "uninject")
	}
}

func TestInvalidServiceErrorHasPath(t *testing.T) {
	service, err := Decode([]byte(`{"spec":{"ports":[{"port":"x"}]}}`))
	harness.NoError(t, err)
	out, _ := FollowService(service, nil, Workloads)
	harness.Equal(t, out.Text, `invalid Service: spec.ports[0].port: must be an integer, but is the string "x"`)
}

func TestRefusalNamesInvalidValue(t *testing.T) {
	for text, want := range map[string]string{
		`{"spec":{"restartPolicy":"sometimes","containers":[{"name":"web"}]}}`:                                 `spec.restartPolicy: "sometimes": must be one of Always, OnFailure, Never`,
		`{"metadata":{"annotations":{"queue-proxy.dev/lock":"image"}},"spec":{"containers":[{"name":"web"}]}}`: "annotation queue-proxy.dev/lock: only the injector can set the option lock; remove the annotation",
	} {
		value, err := Decode([]byte(text))
		harness.NoError(t, err)
		out := Inject(value, nil)
		harness.Equal(t, out.Verdict, Refused, text)
		harness.Equal(t, out.Text, want)
	}
}
