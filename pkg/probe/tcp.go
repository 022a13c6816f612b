package probe

import (
	"context"
	"errors"
	"net"
	"strconv"
	"syscall"
)

// loopback is asked when a probe names no host; when nothing listens there,
// [::1] is asked.
const (
	loopback  = "127.0.0.1"
	loopback6 = "::1"
)

// lingerSeconds is how long a closed connection may hold its socket. The kubelet
// has the same, so that frequent probes do not pile sockets up in TIME_WAIT.
const lingerSeconds = 1

// A dialer connects for a probe.
type dialer struct {
	either bool // no host was named: [::1] will do where 127.0.0.1 refuses
}

// hostOf is the host to ask and how to dial it.
func hostOf(named string) (string, dialer) {
	if named == "" {
		return loopback, dialer{either: true}
	}
	return bare(named), dialer{}
}

// Dial connects, and returns the first error when neither address answers.
func (d dialer) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var nd net.Dialer
	conn, err := nd.DialContext(ctx, network, address)
	if err != nil && d.either && wordOf(err) == Refused {
		if host, port, _ := net.SplitHostPort(address); host == loopback {
			if conn6, err6 := nd.DialContext(ctx, network, net.JoinHostPort(loopback6, port)); err6 == nil {
				conn, err = conn6, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(lingerSeconds) // fails only when the connection is gone already
	}
	return conn, nil
}

// askTCP passes when the port accepts a connection. Nothing is sent.
func askTCP(a *TCPSocketAction) (ask, string) {
	host, d := hostOf(a.Host)
	address := net.JoinHostPort(host, strconv.Itoa(a.Port.number()))
	return func(ctx context.Context) error {
		conn, err := d.Dial(ctx, "tcp", address)
		if errors.Is(err, syscall.ECONNRESET) {
			return nil // accepted, and reset before we looked; a closed port says ECONNREFUSED
		}
		if err != nil {
			return err
		}
		_ = conn.Close()
		return nil
	}, "tcp://" + address
}
