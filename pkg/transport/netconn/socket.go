// This file implements reads and writes on nonblocking sockets inside the functions that are passed to a
// [syscall.RawConn].
//
// The errors are of type [syscall.Errno]. If an operation would block, the error is [syscall.EAGAIN], and the
// function must return false to wait. Interrupted system calls are repeated.

package netconn

import (
	"errors"
	"syscall"
)

// Silent reports whether no input is available. It returns false at the end of the input and after an
// error.
func Silent(fd uintptr) bool {
	var one [1]byte
	_, err := Peek(fd, one[:])
	return errors.Is(err, syscall.EAGAIN)
}
