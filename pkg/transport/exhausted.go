package transport

import (
	"errors"
	"slices"
	"syscall"
)

// Exhausted reports whether err, which is the error of a dial or an accept, means that the process
// or the host has no file descriptor or no memory for another socket.
func Exhausted(err error) bool {
	all := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}
	return slices.ContainsFunc(all, func(target error) bool { return errors.Is(err, target) })
}
