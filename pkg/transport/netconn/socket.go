// File socket.go reads from and writes to nonblocking sockets inside the functions of a
// [syscall.RawConn].
//
// The errors are of type [syscall.Errno]. If an operation would block, the error is [syscall.EAGAIN],
// and the function of the RawConn must return false to wait. Interrupted system calls are repeated.
//
// The package also contains a pool of buffers: [Buffers].

package netconn
