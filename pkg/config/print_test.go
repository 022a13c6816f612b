package config

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func settingOf(t *testing.T, c *Config, name string) Setting {
	t.Helper()
	for _, s := range c.Settings() {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no setting %s", name)
	return Setting{}
}

func TestSettingsReturnSource(t *testing.T) {
	c := read(t, "PORT", "3000", "CONTAINER_CONCURRENCY", "2", "STATUS_PORT", "tcp://10.0.0.1:80",
		"ENABLE_PROFILING", "nonsense", "DRAIN_QUIET_PERIOD", "1h", "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer xyz")
	for _, want := range []Setting{
		{Name: "USER_PORT", Value: "3000", Source: "environment", From: "PORT"},
		{Name: "CONTAINER_CONCURRENCY", Value: "2", Source: "environment", From: "CONTAINER_CONCURRENCY"},
		{Name: "QUEUE_DEPTH", Value: "20", Source: "derived"},
		{Name: "QUEUE_SERVING_PORT", Value: "8012", Source: "default"},
		{Name: "STATUS_PORT", Value: "8008", Source: "default"},
		{Name: "ENABLE_PROFILING", Value: "false", Source: "default"},
		{Name: "DRAIN_QUIET_PERIOD", Value: "13.5s", Source: "derived"},
		{Name: "SERVING_NAMESPACE", Value: "", Source: "default"},
		{Name: "OTEL_EXPORTER_OTLP_HEADERS", Value: "***", Source: "environment", From: "OTEL_EXPORTER_OTLP_HEADERS", Secret: true},
	} {
		harness.Equal(t, settingOf(t, c, want.Name), want)
	}
	c = Default()
	c.UserPort.V = 3000
	harness.Equal(t, settingOf(t, c, "USER_PORT").Source, "derived", "source of a value that the program set")
}

func TestWriteReportsThatNothingChanged(t *testing.T) {
	var b strings.Builder
	Default().Write(&b, true, []string{"a warning"})
	harness.Equal(t, b.String(), "All settings have their defaults.\n\nwarning: a warning\n")
}

func TestSettingsHaveFixedOrder(t *testing.T) {
	order := func(c *Config) (names []string) {
		for _, s := range c.Settings() {
			names = append(names, s.Name)
		}
		return names
	}
	want := order(Default())
	for _, e := range knativeEnvironments() {
		c := readAll(t, e.vars)
		harness.Equal(t, order(c), want, e.name)
	}
}

func TestSettingsHideSecrets(t *testing.T) {
	const secret = "s3cret"
	vars := env(
		"SERVING_NAMESPACE", "n",
		"OTEL_EXPORTER_OTLP_HEADERS", "authorization="+secret,
		"OTEL_EXPORTER_OTLP_METRICS_HEADERS", "authorization="+secret,
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization="+secret,
		"OTEL_EXPORTER_OTLP_ENDPOINT", "https://user:"+secret+"@collector:4318/a@b",
		"TRACING_CONFIG_ZIPKIN_ENDPOINT", "https://"+secret+"@zipkin",
		"OBSERVABILITY_CONFIG", `{"tracing":{"endpoint":"https://u:`+secret+`@t"},"metrics":{"endpoint":"https://u:`+secret+`@m"}}`,
		"SERVING_READINESS_PROBE", `{"httpGet":{"port":8080,"path":"/ready","httpHeaders":[{"name":"Authorization","value":"`+secret+`"}]}}`,
	)
	c := readAll(t, vars)
	var b strings.Builder
	c.Write(&b, false, c.Warnings(false))
	for _, s := range c.Settings() {
		b.WriteString(s.Value)
	}
	if got := b.String(); strings.Contains(got, secret) {
		t.Errorf("got\n%s\nwant output without %s", got, secret)
	}
	harness.Equal(t, settingOf(t, c, "SERVING_READINESS_PROBE").Value, `{"httpGet":{"path":"/ready","port":8080,"httpHeaders":[{"name":"Authorization","value":"***"}]}}`)
	harness.Equal(t, settingOf(t, c, "OTEL_EXPORTER_OTLP_ENDPOINT").Value, "https://***@collector:4318/a@b")
	harness.Equal(t, c.Probes.V[0].HTTPGet.HTTPHeaders[0].Value, secret, "header value", "in Probes")

	// An error about an invalid value also hides secrets.
	_, err := Read(env("USER_PORT", "http://u:"+secret+"@host"))
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("got error %v, want an error without %s", err, secret)
	}
}

