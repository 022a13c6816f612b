package probe

import (
	"bufio"
	"encoding/json"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parseVector is a test vector in testdata/parse.txt.
type parseVector struct {
	name, text string
	list       bool
	good       int
	bad        []string
}

func parseVectors(t testing.TB) []parseVector {
	t.Helper()
	f, err := os.Open("testdata/parse.txt")
	harness.NoError(t, err)
	defer f.Close()
	var vectors []parseVector
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		if word != "one" && word != "list" && word != "good" && word != "bad" {
			vectors = append(vectors, parseVector{name: line})
			continue
		}
		v := &vectors[len(vectors)-1]
		switch word {
		case "one", "list":
			v.text, v.list = rest, word == "list"
		case "good":
			if v.good, err = strconv.Atoi(rest); err != nil {
				t.Fatalf("%s: %v", v.name, err)
			}
		case "bad":
			v.bad = append(v.bad, rest)
		}
	}
	harness.NoError(t, lines.Err())
	return vectors
}

func TestParseVectors(t *testing.T) {
	for _, v := range parseVectors(t) {
		t.Run(v.name, func(t *testing.T) {
			probes, errs := Parse(v.text, v.list)
			var got []string
			for _, err := range errs {
				got = append(got, err.Error())
			}
			if !reflect.DeepEqual(got, v.bad) {
				t.Errorf("problems:\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(v.bad, "\n     "))
			}
			harness.Equal(t, len(probes), v.good, "probes")
		})
	}
}

func TestParseBlankReturnsError(t *testing.T) {
	for _, array := range []bool{false, true} {
		if _, errs := Parse(" ", array); len(errs) != 1 || !strings.Contains(errs[0].Error(), "unexpected end of JSON input") {
			t.Errorf("Parse(blank, %v): got %v, want one error about the end of the input", array, errs)
		}
	}
}

func TestParseUsesLastDuplicateKey(t *testing.T) {
	p, errs := Parse(`{"tcpSocket":{"port":1,"host":"a"},"TCPSocket":{"port":8080}}`, false)
	if errs != nil {
		t.Fatal(errs)
	}
	if got := *p[0].TCPSocket; got.Port.Number != 8080 || got.Host != "a" {
		t.Errorf("got %+v, want port 8080 of the second object and host a of the first object", got)
	}
}

// coreProbes returns core/v1 Probes that together set all fields.
func coreProbes() []corev1.Probe {
	grace := int64(7)
	service, http2, overTLS := "a.B", corev1.HTTPProtocolHTTP2, corev1.GRPCProbeModeTLS
	http := corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: "/a?b=c&d", Port: intstr.FromInt32(8080), Host: "127.0.0.1", Scheme: corev1.URISchemeHTTP,
			HTTPHeaders: []corev1.HTTPHeader{{Name: "X-a", Value: "<1>"}, {Name: "X-a", Value: ""}}, Protocol: &http2,
		}},
		InitialDelaySeconds: 1, TimeoutSeconds: 2, PeriodSeconds: 3, SuccessThreshold: 4, FailureThreshold: 5,
		TerminationGracePeriodSeconds: &grace,
	}
	tcp := corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("8080"), Host: "::1"}}}
	grpc := corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000, Service: &service, Mode: &overTLS}}}
	bare := corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000}}}
	return []corev1.Probe{http, tcp, grpc, bare}
}

func TestParseKubernetesProbeRoundTrip(t *testing.T) {
	for _, core := range coreProbes() {
		text, err := json.Marshal(core)
		harness.NoError(t, err)
		probes, errs := Parse(string(text), false)
		if errs != nil {
			t.Errorf("%s: %v", text, errs)
			continue
		}
		got, err := json.Marshal(probes[0])
		harness.NoError(t, err)
		if string(got) != string(text) {
			t.Errorf("got  %s\nwant %s", got, text)
		}
	}
}

func TestProbeHasAllKubernetesFields(t *testing.T) {
	got, want := map[string]bool{}, map[string]bool{}
	fieldNames(reflect.TypeFor[Probe](), "", got)
	fieldNames(reflect.TypeFor[corev1.Probe](), "", want)
	harness.Equal(t, got, want, "fields")
}

func fieldNames(t reflect.Type, path string, into map[string]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[Port]() || t == reflect.TypeFor[intstr.IntOrString]() {
		into[path] = true
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous {
			fieldNames(f.Type, path, into)
			continue
		}
		fieldNames(f.Type, path+"."+name, into)
	}
}

// FuzzParse verifies that a valid probe has the same value as in the Kubernetes type and can be encoded and parsed
// again, and that each error is one line.
func FuzzParse(f *testing.F) {
	for _, v := range parseVectors(f) {
		f.Add(v.text, v.list)
	}
	f.Fuzz(func(t *testing.T, text string, array bool) {
		probes, errs := Parse(text, array)
		for _, err := range errs {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("got error %q, want one line", err)
			}
		}
		if errs != nil && probes != nil {
			t.Errorf("got %d probes and %d errors, want no probes with errors", len(probes), len(errs))
		}
		for _, p := range probes {
			l := new(problems)
			if p.validate(l); l.errs != nil {
				t.Errorf("got probe %+v with validation errors %v, want no errors", p, l.errs)
			}
			again, err := json.Marshal(p)
			harness.NoError(t, err)
			if _, errs := Parse(string(again), false); errs != nil {
				t.Errorf("%s is encoded as %s: got errors %v, want none", text, again, errs)
			}
			if array {
				continue
			}
			harness.Equal(t, asKubernetes(t, again), asKubernetes(t, []byte(text)), text)
		}
	})
}

// asKubernetes decodes a probe into the Kubernetes type and returns it as JSON.
func asKubernetes(t *testing.T, text []byte) string {
	t.Helper()
	var p corev1.Probe
	harness.NoError(t, json.Unmarshal(text, &p), text, "as a Kubernetes Probe")
	again, err := json.Marshal(p)
	harness.NoError(t, err)
	return string(again)
}
