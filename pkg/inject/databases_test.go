package inject

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestImageTableRowsAreComplete(t *testing.T) {
	for _, r := range images {
		if !strings.HasPrefix(r.source, "https://") || r.reason == "" {
			t.Errorf("%s: got reason %q and source %q, want both", r.pattern, r.reason, r.source)
		}
		switch r.kind {
		case "side", "raw", "tls", imageHelper, imageProxy, imageException, imageWeb, imageAPI, imageListens:
		default:
			t.Errorf("%s: got unknown kind %q", r.pattern, r.kind)
		}
	}
}

func TestImageTableMatchesNames(t *testing.T) {
	for image, want := range map[string]string{
		"quay.io/strimzi/operator:0.40":                  "an operator",
		"registry.example/shop/order-operator@sha256:aa": "an operator",
		"ghcr.io/spiffe/spire-server:1.9":                "the SPIRE server serves gRPC over mTLS",
		"k8s.gcr.io/ingress-nginx/controller:v1":         "",
		"registry.example/operator/web:1":                "",
		"registry.example/operators:1":                   "",
		"traefik/whoamiudp:v0.2.0":                       "a UDP server",
		"registry.example/metrics-over-udp:1":            "",
	} {
		got := ""
		if rows := rowsOf(&corev1.Container{Image: image}); len(rows) > 0 {
			got = rows[0].reason
		}
		harness.Equal(t, got, want, image)
	}
}
