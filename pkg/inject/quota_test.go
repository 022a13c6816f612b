package inject

import (
	"fmt"
	"strings"
	"testing"
)

// A ResourceQuota for limits requires a limit for each container.
func TestQuotaViolationIsReported(t *testing.T) {
	quota := func(hard string) string {
		return `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q","namespace":"shop"},"spec":{"hard":{` + hard + `}}}`
	}
	limits := func(limits string) string {
		return `{"apiVersion":"v1","kind":"LimitRange","metadata":{"name":"l"},"spec":{"limits":[` + limits + `]}}`
	}
	for _, c := range []struct {
		namespace string
		opts      Options
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
		{"shop", nil, []string{quota(`"limits.memory":"1Gi"`), limits(`{"type":"Container","max":{"memory":"64Mi"}}`)}, 0},
		// Quotas for other resources do not require limits.
		{"shop", nil, []string{quota(`"limits.ephemeral-storage":"1Gi"`)}, 0},
		{"shop", nil, []string{strings.Replace(quota(`"limits.memory":"1Gi"`), `"hard"`, `"scopes":["Terminating"],"hard"`, 1)}, 0},
		{"shop", nil, []string{limits(`{"type":"Container","min":{"memory":"64Mi"}}`)}, 1},
		{"shop", nil, []string{limits(`{"type":"Container","min":{"memory":"32Mi","cpu":"10m"}}`)}, 0},
		{"other", nil, []string{strings.Replace(limits(`{"type":"Container","min":{"memory":"64Mi"}}`), `"l"`, `"l","namespace":"shop"`, 1)}, 0},
		{"shop", Options{"memory-request": "64Mi"}, []string{limits(`{"type":"Container","min":{"memory":"64Mi"}}`)}, 0},
		{"shop", Options{"memory-limit": "1Gi"}, []string{limits(`{"type":"Container","max":{"memory":"64Mi"}}`)}, 1},
		{"shop", Options{"cpu-limit": "30m"}, []string{limits(`{"type":"Container","min":{"cpu":"20m"},"max":{"cpu":"50m"}}`)}, 0},
		{"shop", nil, []string{limits(`{"type":"Container","default":{"cpu":"20m"}}`)}, 1},
		{"shop", nil, []string{limits(`{"type":"Container","max":{"cpu":0.02}}`)}, 1},
		{"shop", nil, []string{limits(`{"type":"Container","min":{"memory":"1e99999999","cpu":"many"}}`)}, 0},
	} {
		var quotas []Quota
		for _, o := range c.objects {
			if q, ok := ReadQuota(parse(t, o)); ok {
				quotas = append(quotas, q)
			}
		}
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","ports":[{"containerPort":8080}]}]}}`), c.opts)
		if got := Unadmitted(Pods{Namespace: c.namespace, Outcome: out}, quotas); len(got) != c.want {
			t.Errorf("%s: got %q, want %d warnings", fmt.Sprint(c.namespace, c.opts, c.objects), got, c.want)
		}
	}
}

// With pod-level resources, a quota does not require limits for each container.
func TestPodLevelResourcesSatisfyQuota(t *testing.T) {
	q, _ := ReadQuota(parse(t, `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q"},"spec":{"hard":{"limits.memory":"1Gi"}}}`))
	out := Inject(parse(t, `{"metadata":{},"spec":{"resources":{"limits":{"memory":"1Gi"}},"containers":[{"name":"a","ports":[{"containerPort":8080}]}]}}`), nil)
	if got := Unadmitted(Pods{Outcome: out}, []Quota{q}); len(got) > 0 {
		t.Errorf("got %q, want no warning", got)
	}
}
