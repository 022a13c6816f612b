package export

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestResourceServiceName(t *testing.T) {
	all := Resource{
		ServiceName: "otel", Attributes: map[string]string{"service.name": "attribute"},
		Service: "svc", Configuration: "cfg", Revision: "rev", Pod: "pod",
	}
	var got []string
	for _, forget := range []func(){
		func() {}, func() { all.ServiceName = "" }, func() { all.Attributes = nil }, func() { all.Service = "" },
		func() { all.Configuration = "" }, func() { all.Revision = "" }, func() { all.Pod = "" },
	} {
		forget()
		got = append(got, all.Name())
	}
	harness.Equal(t, got, []string{"otel", "attribute", "svc", "cfg", "rev", "pod", "queue-proxy"}, "names")
	harness.Equal(t, (&Resource{}).all()["service.version"], "unknown", "service.version")
}
