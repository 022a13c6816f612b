package http2

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// The budget can close a connection before newServerConn returns.
func TestNewConnectionIsClosedForMemory(t *testing.T) {
	const limit, connections = 1 << 20, 2000
	b := netconn.NewBudget(limit, nil)
	s := New(rewrite.ServerSettings{Memory: b}, nil, nil, http2client.New(http2client.Settings{}))
	other := b.Open("other", nil)
	other.Close() // the budget can only close the new connections
	other.Add(2 * limit)
	var stopped atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stopped.Load() {
			other.Add(1)
			other.Sub(1)
			runtime.Gosched()
		}
	}()
	_, server := harness.Pair(t)
	for range connections {
		l, err := netconn.New(server)
		harness.NoError(t, err)
		newServerConn(s, l, nil).memory.Close()
	}
	stopped.Store(true)
	<-done
}
