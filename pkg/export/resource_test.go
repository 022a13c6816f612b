package export

import (
	"slices"
	"testing"
)

func TestTheServiceHasTheFirstNameThatIsKnown(t *testing.T) {
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
	if want := []string{"otel", "attribute", "svc", "cfg", "rev", "pod", "queue-proxy"}; !slices.Equal(got, want) {
		t.Errorf("names: got %v, want %v", got, want)
	}
	if v := (&Resource{}).all()["service.version"]; v != "unknown" {
		t.Errorf("service.version: got %v, want unknown", v)
	}
}
