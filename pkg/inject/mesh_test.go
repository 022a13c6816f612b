package inject

import (
	"encoding/json"
	"fmt"
	"testing"
)

func TestAContainerOfAMeshIsNoApp(t *testing.T) {
	const proxy = `{"name":"linkerd-proxy","image":"proxy","ports":[{"name":"linkerd-proxy","containerPort":4143},{"name":"linkerd-admin","containerPort":4191}]}`
	const web = `{"name":"web","image":"web","ports":[{"containerPort":8080}]}`
	for _, c := range []struct {
		fact, containers string
		said             Options
		verdict          Verdict
		reason, app      string
	}{
		{"before the app", proxy + "," + web, nil, Injected, "", "web"},
		{"behind the app", web + "," + proxy, nil, Injected, "", "web"},
		{"alone", proxy, nil, Skipped, NoPort, ""},
		{"named", proxy + "," + web, Options{"container": "linkerd-proxy", "port": "4143"}, Injected, "", "linkerd-proxy"},
	} {
		pod, err := Decode(json.RawMessage(fmt.Sprintf(`{"spec":{"containers":[%s]}}`, c.containers)))
		if err != nil {
			t.Fatal(err)
		}
		if out := Inject(pod, c.said); out.Verdict != c.verdict || out.Reason != c.reason || out.Container != c.app {
			t.Errorf("%s: got %s %s of %q (%s), want %s %s of %q", c.fact, out.Verdict, out.Reason, out.Container, out.Text, c.verdict, c.reason, c.app)
		}
	}
}
