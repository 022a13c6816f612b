// Package socket reads and writes where somebody else waits: inside the
// functions of a [syscall.RawConn], whose sockets never block.
//
// The errors are of type [syscall.Errno]. [syscall.EAGAIN] says that nothing can
// be done now; return false to wait. Signals that come between are no errors.
//
// It also has the buffers for who reads and writes so: [Buffers].
package socket
