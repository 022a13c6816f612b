package inject

import (
	"fmt"
	"testing"
)

// Under a quota of limits, the API server refuses pods of which a container has none.
func TestASidecarWithoutTheLimitsOfAQuotaIsAWarning(t *testing.T) {
	quota := func(hard string) string {
		return `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q","namespace":"shop"},"spec":{"hard":{` + hard + `}}}`
	}
	limits := func(limits string) string {
		return `{"apiVersion":"v1","kind":"LimitRange","metadata":{"name":"l"},"spec":{"limits":[` + limits + `]}}`
	}
	for _, c := range []struct {
		namespace string
		said      Options
		objects   []string
		want      int
	}{
		{"shop", nil, []string{quota(`"limits.memory":"1Gi"`)}, 1},
		{"", nil, []string{quota(`"limits.memory":"1Gi","limits.cpu":"4"`)}, 2},
		{"other", nil, []string{quota(`"limits.memory":"1Gi"`)}, 0},
		{"shop", nil, []string{quota(`"requests.memory":"1Gi","pods":"4"`)}, 0},
		{"shop", Options{"memory-limit": "64Mi"}, []string{quota(`"limits.memory":"1Gi","limits.cpu":"4"`)}, 1},
		{"shop", nil, []string{quota(`"limits.memory":"1Gi"`), limits(`{"type":"Container","default":{"memory":"64Mi"}}`)}, 0},
		{"shop", nil, []string{quota(`"limits.memory":"1Gi"`), limits(`{"type":"Pod","max":{"memory":"64Mi"}}`)}, 1},
	} {
		var quotas []Quota
		for _, o := range c.objects {
			if q, ok := ReadQuota(parse(t, o)); ok {
				quotas = append(quotas, q)
			}
		}
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","ports":[{"containerPort":8080}]}]}}`), c.said)
		if got := Unlimited(Pods{Namespace: c.namespace, Outcome: out}, quotas); len(got) != c.want {
			t.Errorf("%s: got %q, want %d warnings", fmt.Sprint(c.namespace, c.said, c.objects), got, c.want)
		}
	}
}