func TestSettingsHideSecretsInURLs(t *testing.T) {
	for value, want := range map[string]string{
		"https://collector:4318/v1/traces":              "https://collector:4318/v1/traces",
		"https://collector:4318/v1?api-key=s3cret":      "https://collector:4318/v1?***",
		"https://collector?token=s3cret/a":              "https://collector?***",
		"https://collector/v1#s3cret":                   "https://collector/v1#***",
		"https://user:s3cret@collector/a@b?x=s3cret":    "https://***@collector/a@b?***",
		"https://user:s3c@ret@collector:4318":           "https://***@collector:4318",
		"https://s3cret@[::1]:4318/v1":                  "https://***@[::1]:4318/v1",
		"collector:4317?token=s3cret":                   "collector:4317?***",
		"user:s3cret@collector:4317":                    "***@collector:4317",
		"user:s3cret@collector?u=http://x":              "***@collector?***",
		"https://collector?token=s3cret\" \u2028s3cret": "https://collector?***",
		"http://a?b=s3cret, http://c?d=s3cret":          "http://a?***",
		" https://user:s3cret@collector?token=s3cret ":  "https://***@collector?***",
		// A password that is not percent-encoded.
		"https://user:s3/cret@collector":    "***",
		"https://user:s3?cret@collector":    "***",
		"https://user?s3cret@collector":     "***",
		"https://user:s3#cret@collector/v1": "***",
		"":                                  "", "@": "***@", "https://": "https://", "://?s3cret": "://?***",
	} {
		for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "TRACING_CONFIG_ZIPKIN_ENDPOINT"} {
			c := read(t, name, value)
			harness.Equal(t, settingOf(t, c, name).Value, want, name, "=", value)
			if got := Environ(c); value != "" && !slices.Equal(got, env(name, value)) {
				t.Errorf("got %v, want the value of the variable", got)
			}
		}
	}
}

func TestSettingsHideSecretsInJSONEndpoints(t *testing.T) {
	for value, want := range map[string]string{
		`{"tracing":{"endpoint":"https://u:s3cret@c/v1?k=s3cret"},"metrics":{"protocol":"grpc"}}`: `{"metrics":{"protocol":"grpc"},"tracing":{"endpoint":"https://***@c/v1?***"}}`,
		`{"metrics": {"endpoint" : "collector:4317?k=s3cret", "exportInterval":15000000000}}`:     `{"metrics":{"endpoint":"collector:4317?***","exportInterval":15000000000}}`,
		`{"metrics":{"ENDPOINT":"s3cret@collector"}}`:                                             `{"metrics":{"ENDPOINT":"***@collector"}}`,
		`{"metrics":{"\u0065ndpoint":"collector?s3cret"}}`:                                        `{"metrics":{"endpoint":"collector?***"}}`,
		`{"metrics":{"endpoint":"https:\/\/u:s3cret@c\/v1\u003fk=s3cret \" s3cret"}}`:             `{"metrics":{"endpoint":"https://***@c/v1?***"}}`,
		`{"a":[{"endpoint":"http://s3cret@b"}],"b":1.50}`:                                         `{"a":[{"endpoint":"http://***@b"}],"b":1.50}`,
		`{"requestLogTemplate":"{{.Request.URL}}?<&>"}`:                                           `{"requestLogTemplate":"{{.Request.URL}}?<&>"}`,
	} {
		c := read(t, "OBSERVABILITY_CONFIG", value)
		harness.Equal(t, settingOf(t, c, "OBSERVABILITY_CONFIG").Value, want, value)
		harness.Equal(t, c.Observability.String(), value, "value of the variable")
		want := []string{"OBSERVABILITY_CONFIG: ***: must be a JSON object; using the default, {}"}
		harness.Equal(t, read(t, "OBSERVABILITY_CONFIG", "x"+value).Warnings(false), want, "warnings for a value that is not JSON")
	}
}

func FuzzRedactURL(f *testing.F) {
	f.Add("a@b/c?d#e")
	f.Add("[::1]:80")
	f.Fuzz(func(t *testing.T, text string) {
		const secret = "s3cret"
		if strings.Contains(text, secret) {
			return
		}
		for _, whole := range []string{"https://h/" + text + "?" + secret, "https://u:" + secret + "@h/" + text, "u:" + secret + "@" + text} {
			if got := redactURL(whole); strings.Contains(got, secret) {
				t.Errorf("%q: got %q, want output without %s", whole, got, secret)
			}
		}
	})
}

func TestReadErrorTruncatesLongValue(t *testing.T) {
	_, err := Read(env("USER_PORT", strings.Repeat("ü\n", 1000)))
	if err == nil {
		t.Fatal("got no error, want one")
	}
	if got := err.Error(); len(got) > 400 || strings.Contains(got, "\n") || !strings.Contains(got, `"...: must be a port`) {
		t.Errorf("got %q, want one short line", got)
	}
}

