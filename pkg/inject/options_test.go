package inject

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestFlagVariableAndAnnotationAreEquivalent(t *testing.T) {
	bare := annotated(t, "note", "x")
	for name, value := range map[string]string{
		"concurrency": "3", "image": "other:1", "image-pull-policy": "Never", "mode": "native", "port": "8080", "container": "web",
		"queue-depth": "7", "request-timeout": "33", "drain-deadline": "50s", "exclude-paths": "/a", "full-duplex": "true", "log-level": "debug",
		"admin-port": "7001", "cpu-request": "1", "memory-limit": "1Gi", "metrics-annotations": "false", "settings": "CONNECT_RETRY=9s",
	} {
		option, ok := find(name)
		if !ok {
			t.Fatalf("no option has the name %s", name)
		}
		flags := Options{}
		harness.NoError(t, flags.Set(name, value))
		environ, err := FromEnv([]string{"HOME=/", option.Env() + "=" + value})
		harness.NoError(t, err)
		byFlag := Inject(bare, flags)
		byEnv := Inject(bare, environ)
		pod := annotated(t, option.Annotation(), value)
		byAnnotation := Inject(pod, nil)
		if byFlag.Verdict != Injected || byAnnotation.Verdict != Injected {
			t.Errorf("%s: got %s %q and %s %q, want injected", name, byFlag.Verdict, byFlag.Text, byAnnotation.Verdict, byAnnotation.Text)
			continue
		}
		harness.Equal(t, string(encode(byEnv.Changes)), string(encode(byFlag.Changes)), name, "the environment", "(what the flag does)")
		got, want := sidecarIn(t, pod, byAnnotation), sidecarIn(t, bare, byFlag)
		harness.Equal(t, got, want, name, "the annotation", "(what the flag does)")
		// The annotation must override the flag.
		if name == "concurrency" {
			harness.Equal(t, sidecarIn(t, pod, Inject(pod, Options{name: "99"})), want, name, "annotation and flag")
		}
	}
}

func sidecarIn(t *testing.T, before any, out Outcome) string {
	t.Helper()
	return string(encode(sidecarOf(changed(t, before, out.Changes))))
}

func TestOptionVariablesAreSettings(t *testing.T) {
	known := map[string]bool{}
	for _, s := range config.Default().Settings() {
		known[s.Name] = true
	}
	for _, o := range Table() {
		if o.variable != "" && !known[o.variable] {
			t.Errorf("%s: got variable %s, want a setting of the sidecar", o.Name, o.variable)
		}
		if o.Text == "" || !strings.HasSuffix(o.Text, ".") {
			t.Errorf("%s: got text %q, want sentences", o.Name, o.Text)
		}
		if err := (Options{}).Set(o.Name, o.Default); err != nil {
			t.Errorf("%s: got error %v for the default value", o.Name, err)
		}
	}
}

func TestSetAcceptsLogLevelsOfSidecar(t *testing.T) {
	for _, level := range []string{"debug", "Warn", "ERROR"} {
		if err := (Options{}).Set("log-level", level); err != nil {
			t.Errorf("%s: got %v, want no error", level, err)
		}
	}
}

