//go:build !windows && (!linux || race)

package netconn

import (
	"errors"
	"syscall"
)

// The following functions use package syscall, because the race detector derives the order of reads and writes only
// from the functions of that package.

// Read reads the available input. At the end of the input, it returns 0 and no error.
func Read(fd uintptr, p []byte) (n int, err error) { return interrupted(syscall.Read, fd, p) }

// Write writes as many bytes as possible without blocking.
func Write(fd uintptr, p []byte) (n int, err error) { return interrupted(syscall.Write, fd, p) }

// WriteTwo writes as many bytes of p and then q as possible without blocking.
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

// WriteNow returns 0, because this platform does not support nonblocking writes to a descriptor in blocking mode.
func WriteNow(uintptr, []byte) int { return 0 }

// Peek is like Read, but the bytes stay in the receive buffer.
func Peek(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, _, err = syscall.Recvfrom(int(fd), p, syscall.MSG_PEEK|syscall.MSG_DONTWAIT); !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

func interrupted(f func(int, []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = f(int(fd), p); !errors.Is(err, syscall.EINTR) {
			return max(n, 0), err
		}
	}
}
