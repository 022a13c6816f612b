package sidecar

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"

	"go.uber.org/zap"
)

// A control sets options of a socket before it is bound, as [net.ListenConfig] has it.
type control = func(network, address string, c syscall.RawConn) error

// listenTCP listens on address, host:port. set may be nil.
//
// Multipath TCP, which package net would listen for, is off: nobody speaks it to a pod,
// and its sockets cost the kernel more, at start and for each connection.
//
// If host is empty, the socket accepts IPv6 and IPv4. Package net uses IPv4 only if there is no
// 127.0.0.1 (see the function favoriteAddrFamily of the package), which is the family that an
// IPv6-only pod does not have.
func listenTCP(ctx context.Context, address string, set control) (net.Listener, error) {
	how := net.ListenConfig{Control: set}
	how.SetMultipathTCP(false)
	if strings.HasPrefix(address, ":") {
		both := how
		both.Control = acceptBoth(set)
		ln, err := both.Listen(ctx, "tcp6", address)
		if err == nil || isConfigError(err) {
			return ln, err
		}
	}
	return how.Listen(ctx, "tcp", address)
}

// acceptBoth returns a control that makes an IPv6 socket accept IPv4 and that then calls set, if
// set is not nil.
func acceptBoth(set control) control {
	return func(network, address string, c syscall.RawConn) error {
		var option error
		err := c.Control(func(fd uintptr) {
			option = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0)
		})
		if err = errors.Join(err, option); err != nil || set == nil {
			return err
		}
		return set(network, address, c)
	}
}

// smallBuffers limits the socket buffers of the small ports.
func (s *sidecar) smallBuffers(_, _ string, c syscall.RawConn) error {
	return s.limitBuffers(c, smallUnread, smallUnsent)
}

// clientBuffers limits the socket buffers of clients if the memory limit is low.
func (s *sidecar) clientBuffers(_, _ string, c syscall.RawConn) error {
	n := clientBuffer(s.memoryLimit)
	if n == 0 {
		return nil
	}
	return s.limitBuffers(c, n, n)
}

const (
	// minClientBuffer is the minimum size of a socket buffer of a client, in bytes. A connection with
	// this size transfers 60 MB per second if the round-trip time is 1 ms.
	minClientBuffer = 64 << 10
	// bufferFraction is the part of the memory limit that is the size of a socket buffer of a client,
	// as its denominator.
	bufferFraction = 1 << 10
	// unlimitedBuffers is the memory limit, in bytes, above which the kernel sets the size.
	unlimitedBuffers = 256 << 20
)

// clientBuffer returns the size of a socket buffer of a client for a memory limit, both in bytes, or 0
// if the kernel sets the size. Without a memory limit, limit is 0.
func clientBuffer(limit int64) int {
	if limit == 0 || limit > unlimitedBuffers {
		return 0
	}
	return max(int(limit/bufferFraction), minClientBuffer)
}

// limitBuffers limits the memory that the kernel uses for each connection of a listener. received and
// unsent are numbers of bytes, for which the kernel uses twice as much. Without the limit, a connection that
// does not read uses up to 4 MiB, which counts as memory of the container. Some platforms do not
// support the options, so an error is only logged, once.
func (s *sidecar) limitBuffers(c syscall.RawConn, received, unsent int) error {
	var in, out error
	err := c.Control(func(fd uintptr) {
		in = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, received)
		out = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, unsent)
	})
	if unsupported := errors.Join(in, out); unsupported != nil {
		s.noBuffers.Do(func() { s.log.Warn("socket buffers are not limited", zap.Error(unsupported)) })
	}
	return err
}
