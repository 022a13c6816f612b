package config

import (
	"slices"
	"strings"
	"testing"
)

func setting(t *testing.T, c *Config, name string) Setting {
	t.Helper()
	for _, s := range c.Settings() {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("got no setting %s, want one", name)
	return Setting{}
}

func TestASettingSaysWhereItComesFrom(t *testing.T) {
	c := read(t, "PORT", "3000", "CONTAINER_CONCURRENCY", "2", "METRICS_PORT", "tcp://10.0.0.1:80",
		"ENABLE_PROFILING", "nonsense", "DRAIN_QUIET_PERIOD", "1h", "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer xyz")
	for _, want := range []Setting{
		{Name: "USER_PORT", Value: "3000", Source: "environment", From: "PORT"},
		{Name: "CONTAINER_CONCURRENCY", Value: "2", Source: "environment", From: "CONTAINER_CONCURRENCY"},
		{Name: "QUEUE_DEPTH", Value: "20", Source: "derived"},
		{Name: "QUEUE_SERVING_PORT", Value: "8012", Source: "default"},
		{Name: "METRICS_PORT", Value: "9091", Source: "default"},
		{Name: "ENABLE_PROFILING", Value: "false", Source: "default"},
		{Name: "DRAIN_QUIET_PERIOD", Value: "13.5s", Source: "derived"},
		{Name: "SERVING_NAMESPACE", Value: "", Source: "default"},
		{Name: "OTEL_EXPORTER_OTLP_HEADERS", Value: "***", Source: "environment", From: "OTEL_EXPORTER_OTLP_HEADERS", Secret: true},
	} {
		if got := setting(t, c, want.Name); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	c = Default()
	c.UserPort = 3000
	if got, want := setting(t, c, "USER_PORT").Source, "derived"; got != want {
		t.Errorf("set by hand: got source %s, want %s", got, want)
	}
}

func TestSettingsHaveAFixedOrder(t *testing.T) {
	order := func(c *Config) (names []string) {
		for _, s := range c.Settings() {
			names = append(names, s.Name)
		}
		return names
	}
	want := order(Default())
	for _, e := range knativeEnvironments() {
		c, err := Read(e.vars)
		if err != nil {
			t.Fatal(err)
		}
		if got := order(c); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", e.name, got, want)
		}
	}
}

func TestNoSecretIsShown(t *testing.T) {
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
	c, err := Read(vars)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	c.Write(&b)
	for _, s := range c.Settings() {
		b.WriteString(s.Value)
	}
	if got := b.String(); strings.Contains(got, secret) {
		t.Errorf("got %s\nwant no %s", got, secret)
	}
	if got, want := setting(t, c, "SERVING_READINESS_PROBE").Value, `{"httpGet":{"path":"/ready","port":8080,"httpHeaders":[{"name":"Authorization","value":"***"}]}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := setting(t, c, "OTEL_EXPORTER_OTLP_ENDPOINT").Value, "https://***@collector:4318/a@b"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := c.Probes[0].HTTPGet.HTTPHeaders[0].Value; got != secret {
		t.Errorf("got header value %q in the probe, want it untouched", got)
	}

	// Nor in what is said of bad values.
	_, err = Read(env("USER_PORT", "http://u:"+secret+"@host"))
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("got error %v, want one without %s", err, secret)
	}
}

func TestALongValueIsCutInAnError(t *testing.T) {
	_, err := Read(env("USER_PORT", strings.Repeat("ü\n", 1000)))
	if err == nil {
		t.Fatal("got no error, want one")
	}
	if got := err.Error(); len(got) > 400 || strings.Contains(got, "\n") || !strings.Contains(got, `"...: a port`) {
		t.Errorf("got %q, want one short line", got)
	}
}

func TestWriteIsATable(t *testing.T) {
	c := read(t, "PORT", "3000", "SERVING_NAMESPACE", "n", "SERVING_READINESS_PROBE", `{"httpGet":{"path":"/a/long/path/to/health","port":3000}}`)
	var b strings.Builder
	c.Write(&b)
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
		if !slices.Equal(got[name], want) {
			t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
	column := -1
	for line := range strings.Lines(b.String()) {
		if len([]rune(line)) > 120 || strings.Contains(line, "httpGet") {
			continue
		}
		at := strings.LastIndex(line, "  ")
		if column >= 0 && at != column {
			t.Errorf("got the last column at %d in %q, want it at %d", at, line, column)
		}
		column = at
	}
}