func TestSetRejectsInvalidOptions(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"concurency", "1", `unknown option "concurency": did you mean "concurrency"?`},
		{"xyzzy-plugh-what", "1", `unknown option "xyzzy-plugh-what"`},
		{"concurrency", "-1", `"-1": must be an integer from 0 to 1000000`},
		{"log-level", "loud", `"loud": must be one of debug, info, warn, warning, error, dpanic, panic, fatal`},
		{"mode", "ambient", `"ambient": must be one of sidecar, native`},
		{"inject", "perhaps", `"perhaps": must be true or false`},
		{"admin-port", "0", `"0": must be a port from 1 to 65535`},
		{"cpu-limit", "much", `"much": must be a quantity such as 25m or 32Mi`},
		{"cpu-limit", "1e33133111", `"1e33133111": must be a quantity such as 25m or 32Mi`}, // parsing the quantity would take seconds
		{"resource-percentage", "101", `"101": must be a positive number of at most 100`},
		{"settings", "USER_PORT=1", `USER_PORT is set with the option port`},
		{"settings", "QUEUE_DEPTH=1", `QUEUE_DEPTH is set with the option queue-depth`},
		{"settings", "ON_KNATIVE=true", `the injector sets ON_KNATIVE; remove the line`},
		{"settings", "CONNECT_RETRI=1s", `unknown setting "CONNECT_RETRI": did you mean "CONNECT_RETRY"?; docs/configuration.md lists the settings`},
		{"settings", "what", `"what": must have the form NAME=value; the option contains the settings, not the name of a file`},
	} {
		err := Options{}.Set(c.name, c.value)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s=%s: got %v, want %s", c.name, c.value, err, c.want)
		}
	}
	if _, err := FromEnv([]string{"INJECTOR_MOED=native"}); err == nil || !strings.Contains(err.Error(), `did you mean "INJECTOR_MODE"?`) {
		t.Errorf("got %v, want a suggestion", err)
	}
}

// A kubelet sets variables for each Service of the namespace. A Service whose name begins with
// injector must not prevent the webhook from starting.
func TestFromEnvIgnoresServiceLinks(t *testing.T) {
	for _, service := range []string{"INJECTOR", "INJECTOR_METRICS", "INJECTOR_IMAGE", "INJECTOR_LOCK_PORT"} {
		links := []string{service + "_SERVICE_HOST=10.0.0.1", service + "_SERVICE_PORT=443", service + "_SERVICE_PORT_HTTPS=443", service + "_PORT=tcp://10.0.0.1:443",
			service + "_PORT_443_TCP=tcp://10.0.0.1:443", service + "_PORT_443_TCP_PROTO=tcp", service + "_PORT_443_TCP_PORT=443", service + "_PORT_443_TCP_ADDR=10.0.0.1"}
		if o, err := FromEnv(links); err != nil || len(o) > 0 {
			t.Errorf("%s: got %v %v, want no options", service, o, err)
		}
	}
	if o, err := FromEnv([]string{"INJECTOR_ADMIN_PORT=7000"}); err != nil || o["admin-port"] != "7000" {
		t.Errorf("got %v %v, want the option admin-port", o, err)
	}
}

func TestConflictingOptionsAreRefused(t *testing.T) {
	template := web(t, `,"ports":[{"containerPort":8080}]`)
	for _, c := range []struct {
		opts Options
		want string
	}{
		{Options{"drain-min": "60s", "drain-deadline": "10s"}, "option drain-min"},
		{Options{"cpu-request": "2", "cpu-limit": "1"}, "cpu-request 2 exceeds cpu-limit 1"},
		{Options{"admin-port": "7000", "metrics-port": "7000"}, "admin-port and metrics-port have the same port number 7000; specify a different port"},
		{Options{"serving-port": "9090"}, "serving-port and autoscaler-port have the same port number 9090; specify a different port"},
		{Options{"serving-port": "8080"}, "port 8080 is already used by container web"},
	} {
		out := Inject(template, c.opts)
		if out.Verdict != Refused || !strings.Contains(out.Text, c.want) {
			t.Errorf("%v: got %s %q, want refused with %q", c.opts, out.Verdict, out.Text, c.want)
		}
	}
}

func TestPolicyRejectsUnsupportedOptions(t *testing.T) {
	for _, c := range []struct {
		opts Options
		want string
	}{
		{Options{"resource-percentage": "10"}, "resource-percentage"},
		{Options{"drain-quiet-period": "5s"}, "drain-quiet-period"},
		{Options{"drain-min": "1500ms"}, "whole seconds"},
		{Options{"request-timeout": "1.5s"}, "whole seconds"},
		{Options{"inject": "false"}, "inject: must be true"},
		{Options{"metrics-port": "19090"}, "autoscaler-port and metrics-port can both be port 19090"},
		{Options{"admin-port": "8012"}, "serving-port and admin-port have the same port number 8012"},
		{Options{"serving-port": "9090"}, "serving-port and autoscaler-port have the same port number 9090"},
		{Options{"drain-min": "40s", "drain-deadline": "30s"}, "drain-min"},
		{Options{"settings": "CONECT_RETRY=1s"}, "CONNECT_RETRY"},
	} {
		if _, err := Policy(c.opts); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want an error that contains %q", c.opts, err, c.want)
		}
	}
	opts := Options{"concurrency": "0x10", "image": "a:1", "exclude-user-agents": `a'"\b`, "serving-port": "1"}
	if text, err := Policy(opts); err != nil || !strings.Contains(text, `: '16')`) || opts["concurrency"] != "0x10" {
		t.Errorf("got %v, want a policy with 16 and unchanged options", err)
	}
}

