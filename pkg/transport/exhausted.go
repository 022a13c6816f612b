package transport

import (
	"errors"
	"slices"
	"syscall"
)

// Exhausted reports whether a dial or an accept failed with err because the process or the host lacks a file
// descriptor or memory for another socket.
func Exhausted(err error) bool {
	all := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}
	return slices.ContainsFunc(all, func(target error) bool { return errors.Is(err, target) })
}
