package netconn_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMaxConnectionsClosesIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 10)
		all := m.in(30)
		harness.Equal(t, len(closed(all[:10])), 10, "closed of the first 10")
		harness.Equal(t, m.bounds.Count(bound.MaxConnections), 20, "events")
		harness.Equal(t, m.bounds.States(time.Now())[0].Peer, "10.0.0.1:1234", "peer")
	})
}

func TestMaxConnectionsKeepsIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(t, 10)
		all := m.answered(10)
		time.Sleep(24 * time.Hour)
		for range 100 {
			all[9].Leave()
			all[9] = m.answered(1)[0]
		}
		harness.Equal(t, closed(all), "", "closed")
		harness.Equal(t, m.bounds.Count(bound.MaxConnections), 0, "events")
	})
}