func TestPolicyContainsOptions(t *testing.T) {
	for _, c := range []struct {
		opts Options
		want string
	}{
		{nil, "- name: goes-on\n"},
		{Options{"mode": "native"}, "value: Object.spec.initContainers{\n            name: 'queue-proxy',\n            image: variables.image,\n            restartPolicy: 'Always',\n"},
		{Options{"image-pull-policy": "Never"}, "\n            imagePullPolicy: 'Never',\n            ports: [\n"},
		{Options{"drain-deadline": "1m30s"}, "- name: drain\n      expression: |-\n        90\n    - name: longerGrace\n      expression: |-\n        [variables.grace, 93].max()\n"},
		{Options{"drain-min": "5s"}, "[5, variables.ownPause].max()\n"},
		{Options{"metrics-annotations": "false"}, "- name: scraped\n      expression: |-\n        false\n"},
		{Options{"metrics-port": "1"}, "- name: metricsPort\n      expression: |-\n        1\n"},
		{Options{"metrics-port": "1"}, "![1].exists(n, n in taken) && ![8012, 8112, 8022, 9090, 8008].exists("},
		{Options{"lock": "concurrency,queue-depth,request-timeout"}, "- name: option-values\n      expression: |-\n        true\n"},
	} {
		if text, err := Policy(c.opts); err != nil || !strings.Contains(text, c.want) {
			t.Errorf("%v: got %v and\n%s\nwant a policy with\n%s", c.opts, err, text, c.want)
		}
	}
}

func TestAdviceReportsProbeMistakes(t *testing.T) {
	const usual = `"timeoutSeconds":1,"failureThreshold":3,"successThreshold":1,"periodSeconds":10`
	for _, c := range []struct{ fact, probes, want string }{
		{"only periodSeconds", `"readinessProbe":{"httpGet":{"port":80},"periodSeconds":5}`, "sets periodSeconds but not timeoutSeconds and failureThreshold and successThreshold"},
		{"all fields", `"readinessProbe":{"httpGet":{"port":80},` + usual + `}`, ""},
		{"a long timeout", `"livenessProbe":{"httpGet":{"port":80},"timeoutSeconds":30}`, "has timeoutSeconds 30 but periodSeconds 10"},
		{"the same request", `"ports":[{"name":"a","containerPort":80}],"livenessProbe":{"httpGet":{"port":"a","path":"/x"}},"readinessProbe":{"httpGet":{"port":80,"path":"/x"}}`, "the liveness probe is the same as the readiness probe"},
		{"another path", `"livenessProbe":{"httpGet":{"port":80,"path":"/y"}},"readinessProbe":{"httpGet":{"port":80,"path":"/x"}}`, ""},
		{"a command", `"readinessProbe":{"exec":{"command":["true"]}}`, "runs a command"},
		{"a long delay", `"livenessProbe":{"tcpSocket":{"port":80},"initialDelaySeconds":60}`, "has initialDelaySeconds 60; use a startup probe"},
		{"no probe", `"image":"x"`, ""},
	} {
		got := Advise(parse(t, `{"spec":{"containers":[{"name":"web",`+c.probes+`}]}}`))
		if c.want == "" && len(got) > 0 || c.want != "" && !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("%s: got %q, want %q", c.fact, got, c.want)
		}
	}
}

