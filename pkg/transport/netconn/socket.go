// This file implements reads and writes on nonblocking sockets inside the functions that are passed to a
// [syscall.RawConn].
//
// The errors are of type [syscall.Errno]. If an operation would block, the error is [syscall.EAGAIN], and the
// function must return false to wait. Interrupted system calls are repeated.

package netconn
