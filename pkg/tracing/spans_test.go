package tracing

import (
	"net/http"
	"strings"
	"testing"
)

func TestTheServerSpanHasTheRouteTag(t *testing.T) {
	tracer := newTracer(t, always, W3C)
	for _, c := range []struct{ tag, byDefault, want string }{
		{"", "", "kn:disabled"},
		{"", "true", "kn:default"},
		{"blue", "true", "kn:undefined"},
		{"blue", "", "blue"},
		{"blue", "false", "blue"},
		{"Blue", "", "kn:tagged"},
		{"kn:default", "", "kn:tagged"},
		{strings.Repeat("a", 64), "", "kn:tagged"},
	} {
		in := http.Header{"Knative-Serving-Tag": {c.tag}, "Knative-Serving-Default-Route": {c.byDefault}}
		o := get("/")
		o.Exchange = carrying(in)
		spans := tracer.Begin(carrying(in)).spans(o)
		if got := spans[0].Attributes["kn.route.tag"]; got != c.want {
			t.Errorf("tag %q, default %q: got %v, want %s", c.tag, c.byDefault, got, c.want)
		}
		for _, s := range spans[1:] {
			if got, ok := s.Attributes["kn.route.tag"]; ok {
				t.Errorf("%s: got the tag %v, want it in the server span alone", s.Name, got)
			}
		}
	}
}
