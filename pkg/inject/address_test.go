package inject

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestPodAddressInCommandLineIsReported(t *testing.T) {
	const podIP = `{"name":"POD_IP","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}}`
	const hint = "$(POD_IP), the address of the pod, but the application must also listen on the loopback address"
	for name, c := range map[string]struct{ container, want string }{
		"args":                {`"args":["--listen=$(POD_IP):8080"],"env":[` + podIP + `]`, "args contains " + hint},
		"command":             {`"command":["serve","$(POD_IP)"],"env":[` + podIP + `]`, "command contains " + hint},
		"environment":         {`"env":[` + podIP + `,{"name":"BIND","value":"$(POD_IP)"}]`, "env BIND contains " + hint},
		"unused variable":     {`"args":["serve"],"env":[` + podIP + `]`, ""},
		"address for peers":   {`"args":["--advertise-address=$(POD_IP)"],"env":[` + podIP + `]`, ""},
		"another field":       {`"args":["$(NAME)"],"env":[{"name":"NAME","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]`, ""},
		"probe of an address": {`"readinessProbe":{"httpGet":{"port":8080,"host":"10.0.0.5"}}`, "SERVING_READINESS_PROBE: httpGet.host: \"10.0.0.5\": the host of a probe must be a loopback address"},
		"probe of localhost":  {`"readinessProbe":{"httpGet":{"port":8080,"host":"127.0.0.1"}}`, ""},
	} {
		out := Inject(parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"app","image":"a","ports":[{"containerPort":8080}],`+c.container+`}]}}`), nil)
		harness.Equal(t, out.Verdict, Injected, name, out.Text)
		got := strings.Join(out.Warnings, "\n")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got warnings %q, want %q", name, got, c.want)
		}
	}
}
