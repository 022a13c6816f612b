package sidecar

import (
	"context"
	"errors"
	"net"
	"syscall"
)

// A control sets options of a socket before it is bound, as [net.ListenConfig] has it.
type control = func(network, address string, c syscall.RawConn) error

// listenTCP listens on address, host:port. set may be nil.
//
// Multipath TCP, which package net would listen for, is off: nobody speaks it to a pod,
// and its sockets cost the kernel more, at start and for each connection.
func listenTCP(ctx context.Context, address string, set control) (net.Listener, error) {
	how := net.ListenConfig{Control: set}
	how.SetMultipathTCP(false)
	return how.Listen(ctx, "tcp", address)
}

// smallBuffers bounds what the kernel keeps for the connections of a listener, which it
// charges the container with: it would be up to 4 MiB for each that does not read.
func smallBuffers(_, _ string, c syscall.RawConn) error {
	var in, out error
	err := c.Control(func(fd uintptr) {
		in = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, smallUnread)
		out = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, smallUnsent)
	})
	return errors.Join(err, in, out)
}
