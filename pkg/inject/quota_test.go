package inject

import (
	"fmt"
	"strings"
	"testing"
)

// A ResourceQuota for limits requires that each container sets a limit.
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
		if got := Unadmitted(Pods{Namespace: c.namespace, Outcome: out}, nil, quotas); len(got) != c.want {
			t.Errorf("%s: got %q, want %d warnings", fmt.Sprint(c.namespace, c.opts, c.objects), got, c.want)
		}
	}
}

// With pod-level resources, a quota does not require limits for each container.
func TestPodLevelResourcesSatisfyQuota(t *testing.T) {
	q, _ := ReadQuota(parse(t, `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q"},"spec":{"hard":{"limits.memory":"1Gi"}}}`))
	template := parse(t, `{"metadata":{},"spec":{"resources":{"limits":{"memory":"1Gi"}},"containers":[{"name":"a","ports":[{"containerPort":8080}]}]}}`)
	out := Inject(template, nil)
	if got := Unadmitted(Pods{Outcome: out}, template, []Quota{q}); len(got) > 0 {
		t.Errorf("got %q, want no warning", got)
	}
}

// The API server rejects a pod if the pod requests more than the ResourceQuota permits for all pods.
func TestPodThatExceedsQuotaIsReported(t *testing.T) {
	const one = `[{"name":"a","ports":[{"containerPort":8080}],"resources":{"requests":{"cpu":"1"},"limits":{"cpu":"1","memory":"1Gi"}}}]`
	const (
		inits    = `"initContainers":[{"name":"i","resources":{"requests":{"cpu":"2"}}}],`
		proxies  = `"initContainers":[{"name":"r","restartPolicy":"Always","resources":{"requests":{"cpu":"1"}}},{"name":"i","resources":{"requests":{"cpu":"1.1"}}}],`
		podLevel = `"resources":{"requests":{"cpu":"3"}},`
	)
	for _, c := range []struct {
		pod  string // additional fields of the pod
		opts Options
		spec string // fields of the quota
		want string // part of the warning; "" if there is no warning
	}{
		{"", nil, `"hard":{"requests.cpu":"1"}`, "permits at most 1 of requests.cpu, but the pod with the sidecar requests 1025m; increase the quota, or set the option cpu-request"},
		{"", nil, `"hard":{"cpu":"1"}`, "requests 1025m"},
		{"", Options{"mode": "native"}, `"hard":{"cpu":1}`, "requests 1025m"},
		{"", nil, `"hard":{"cpu":"1025m"}`, ""},
		{"", nil, `"hard":{"memory":"1Gi"}`, "requests 1056Mi"}, // the memory request of the container defaults to its limit
		{"", nil, `"hard":{"requests.memory":"1056Mi"}`, ""},
		{"", Options{"memory-limit": "64Mi", "cpu-limit": "1"}, `"hard":{"limits.memory":"1Gi","limits.cpu":"2"}`, "the limit of the pod with the sidecar is 1088Mi; increase the quota, or set the option memory-limit"},
		{"", Options{"ephemeral-storage-request": "2Gi"}, `"hard":{"requests.ephemeral-storage":"1Gi"}`, "requests 2Gi"},
		{"", nil, `"hard":{"pods":"0"}`, "ResourceQuota q permits no pods"},
		{"", nil, `"hard":{"count/pods":"0"}`, "permits no pods"},
		{"", nil, `"hard":{"pods":"1"}`, ""},
		{inits, nil, `"hard":{"cpu":"1.5"}`, "requests 2"},
		{inits, nil, `"hard":{"cpu":"2"}`, ""},
		{proxies, nil, `"hard":{"cpu":"2"}`, "requests 2100m"},
		{proxies, Options{"mode": "native"}, `"hard":{"cpu":"2100m"}`, ""},
		{podLevel, nil, `"hard":{"cpu":"2"}`, "requests 3"},
		{podLevel, nil, `"hard":{"cpu":"3"}`, ""},
		{"", nil, `"scopes":["NotTerminating","NotBestEffort"],"hard":{"pods":"0"}`, "permits no pods"},
		{"", nil, `"scopes":["BestEffort"],"hard":{"pods":"0"}`, ""},
		{"", nil, `"scopeSelector":{"matchExpressions":[{"scopeName":"PriorityClass","operator":"In","values":["high"]}]},"hard":{"pods":"0"}`, ""},
		{"", nil, `"hard":{"cpu":"1e99999999","memory":"many","pods":-1}`, "permits no pods"},
	} {
		q, _ := ReadQuota(parse(t, `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q"},"spec":{`+c.spec+`}}`))
		template := parse(t, `{"metadata":{},"spec":{`+c.pod+`"containers":`+one+`}}`)
		got := strings.Join(Unadmitted(Pods{Outcome: Inject(template, c.opts)}, template, []Quota{q}), "\n")
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s %v %s: got %q, want %q", c.pod, c.opts, c.spec, got, c.want)
		}
	}
}
