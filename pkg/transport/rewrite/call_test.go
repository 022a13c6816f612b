package rewrite

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// An ingress can send many uploads over one connection. The budget is the one of a container with a memory
// limit of 64 MiB.
func TestUploadsOfOneConnectionFitSmallBudget(t *testing.T) {
	const uploads, request = 250, 12 << 10
	a := netconn.NewBudget(21<<20, nil).Open("", nil)
	defer a.Close()
	all := make([]Call, uploads)
	for i := range all {
		all[i].Memory.Account = a
		if !a.Admit(request) || !all[i].ReserveBody() {
			t.Fatalf("no memory for upload %d of %d", i, uploads)
		}
	}
	if size := all[0].BodyBuffer(); size != largeBodyBuffer {
		t.Errorf("got a buffer of %d bytes for the first upload, want %d", size, largeBodyBuffer)
	}
	for i := range all {
		all[i].ReleaseBody()
		a.Sub(request)
	}
}
