package sidecar

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A failingListener returns the queued errors from Accept in order.
type failingListener struct {
	net.Listener
	errs chan error
}

func (l failingListener) Accept() (net.Conn, error) { return nil, <-l.errs }
func (l failingListener) Close() error              { return nil }

// acceptError wraps err in the same way as package net wraps an error of Accept.
func acceptError(err error) error {
	return &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
}

func TestAcceptRetriesWithoutFileDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := failingListener{errs: make(chan error, 10)}
		exhausted := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}
		for _, err := range exhausted {
			l.errs <- acceptError(err)
		}
		l.errs <- net.ErrClosed
		failed := 0
		ln := newRetryListener(l, func(error) { failed++ })
		began := time.Now()
		_, err := ln.Accept()
		harness.Equal(t, errors.Is(err, net.ErrClosed), true, "error is ErrClosed")
		harness.Equal(t, failed, len(exhausted), "reported errors")
		harness.Equal(t, time.Since(began), (1+2+4+8)*minAcceptDelay, "duration")
	})
}

func TestCloseStopsAcceptDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := failingListener{errs: make(chan error, 100)}
		for range cap(l.errs) {
			l.errs <- acceptError(syscall.EMFILE)
		}
		ln := newRetryListener(l, func(error) {})
		time.AfterFunc(time.Minute+maxAcceptDelay/3, func() { ln.Close() })
		began := time.Now()
		_, err := ln.Accept()
		harness.Equal(t, errors.Is(err, syscall.EMFILE), true, "error is EMFILE")
		harness.Equal(t, time.Since(began), time.Minute+maxAcceptDelay/3, "duration")
	})
}
