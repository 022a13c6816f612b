package config

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestEnvironIsEmptyForDefaults(t *testing.T) {
	harness.Equal(t, Environ(Default()), nil)
}

func TestEnvironReturnsChangedSettings(t *testing.T) {
	c := Default()
	c.UserPort.V = 3000
	c.Concurrency.V = 1
	c.QueueDepth.V = 10
	c.RequestTimeout.V = 2 * time.Minute
	c.Probes.V = []probe.Probe{{HTTPGet: &probe.HTTPGetAction{Path: "/a?b=1&c=<d>", Port: probe.Port{Number: 3000}}, PeriodSeconds: 5}}
	want := env("USER_PORT", "3000", "CONTAINER_CONCURRENCY", "1", "REVISION_TIMEOUT_SECONDS", "120",
		"SERVING_READINESS_PROBE", `{"httpGet":{"path":"/a?b=1&c=<d>","port":3000},"periodSeconds":5}`,
		"ON_KNATIVE", "false")
	harness.Equal(t, Environ(c), want)
}

func TestEnvironEncodesAnyNumberOfProbes(t *testing.T) {
	for _, knative := range []bool{false, true} {
		for n := range 4 {
			c := Default()
			c.OnKnative.V = knative
			c.Probes.V = nil
			for i := range n {
				c.Probes.V = append(c.Probes.V, tcp(int32(9000+i))...)
			}
			c.RequestTimeoutScope.V = WholeRequest
			got := readAll(t, Environ(c))
			harness.Equal(t, settings(got), settings(c), "knative", knative, n, "probes")
		}
	}
}

// TestEnvironRoundTrip checks that Read returns the original settings for the variables that Environ
// returns, and that Environ returns the same variables for these settings.
func TestEnvironRoundTrip(t *testing.T) {
	good := 0
	for seed := range uint64(400) {
		want, err := Read(randomEnviron(rand.New(rand.NewPCG(1, seed))))
		if err != nil {
			continue // for example equal ports, or a minimum that is greater than the maximum
		}
		good++
		checkRoundTrip(t, want)
	}
	if good < 200 {
		t.Errorf("got %d environments without errors, want at least 200", good)
	}
	for _, e := range knativeEnvironments() {
		want := readAll(t, e.vars)
		checkRoundTrip(t, want)
	}
}

func checkRoundTrip(t *testing.T, want *Config) {
	t.Helper()
	environ := Environ(want)
	got := readAll(t, environ)
	harness.Equal(t, settings(got), settings(want), environ)
	harness.Equal(t, got.Probes.V, want.Probes.V, environ, "probes")
	harness.Equal(t, Environ(got), environ, "after the second Read")
}

// randomEnviron sets about one third of all variables. It uses all names of the variables, and most of
// the values are valid.
func randomEnviron(r *rand.Rand) []EnvVar {
	var environ []EnvVar
	for _, f := range new(Config).fields() {
		if r.IntN(3) > 0 {
			continue
		}
		name := f.names()[r.IntN(len(f.names()))]
		values := []string{"1", "8443", strconv.Itoa(1024 + r.IntN(60000)), "0x1f", "true", "f", "250ms", "0", "1h0m1.5s", "0.25", "1.2", "1.3",
			"request", "first-byte", "prometheus", "protobuf", "zipkin", "grpc", "/a,/b*", "x,y", "text with blanks, and = signs",
			"TLS_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "P-256,X25519", `{"a":1}`,
			`{"tcpSocket":{"port":8080,"host":"127.0.0.1"},"successThreshold":1}`,
			`{"httpGet":{"path":"/x?y=1&z","port":"8080","httpHeaders":[{"name":"A","value":"b"}]},"periodSeconds":3}`,
			`[]`, `[null,{"grpc":{"port":50051,"service":null}},{"tcpSocket":{"port":1}}]`, ""}
		for range 200 {
			value := values[r.IntN(len(values))]
			if value == "" || f.parse(value) == nil {
				environ = append(environ, EnvVar{name, value})
				break
			}
		}
	}
	return environ
}

func FuzzRead(f *testing.F) {
	for _, s := range new(Config).fields() {
		f.Add(s.Name(), s.tag.Get("default"), "")
	}
	f.Add("SERVING_READINESS_PROBE", `[{"tcpSocket":{"port":1}}]`, "ENABLE_MULTI_CONTAINER_PROBES")
	f.Add("EXCLUDE_PATHS", "/a,*", "true")
	f.Add("OBSERVABILITY_CONFIG", "{", "SERVING_NAMESPACE")
	f.Add("DRAIN_DEADLINE", "1ms", "DRAIN_QUIET_PERIOD")
	f.Fuzz(func(t *testing.T, name, value, other string) {
		// other is the name of another variable, which has the value 1.
		c, err := Read(env(name, value, other, "1"))
		if err != nil {
			harness.Equal(t, c, nil, "Config with the error", err)
			return
		}
		environ := Environ(c)
		again := readAll(t, environ)
		harness.Equal(t, settings(again), settings(c), environ)
		c.Settings()
	})
}
