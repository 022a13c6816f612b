// This file implements connections to ports of this host.

package netconn

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
)

// The loopback addresses, in the order in which they are used.
const (
	LoopbackIPv4 = "127.0.0.1"
	LoopbackIPv6 = "::1"
)

// DialLoopback connects to the port of address on 127.0.0.1. If that fails, it connects to the port on [::1]. The
// host of address is ignored. The signature is the same as for [net.Dialer.DialContext], so that
// [net/http.Transport] can use it.
func DialLoopback(ctx context.Context, network, address string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, net.JoinHostPort(LoopbackIPv4, port))
	if err == nil {
		return conn, nil
	}
	conn6, err6 := d.DialContext(ctx, network, net.JoinHostPort(LoopbackIPv6, port))
	if err6 != nil && !LoopbackMissing(err) {
		return nil, err
	}
	return conn6, err6
}

// maxHead is the maximum number of bytes of a header section that a [LoopbackClient] reads.
const maxHead = 64 << 10

// LoopbackClient returns a client for another process of the queue-proxy in this container. It does not follow
// redirects. The size of a response header section is limited, because the user container may listen on the port
// instead of the other process, and the response uses memory of this container. The caller limits the body.
func LoopbackClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DialContext: DialLoopback, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHead},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// LoopbackMissing reports whether a dial or listen failed with err because the host does not have the address.
func LoopbackMissing(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}
