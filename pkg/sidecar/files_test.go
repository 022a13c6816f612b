package sidecar

import (
	"strings"
	"syscall"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observe/status"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestDivideFilesBetweenClientsAndApp(t *testing.T) {
	for _, row := range []struct {
		limit, maxClients, concurrency int
		want                           descriptors
	}{
		{0, 0, 0, descriptors{clients: 0, app: 0, appH2: 1000, small: 256, handshakes: 64}},
		{0, 7, 0, descriptors{clients: 7, app: 0, appH2: 1000, small: 256, handshakes: 64}},
		{1024, 0, 0, descriptors{clients: 368, app: 368, appH2: 368, small: 32, handshakes: 32}},
		{1024, 0, 4, descriptors{clients: 716, app: 20, appH2: 20, small: 32, handshakes: 32}},
		{1024, 0, 1000, descriptors{clients: 368, app: 368, appH2: 368, small: 32, handshakes: 32}},
		{1024, 100, 0, descriptors{clients: 100, app: 636, appH2: 636, small: 32, handshakes: 32}},
		{1024, 5000, 0, descriptors{clients: 368, app: 368, appH2: 368, small: 32, handshakes: 32}},
		{4096, 0, 0, descriptors{clients: 1696, app: 1696, appH2: 1000, small: 128, handshakes: 64}},
		{1 << 20, 0, 0, descriptors{clients: 523680, app: 523680, appH2: 1000, small: 256, handshakes: 64}},
	} {
		row.want.limit = row.limit
		harness.Equal(t, divide(row.limit, row.maxClients, row.concurrency), row.want, "division")
	}
}

// The sum of all descriptors is at most the limit. HTTP/1 and HTTP/2 share the descriptors for the user container.
// Without a concurrency limit, there are at least as many connections to the user container as client connections.
func TestDivideFilesFitsLimit(t *testing.T) {
	for limit := 256; limit < 20000; limit += 7 {
		for _, concurrency := range []int{0, 1, 10, 100, 1000} {
			for _, maxClients := range []int{0, 1, 300, 100000} {
				d := divide(limit, maxClients, concurrency)
				sum := d.clients + netconn.MaxClosing + d.app + smallPorts*d.small + d.handshakes + otherFiles
				if sum > limit || d.clients < 1 || d.app < 1 || concurrency == 0 && d.app < d.clients {
					t.Fatalf("limit %d, concurrency %d, MAX_CONNECTIONS %d: got %+v with a sum of %d", limit, concurrency, maxClients, d, sum)
				}
			}
		}
	}
	for limit := 1; limit < 256; limit++ { // these limits are too small for the reservations
		if d := divide(limit, 0, 0); d.clients < 1 || d.app < 1 || d.appH2 < 1 || d.small < 1 {
			t.Fatalf("limit %d: got %+v, want at least 1 of each", limit, d)
		}
	}
}

func TestLimitSourceIsLowestLimit(t *testing.T) {
	for _, row := range []struct {
		files, setting int
		memory         int64
		want           status.LimitSource
	}{
		{0, 0, 0, ""},
		{20000, 0, 0, status.SourceFiles},
		{20000, 0, 64 << 20, status.SourceMemory},
		{20000, 100, 64 << 20, status.SourceSetting},
		{1024, 0, 1 << 30, status.SourceFiles},
		{1024, 5000, 0, status.SourceFiles},
		{0, 5000, 0, status.SourceSetting},
		{0, 0, 64 << 20, status.SourceMemory},
	} {
		most := maxConnections(row.setting, row.memory)
		harness.Equal(t, limitSource(divide(row.files, most, 0).clients, row.setting, most), row.want, "source for", row.files, row.setting, row.memory)
	}
}

func TestResourceHintNamesLimit(t *testing.T) {
	s := &shortages{files: descriptors{limit: 1024}}
	for err, want := range map[syscall.Errno][2]string{
		syscall.EMFILE:        {"file descriptors", "open files (1024)"},
		syscall.ENFILE:        {"file descriptors of the node", "fs.file-max"},
		syscall.EADDRNOTAVAIL: {"local ports", "ip_local_port_range"},
		syscall.ENOBUFS:       {"memory for sockets", "memory limit"},
		syscall.ENOMEM:        {"memory for sockets", "memory limit"},
	} {
		name, hint := s.missingResource(acceptError(err))
		if name != want[0] || !strings.Contains(hint, want[1]) {
			t.Errorf("%v: got %q and %q, want %q and a hint with %q", err, name, hint, want[0], want[1])
		}
	}
}
