//go:build !windows && (!linux || race)

package socket

import (
	"errors"
	"syscall"
)

// The race detector takes what goes through a socket as an order in time, and has
// to learn it from package syscall.

// Read reads what has come: n > 0, or an error, or n == 0 for the end.
func Read(fd uintptr, p []byte) (n int, err error) { return again(syscall.Read, fd, p) }

// Write writes what the socket takes at once, which may be less than all.
func Write(fd uintptr, p []byte) (n int, err error) { return again(syscall.Write, fd, p) }

// WriteTwo writes what the socket takes of p and q, one behind the other, at once.
func WriteTwo(fd uintptr, p, q []byte) (n int, err error) {
	if n, err = Write(fd, p); err != nil || n < len(p) {
		return n, err
	}
	m, err := Write(fd, q)
	if n > 0 && errors.Is(err, syscall.EAGAIN) {
		err = nil // p was written
	}
	return n + m, err
}

// WriteNow writes what a pipe or file takes without waiting, though it is one that
// blocks. It returns 0 where that is not known, which is here.
func WriteNow(uintptr, []byte) int { return 0 }

// Peek reads bytes that stay in the receive buffer. Its results are those of Read.
func Peek(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, _, err = syscall.Recvfrom(int(fd), p, syscall.MSG_PEEK|syscall.MSG_DONTWAIT); !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

// Silent reports whether nothing has come, not even the end.
func Silent(fd uintptr) bool {
	var one [1]byte
	_, err := Peek(fd, one[:])
	return errors.Is(err, syscall.EAGAIN)
}

func again(f func(int, []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = f(int(fd), p); !errors.Is(err, syscall.EINTR) {
			return max(n, 0), err
		}
	}
}
