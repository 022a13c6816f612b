package observation

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestGRPCStatusIsParsed(t *testing.T) {
	for value, want := range map[string]string{
		"0": "OK", "1": "CANCELLED", "4": "DEADLINE_EXCEEDED", "9": "FAILED_PRECONDITION", "10": "ABORTED", "14": "UNAVAILABLE",
		"16": "UNAUTHENTICATED", "17": "other", "99": "other", "100": "other", "00": "other", "04": "other", "-1": "other", "+1": "other",
		" 1": "other", "1x": "other", "": "other", "99999999999999999999": "other",
	} {
		got := ParseGRPCStatus(value)
		harness.Equal(t, got.String(), want, value)
		_, isCode := got.Code()
		harness.Equal(t, isCode, want != "other", value)
	}
}

func TestGRPCStatusFailed(t *testing.T) {
	failed := map[int]bool{2: true, 4: true, 8: true, 13: true, 14: true, 15: true, 17: true}
	for code := -1; code <= 17; code++ {
		harness.Equal(t, GRPCStatusOf(code).Failed(), failed[code], code)
	}
	harness.Equal(t, GRPCMissing.Failed(), true, "missing status")
	harness.Equal(t, GRPCStatusOf(-1).String(), "", "response without gRPC")
}
