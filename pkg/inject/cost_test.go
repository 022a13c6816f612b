package inject

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// To compare two quantities, Kubernetes converts them to the same exponent, which can require a
// number with a hundred million digits.
func TestHugeQuantityExponentIsRefused(t *testing.T) {
	for _, amount := range []string{
		`"1e99999999"`, `"1e-99999999"`, `"1E2147483647"`, `"1234567890123456789012e99999999"`, `1e99999999`,
		`"` + strings.Repeat("9", 1<<20) + `"`, `"0.` + strings.Repeat("9", 1<<20) + `Ki"`,
	} {
		for _, place := range []string{
			`"containers":[{"name":"web","ports":[{"containerPort":8080}],"resources":{"requests":{"cpu":%s},"limits":{"cpu":"1","memory":"1"}}}]`,
			`"containers":[{"name":"web","ports":[{"containerPort":8080}],"resources":{"requests":{"cpu":"1"},"limits":{"cpu":%s,"memory":"1"}}}]`,
			`"containers":[{"name":"web","ports":[{"containerPort":8080}]}],"initContainers":[{"name":"init","resources":{"limits":{"cpu":%s}}}]`,
			`"containers":[{"name":"web","ports":[{"containerPort":8080}]}],"resources":{"limits":{"cpu":%s}}`,
		} {
			pod := parse(t, `{"spec":{`+fmt.Sprintf(place, amount)+`}}`)
			for _, opts := range []Options{nil, {percentOption: "50"}} {
				out := Inject(pod, opts)
				if out.Verdict != Refused || out.Reason != Unreadable || len(out.Text) > 1100 || !strings.Contains(out.Text, "quantity") {
					t.Errorf("%.20s in %.40s: got %s (%s) %.200s, want refused with the quantity", amount, place, out.Verdict, out.Reason, out.Text)
				}
			}
		}
	}
}

// Fields that the injection does not use are not decoded.
func TestUnusedQuantitiesAreNotParsed(t *testing.T) {
	pod := parse(t, `{"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}],"overhead":{"cpu":"1234567890123456789012e99999999"},`+
		`"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1234567890123456789012e99999999"}}]}}`)
	harness.Equal(t, verdictOf(Inject(pod, nil)), "injected")
}

// An API server calls webhooks before it validates a pod, so a string in a review can
// have any length. Each change and its inverse repeat the names.
func TestTooLongStringsAreRefused(t *testing.T) {
	const containers = `"containers":[{"name":"web","ports":[{"containerPort":8080}]}]`
	long := strings.Repeat("w", 1<<20)
	for name, c := range map[string]struct{ pod, reason string }{
		"the name of a container":       {`{"spec":{"containers":[{"name":"` + long + `","ports":[{"containerPort":8080}]}]}}`, Unreadable},
		"the name of an init container": {`{"spec":{` + containers + `,"initContainers":[{"name":"` + long + `"}]}}`, Unreadable},
		"the name of a port":            {`{"spec":{"containers":[{"name":"web","ports":[{"name":"` + long + `","containerPort":8080}]}]}}`, Unreadable},
		"a readiness probe":             {`{"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}],"readinessProbe":{"httpGet":{"port":8080,"path":"/` + long[:200_000] + `"}}}]}}`, BadProbe},
		"a preStop hook": {`{"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}],"lifecycle":{"preStop":{"exec":{"command":["sh","-c","sleep ` +
			strings.Repeat(" ", 300_000) + `1"]}}}}]}}`, Unreadable},
		"a liveness probe":   {`{"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}],"livenessProbe":{"exec":{"command":["` + long + `"]}}}]}}`, Unreadable},
		"another annotation": {`{"metadata":{"annotations":{"a":"` + long + `"}},"spec":{` + containers + `}}`, Unreadable},
		"an option":          {`{"metadata":{"annotations":{"queue-proxy.dev/exclude-paths":"` + long + `"}},"spec":{` + containers + `}}`, Unreadable},
		"a variable":         {`{"metadata":{"annotations":{"queue-proxy.dev/exclude-paths":"/` + long[:200_000] + `"}},"spec":{` + containers + `}}`, BadOption},
	} {
		out := Inject(parse(t, c.pod), nil)
		harness.Equal(t, verdictOf(out), "refused "+c.reason, name)
		if len(out.Text) > 1100 {
			t.Errorf("%s: got a text of %d bytes, want at most 1100", name, len(out.Text))
		}
	}
}

// These pods satisfy the size limits of an API server.
func TestPodsAtSizeLimitAreInjected(t *testing.T) {
	for name, pod := range map[string]string{
		"names":       `{"spec":{"containers":[{"name":"` + strings.Repeat("w", 63) + `","ports":[{"name":"` + strings.Repeat("p", 15) + `","containerPort":8080}]}]}}`,
		"annotations": `{"metadata":{"annotations":{"a":"` + strings.Repeat("w", 250<<10) + `"}},"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}`,
		"values":      `{"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}],"env":[{"name":"A","value":"` + strings.Repeat("w", 1<<20) + `"}]}]}}`,
		"ports": `{"metadata":{"annotations":{"queue-proxy.dev/port":"8080"}},"spec":{"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080}` +
			strings.Repeat(`,{"containerPort":9}`, 10_000) + `]}]}}`,
	} {
		harness.Equal(t, verdictOf(Inject(parse(t, pod), nil)), "injected", name)
	}
}
