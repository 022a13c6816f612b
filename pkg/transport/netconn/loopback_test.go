package netconn_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestDialUsesIPv6IfIPv4Refuses(t *testing.T) {
	for _, host := range []string{netconn.LoopbackIPv4, netconn.LoopbackIPv6} {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		harness.NoError(t, err)
		defer ln.Close()
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		conn, err := netconn.DialLoopback(t.Context(), "tcp", net.JoinHostPort(netconn.LoopbackIPv4, port))
		harness.NoError(t, err)
		harness.Equal(t, conn.RemoteAddr().String(), ln.Addr().String(), "peer")
		conn.Close()
	}
}

func TestDialReturnsIPv4Error(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	address := ln.Addr().String()
	ln.Close()
	_, err = netconn.DialLoopback(t.Context(), "tcp", address)
	if !errors.Is(err, syscall.ECONNREFUSED) || netconn.LoopbackMissing(err) {
		t.Errorf("got %v, want connection refused", err)
	}
	op, _ := errors.AsType[*net.OpError](err)
	harness.Equal(t, op.Addr.String(), address, "address of the error")
}
