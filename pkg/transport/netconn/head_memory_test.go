package netconn_test

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestHeadMemoryIsPartOfBudget(t *testing.T) {
	const limit = 1 << 20
	budget := netconn.NewBudget(limit, nil)
	memory := netconn.HeadMemory{Account: budget.Open("peer", func() {})}
	for _, c := range []struct {
		n, copies int
		ok        bool
		held      int
	}{
		{netconn.LongHead, 2, true, 0},
		{netconn.LongHead + 1, 1, true, netconn.LongHead + 1},
		{2 * netconn.LongHead, 2, true, 4 * netconn.LongHead},
		{netconn.LongHead + 1, 2, true, 4 * netconn.LongHead},
		{limit, 1, false, 4 * netconn.LongHead},
	} {
		harness.Equal(t, memory.Reserve(c.n, c.copies), c.ok, c.n, c.copies)
		used, _ := budget.Usage()
		harness.Equal(t, memory.Held(), c.held, "reserved bytes")
		harness.Equal(t, int(used), c.held, "bytes of the budget")
	}
	for range 2 {
		memory.Release()
		used, _ := budget.Usage()
		harness.Equal(t, used, 0, "bytes of the budget after the release")
	}
	if !new(netconn.HeadMemory).Reserve(limit, 2) {
		t.Error("got false without an account, want true")
	}
}