// The output of `queue-proxy why` can omit the last warnings.
func TestWarningAboutCertificateIsFirst(t *testing.T) {
	c := read(t, "TLS_CERT_DIR", t.TempDir(), "QUEUE_DEPTH", "5")
	c.ownFiles = true
	if got := c.Warnings(false); len(got) != 2 || !strings.HasPrefix(got[0], "TLS_CERT_DIR") {
		t.Errorf("got warnings %q, want two, and the first one about TLS_CERT_DIR", got)
	}
	harness.Equal(t, len(c.Warnings(true)), 1, "warnings with a certificate")
}

func TestWriteAppendsWarnings(t *testing.T) {
	written := func(c *Config) string {
		var b strings.Builder
		c.Write(&b, false, c.Warnings(false))
		return b.String()
	}
	got := written(read(t, "CONTAINER_CONCURENCY", "4", "QUEUE_DEPTH", "5"))
	want := "\nwarning: CONTAINER_CONCURENCY: unknown variable ignored; did you mean CONTAINER_CONCURRENCY?\n" +
		"warning: QUEUE_DEPTH: ignored because CONTAINER_CONCURRENCY is 0\n"
	if !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant at the end\n%s", got, want)
	}
	if got := written(Default()); strings.Contains(got, "warning") || strings.Contains(got, "\n\n") {
		t.Errorf("got\n%s\nwant no warnings", got)
	}
}

func TestWriteJSONContainsSettingsAndWarnings(t *testing.T) {
	for _, c := range []*Config{Default(), read(t, "PORT", "3000", "CONTAINER_CONCURENCY", "4", "OTEL_EXPORTER_OTLP_HEADERS", "a=b", "EXCLUDE_PATHS", "/<&>")} {
		var b strings.Builder
		c.WriteJSON(&b, false, c.Warnings(false))
		var got struct {
			Settings []Setting
			Warnings []string
		}
		harness.NoError(t, json.Unmarshal([]byte(b.String()), &got), "from", b.String())
		harness.Equal(t, got.Settings, c.Settings(), "settings")
		if want := c.Warnings(false); !slices.Equal(got.Warnings, want) || got.Warnings == nil {
			t.Errorf("got warnings %#v, want %q, and an empty array without warnings", got.Warnings, want)
		}
		for line := range strings.Lines(b.String()) {
			if strings.Contains(line, `"USER_PORT"`) && strings.TrimSpace(line) != `"name": "USER_PORT",` {
				t.Errorf("got line %q, want one member on each line", line)
			}
		}
		if got := b.String(); strings.Contains(got, `\u003c`) {
			t.Errorf("got %s, want an unescaped <", got)
		}
	}
}

func TestWriteChangedOmitsDerivedDefaults(t *testing.T) {
	names := func(c *Config) (names []string) {
		var b strings.Builder
		c.WriteJSON(&b, true, c.Warnings(false))
		var got struct{ Settings []Setting }
		harness.NoError(t, json.Unmarshal([]byte(b.String()), &got), "from", b.String())
		if got.Settings == nil {
			t.Errorf("got %s, want an array of settings", b.String())
		}
		for _, s := range got.Settings {
			names = append(names, s.Name)
		}
		return names
	}
	for _, c := range []struct{ vars, want []string }{
		{nil, nil},
		{[]string{"CONTAINER_CONCURRENCY", "2"}, []string{"CONTAINER_CONCURRENCY", "QUEUE_DEPTH"}},
		{[]string{"USER_PORT", "8080"}, []string{"USER_PORT"}}, // the variable is set to its default
		{[]string{"USER_PORT", "3000"}, []string{"USER_PORT", "SERVING_READINESS_PROBE"}},
	} {
		harness.Equal(t, names(read(t, c.vars...)), c.want, c.vars)
	}
}

func TestWriteAlignsColumns(t *testing.T) {
	c := read(t, "PORT", "3000", "SERVING_NAMESPACE", "n", "SERVING_READINESS_PROBE", `{"httpGet":{"path":"/a/long/path/to/health","port":3000}}`)
	var b strings.Builder
	c.Write(&b, false, c.Warnings(false))
	got := map[string][]string{}
	for line := range strings.Lines(b.String()) {
		fields := strings.Fields(line)
		got[fields[0]] = fields[1:]
	}
	for name, want := range map[string][]string{
		"USER_PORT":               {"3000", "environment", "(PORT)"},
		"SERVING_SERVICE":         {"-", "default"},
		"SERVING_READINESS_PROBE": {`{"httpGet":{"path":"/a/long/path/to/health","port":3000}}`, "environment"},
		"REVISION_TIMEOUT_SCOPE":  {"first-byte", "derived"},
	} {
		harness.Equal(t, got[name], want, name)
	}
	column := -1
	for line := range strings.Lines(b.String()) {
		if len([]rune(line)) > 120 || strings.Contains(line, "httpGet") {
			continue
		}
		at := strings.LastIndex(line, "  ")
		if column >= 0 && at != column {
			t.Errorf("got the last column at %d in %q, want %d", at, line, column)
		}
		column = at
	}
}