// go test ./pkg/inject -run Guide -update writes the table of the options.
var update = flag.Bool("update", false, "write the table of the options in docs/injection.md")

func TestGuideContainsOptionTable(t *testing.T) {
	harness.Document(t, "../../docs/injection.md", "options", markdown(), *update)
}

// markdown returns the options as a table. For options that set a resource or a variable of the
// sidecar, only the names are listed, because docs/configuration.md describes the variables.
func markdown() string {
	var b strings.Builder
	b.WriteString("\n| option | default | meaning |\n|---|---|---|\n")
	var resources, settings []string
	for _, o := range Table() {
		if o.variable != "" {
			settings = append(settings, "`"+o.Name+"`")
			continue
		}
		def := ""
		if o.Default != "" {
			def = "`" + o.Default + "`"
		}
		if strings.HasSuffix(o.Name, "-request") || strings.HasSuffix(o.Name, "-limit") {
			name := "`" + o.Name + "`"
			if def != "" {
				name += " (" + def + ")"
			}
			resources = append(resources, name)
			continue
		}
		b.WriteString(strings.ReplaceAll("| `"+o.Name+"` | "+def+" | "+o.Text+" |\n", "  |", " |"))
	}
	b.WriteString("\nResources of the sidecar: " + strings.Join(resources, ", ") + ".\n")
	b.WriteString("\n[Settings](configuration.md) of the sidecar: " + strings.Join(settings, ", ") + ".\n")
	return b.String() + "\n"
}

func TestGuideContainsEveryReason(t *testing.T) {
	text, err := os.ReadFile("../../docs/injection.md")
	harness.NoError(t, err)
	for reason := range reasonDescriptions {
		if reason == NotInjected { // only returned by Uninject
			continue
		}
		harness.Contains(t, string(text), "`"+reason+"`", "guide without", reason)
	}
}

func TestInvalidInjectLabelIsRefused(t *testing.T) {
	for value, want := range map[string]string{"": "injected ", "true": "injected ", "1": "injected ", "false": "skipped opted-out", "F": "skipped opted-out", "no": "refused bad-option", "disabled": "refused bad-option"} {
		out := Inject(parse(t, `{"metadata":{"labels":{"queue-proxy.dev/inject":`+string(encode(value))+`}},"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}`), nil)
		harness.Equal(t, string(out.Verdict)+" "+out.Reason, want, value, out.Text)
	}
}

func TestImageIsReference(t *testing.T) {
	for image, want := range map[string]bool{
		"queue-proxy": true, "queue-proxy:dev": true, "registry.example:5000/a/b__c/queue-proxy:v1.2_3": true, "[::1]:5000/queue-proxy": true, "localhost/q@sha256:" + strings.Repeat("0", 64): true,
		"bad image": false, "UPPER/App:1": false, "http://reg/x:1": false, "queue-proxy:1\n": false, "queue-proxy\nb": false, " queue-proxy": false, "queue-proxy:": false, "a//b": false, "q@sha256:aa": false, "-a": false, "q:" + strings.Repeat("a", 129): false,
	} {
		out := Inject(parse(t, `{"metadata":{"annotations":{"queue-proxy.dev/image":"`+strings.ReplaceAll(image, "\n", `\n`)+`"}},"spec":{"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]}]}}`), nil)
		if got := (Options{}).Set(imageOption, image) == nil; got != want || (out.Verdict == Injected) != want {
			t.Errorf("%q: got a valid option %v and %s (%s), want %v", image, got, verdictOf(out), out.Text, want)
		}
	}
}

func TestWarningIfOptionSelectsPortForMetrics(t *testing.T) {
	template := web(t, `,"ports":[{"name":"http","containerPort":8080},{"name":"metrics","containerPort":9113}]`)
	const want = "the option port selects port metrics (9113) of container web, which is for metrics or health checks according to its name"
	for port, warns := range map[string]bool{"8080": false, "9113": true, "metrics": true} {
		out := Inject(template, Options{"port": port})
		harness.Equal(t, out.Verdict, Injected, port)
		harness.Equal(t, slices.Contains(out.Warnings, want), warns, port)
	}
}
