package socket

import (
	"errors"
	"syscall"
)

// Exhausted reports whether err, which is the error of a dial or an accept, means that the process
// or the host has no file descriptor or no memory for another socket.
func Exhausted(err error) bool {
	for _, target := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
