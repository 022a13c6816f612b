package rewrite

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// HPACK can encode the field in a few bytes, so the received header section uses little memory.
func TestLongFieldIsReleased(t *testing.T) {
	const long = 40 << 10
	r := Request{
		Method: "GET", Target: "/", Peer: "192.0.2.1", Length: -1,
		Fields: []wire.Field{{Name: []byte("X-Forwarded-For"), Value: []byte(strings.Repeat("a", long))}},
	}
	c := Call{Request: &r}
	c.Memory.Account = netconn.NewBudget(0, nil).Open("", nil)
	if !c.ReserveHead(10 << 10) {
		t.Fatal("no memory for the header section")
	}
	sent := len(r.AppendHTTP1(nil))
	if got := c.Memory.Held(); got < sent+long {
		t.Errorf("reserved %d bytes, want at least %d for the header section and %d for a copy of the field", got, sent, long)
	}
	if got := cap(r.chain); got > chainKept {
		t.Errorf("the request keeps %d bytes of the field, want at most %d", got, chainKept)
	}
}

// An ingress can send many uploads over one connection. The budget is that of a container with a memory limit of 64
// MiB.
func TestManyUploadsFitSmallBudget(t *testing.T) {
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
