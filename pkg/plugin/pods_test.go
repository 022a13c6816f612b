package plugin

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestSidecarOfFindsContainer(t *testing.T) {
	const running = `"status":{"phase":"Running","podIP":"10.0.0.1","containerStatuses":[{"name":"queue-proxy","ready":true,"state":{"running":{}}}]}`
	found := Sidecar{Namespace: "shop", Pod: "web", Workload: "pod/web", Metrics: 9091, Stats: 9090, Ready: true}
	ports := func(metrics, stats int) Sidecar { return Sidecar{"shop", "web", "pod/web", metrics, stats, true, ""} }
	absent := func(why string) Sidecar { return Sidecar{"shop", "web", "pod/web", 9091, 9090, false, why} }
	status := func(state string) string {
		return `"spec":{"containers":[{"name":"queue-proxy"}]},"status":{"phase":"Running","podIP":"10.0.0.1","containerStatuses":[{"name":"queue-proxy","state":` + state + `}]}`
	}
	for name, c := range map[string]struct {
		pod  string
		want []Sidecar
	}{
		"container":            {`"spec":{"containers":[{"name":"app"},{"name":"queue-proxy"}]},` + running, []Sidecar{found}},
		"init container":       {`"spec":{"initContainers":[{"name":"queue-proxy","restartPolicy":"Always"}]},` + strings.Replace(running, "containerStatuses", "initContainerStatuses", 1), []Sidecar{found}},
		"init without restart": {`"spec":{"initContainers":[{"name":"queue-proxy"}]},` + running, nil},
		"no sidecar":           {`"spec":{"containers":[{"name":"app"}]},` + running, nil},
		"completed pod":        {`"spec":{"containers":[{"name":"queue-proxy"}]},"status":{"phase":"Succeeded"}`, nil},
		"other ports":          {`"spec":{"containers":[{"name":"queue-proxy","env":[{"name":"METRICS_PORT","value":"19091"},{"name":"AUTOSCALER_PORT","value":"19090"}]}]},` + running, []Sidecar{ports(19091, 19090)}},
		"Knative endpoint":     {`"spec":{"containers":[{"name":"queue-proxy","env":[{"name":"SERVING_POD","valueFrom":{}},{"name":"OBSERVABILITY_CONFIG","value":"{\"requestMetrics\":{\"protocol\":\"prometheus\",\"endpoint\":\":9099\"}}"}]}]},` + running, []Sidecar{ports(9099, 9090)}},
		"invalid settings":     {`"spec":{"containers":[{"name":"queue-proxy","env":[{"name":"METRICS_PORT","value":"x"}],"ports":[{"name":"http-usermetric","containerPort":9093},{"name":"http-autometric","containerPort":9092}]}]},` + running, []Sidecar{ports(9093, 9092)}},
		"service link":         {`"spec":{"containers":[{"name":"queue-proxy","env":[{"name":"METRICS_PORT","value":"tcp://10.0.0.1:80"}]}]},` + running, []Sidecar{found}},
		"waiting container":    {status(`{"waiting":{"reason":"ImagePullBackOff"}}`), []Sidecar{absent("ImagePullBackOff")}},
		"terminated container": {status(`{"terminated":{"reason":"OOMKilled"}}`), []Sidecar{absent("OOMKilled")}},
		"pod without a node":   {`"spec":{"containers":[{"name":"queue-proxy"}]},"status":{"phase":"Pending"}`, []Sidecar{absent("Pending")}},
		"container not ready":  {status(`{"running":{}}`), []Sidecar{absent("")}},
		"other container name": {`"spec":{"containers":[{"name":"queue"}]},` + running, nil},
	} {
		var pod corev1.Pod
		harness.NoError(t, json.Unmarshal([]byte(`{"metadata":{"name":"web","namespace":"shop"},`+c.pod+`}`), &pod))
		var got []Sidecar
		if s, ok := SidecarOf(&pod, "queue-proxy"); ok {
			got = append(got, s)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestSidecarOfReturnsWorkload(t *testing.T) {
	owner := func(kind, name string) string {
		return `"ownerReferences":[{"kind":"Node","name":"n"},{"kind":"` + kind + `","name":"` + name + `","controller":true}]`
	}
	for metadata, want := range map[string]string{
		`"labels":{"pod-template-hash":"5d8f"},` + owner("ReplicaSet", "web-5d8f"): "deployment/web",
		owner("ReplicaSet", "web-5d8f"):                                            "replicaset/web-5d8f",
		owner("StatefulSet", "db"):                                                 "statefulset/db",
		`"labels":{}`:                                                              "pod/web-1",
	} {
		var pod corev1.Pod
		harness.NoError(t, json.Unmarshal([]byte(`{"metadata":{"name":"web-1",`+metadata+`},"spec":{"containers":[{"name":"queue-proxy"}]}}`), &pod))
		sidecar, _ := SidecarOf(&pod, "queue-proxy")
		harness.Equal(t, sidecar.Workload, want, metadata)
	}
}
