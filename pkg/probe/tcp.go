package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
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

// A dialer connects for one probe, whose tries never overlap.
type dialer struct {
	either bool      // no host was named: [::1] will do where nothing listens on 127.0.0.1
	asked6 time.Time // when [::1] was last asked
}

// While nothing listens, [::1] is asked less often than 127.0.0.1: nearly every
// app listens there, and the second connect costs as much as the first.
const ask6Every = 40 * time.Millisecond

// hostOf is the host to ask and how to dial it.
func hostOf(named string) (string, *dialer) {
	if named == "" {
		return loopback, &dialer{either: true}
	}
	return bare(named), &dialer{}
}

// dial opens a connection. If both addresses fail, it returns the error of 127.0.0.1, or the error
// of [::1] if the host has no address 127.0.0.1.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := connect(ctx, network, address)
	missing := errors.Is(err, syscall.ENETUNREACH)
	if d.either && (missing || nothingListens(err) && time.Since(d.asked6) >= ask6Every) {
		if host, port, _ := net.SplitHostPort(address); host == loopback {
			d.asked6 = time.Now()
			conn6, err6 := connect(ctx, network, net.JoinHostPort(loopback6, port))
			switch {
			case err6 == nil:
				conn, err, d.asked6 = conn6, nil, time.Time{}
			case missing:
				err = err6
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

// nothingListens reports whether a dial failed because the port is closed, or because no ephemeral port is left for connections to 127.0.0.1.
func nothingListens(err error) bool {
	return err != nil && (wordOf(err) == wordRefused || errors.Is(err, syscall.EADDRNOTAVAIL))
}

// connect dials. A loopback address accepts or refuses at once, so it is dialled
// without the goroutine that net starts to watch a context, which makes the tries
// against an app that is not there yet cheaper by a third. Where it does neither
// (a full backlog, a firewall) it is dialled again in the ordinary way.
func connect(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	if to, err := netip.ParseAddrPort(address); err == nil && to.Addr().IsLoopback() && ctx.Err() == nil {
		const atOnce = 20 * time.Millisecond
		conn, err := d.DialContext(unwatched{ctx, time.Now().Add(atOnce)}, network, address)
		if err == nil || wordOf(err) != wordTimeout {
			return conn, err
		}
	}
	return d.DialContext(ctx, network, address)
}

// An unwatched context has a deadline and cannot be cancelled before it.
type unwatched struct {
	context.Context
	end time.Time
}

func (u unwatched) Deadline() (time.Time, bool) { return u.end, true }
func (u unwatched) Done() <-chan struct{}       { return nil }
func (u unwatched) Err() error                  { return nil }

// askTCP passes when the port accepts a connection. Nothing is sent.
func askTCP(a *TCPSocketAction) (try ask, where string) {
	host, d := hostOf(a.Host)
	address := net.JoinHostPort(host, strconv.Itoa(a.Port.number()))
	return func(ctx context.Context) error {
		conn, err := d.dial(ctx, "tcp", address)
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
