package sidecar

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"

	"go.uber.org/zap"
)

// A control sets socket options before the socket is bound. See [net.ListenConfig].
type control = func(network, address string, c syscall.RawConn) error

// listenTCP listens on address, which has the form host:port. set may be nil.
//
// Package net enables Multipath TCP by default. listenTCP disables Multipath TCP because the clients of
// a pod do not use it, and because the sockets are more expensive in the kernel.
//
// If host is empty, the socket accepts IPv6 and IPv4. In an IPv6-only pod without the address 127.0.0.1,
// package net would listen only on IPv4 (see favoriteAddrFamily in package net).
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

// acceptBoth returns a control that configures an IPv6 socket to accept IPv4 and then calls set.
// set may be nil.
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

// smallBuffers limits the socket buffers of a small port.
func (s *sidecar) smallBuffers(_, _ string, c syscall.RawConn) error {
	return s.limitBuffers(c, smallUnread, smallUnsent)
}

// trafficBuffers limits the socket buffers of the connections to clients and to the user container if
// the memory limit is low.
func (s *sidecar) trafficBuffers(_, _ string, c syscall.RawConn) error {
	n := trafficBuffer(s.memoryLimit)
	if n == 0 {
		return nil
	}
	return s.limitBuffers(c, n, n)
}

const (
	// minTrafficBuffer is the minimum size of a socket buffer in bytes. With this size, a connection
	// transfers 60 MB/s at a round-trip time of 1 ms.
	minTrafficBuffer = 64 << 10
	// The size of a socket buffer is the memory limit divided by bufferFraction.
	bufferFraction = 1 << 10
	// unlimitedBuffers is the memory limit in bytes above which the kernel chooses the buffer size.
	unlimitedBuffers = 256 << 20
)

// trafficBuffer returns the size of a socket buffer in bytes, or 0 if the kernel chooses it. limit is
// the memory limit in bytes, or 0 if there is no limit.
func trafficBuffer(limit int64) int {
	if limit == 0 || limit > unlimitedBuffers {
		return 0
	}
	return max(int(limit/bufferFraction), minTrafficBuffer)
}

// limitBuffers limits the kernel memory of a connection, or of each connection that a listener accepts.
// received and unsent are the buffer sizes in bytes. The kernel uses twice this memory. Without a limit,
// a connection whose peer does not read uses up to 4 MiB, which counts as container memory. If the
// platform does not support the socket options, limitBuffers logs one warning and returns no error.
func (s *sidecar) limitBuffers(c syscall.RawConn, received, unsent int) error {
	var in, out error
	err := c.Control(func(fd uintptr) {
		in = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, received)
		out = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, unsent)
	})
	if unsupported := errors.Join(in, out); unsupported != nil {
		s.noBuffers.Do(func() { s.log.Warn("failed to limit socket buffers", zap.Error(unsupported)) })
	}
	return err
}
