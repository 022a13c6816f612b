package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// Addresses for probes without a host. loopback6 is used only if no server listens on loopback.
const (
	loopback  = "127.0.0.1"
	loopback6 = "::1"
)

// lingerSeconds is the linger time of sockets in seconds, as in the kubelet. It prevents frequent probes from
// accumulating sockets in TIME_WAIT.
const lingerSeconds = 1

// A dialer opens the connections of one probe. The attempts of a probe never overlap.
type dialer struct {
	bothLoopbacks bool      // the probe has no host, so [::1] is also dialed if no server listens on 127.0.0.1
	dialed6       time.Time // time of the last attempt to connect to [::1]
}

// loopback6Interval is the minimum time between two attempts to connect to [::1] while no server listens on
// 127.0.0.1. It is longer than minRedialInterval, because most applications listen on 127.0.0.1, and a
// second connection doubles the cost of a probe.
const loopback6Interval = 40 * time.Millisecond

// hostOf returns the host that a probe connects to and the dialer of the probe. named is the host field of the probe.
func hostOf(named string) (string, *dialer) {
	if named == "" {
		return loopback, &dialer{bothLoopbacks: true}
	}
	return bare(named), &dialer{}
}

// dial opens a connection. If bothLoopbacks is true and no server listens on 127.0.0.1, it also dials
// [::1]. If both dials fail, it returns the error for 127.0.0.1, or the error for [::1] if the host
// does not support IPv4.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := connect(ctx, network, address)
	missing := errors.Is(err, syscall.ENETUNREACH)
	if d.bothLoopbacks && (missing || nothingListens(err) && time.Since(d.dialed6) >= loopback6Interval) {
		if host, port, _ := net.SplitHostPort(address); host == loopback {
			d.dialed6 = time.Now()
			conn6, err6 := connect(ctx, network, net.JoinHostPort(loopback6, port))
			switch {
			case err6 == nil:
				conn, err, d.dialed6 = conn6, nil, time.Time{}
			case missing:
				err = err6
			}
		}
	}
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(lingerSeconds) // an error means that the connection is already closed
	}
	return conn, nil
}

// nothingListens reports whether a dial failed because the port is closed, or because there is no free local port
// for 127.0.0.1.
func nothingListens(err error) bool {
	return err != nil && (wordOf(err) == observation.WordRefused || errors.Is(err, syscall.EADDRNOTAVAIL))
}

// connect dials an address. A connection to a loopback address is usually accepted or refused immediately. The first
// dial therefore uses a context that cannot be canceled, so that package net does not start a goroutine to wait for
// the context. This reduces the cost of a refused attempt by a third. If the first dial times out, for example because
// the backlog is full, connect dials again with ctx.
func connect(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	if to, err := netip.ParseAddrPort(address); err == nil && to.Addr().IsLoopback() && ctx.Err() == nil {
		const atOnce = 20 * time.Millisecond
		conn, err := d.DialContext(unwatched{ctx, time.Now().Add(atOnce)}, network, address)
		if err == nil || wordOf(err) != observation.WordTimeout {
			return conn, err
		}
	}
	return d.DialContext(ctx, network, address)
}

// An unwatched context has a deadline and cannot be canceled.
type unwatched struct {
	context.Context
	end time.Time
}

func (u unwatched) Deadline() (time.Time, bool) { return u.end, true }
func (u unwatched) Done() <-chan struct{}       { return nil }
func (u unwatched) Err() error                  { return nil }

// newTCPAttempt returns an attempt that passes if the port accepts a connection. It does not send data.
func newTCPAttempt(a *TCPSocketAction) (try attemptFunc, where string) {
	host, d := hostOf(a.Host)
	address := net.JoinHostPort(host, strconv.Itoa(a.Port.number()))
	return func(ctx context.Context) error {
		conn, err := d.dial(ctx, "tcp", address)
		if errors.Is(err, syscall.ECONNRESET) {
			return nil // the server accepted the connection and closed it; a closed port returns ECONNREFUSED
		}
		if err != nil {
			return err
		}
		_ = conn.Close()
		return nil
	}, "tcp://" + address
}
