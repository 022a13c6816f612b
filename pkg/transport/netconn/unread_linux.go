package netconn

import "golang.org/x/sys/unix"

// Unread returns the number of bytes in the receive buffer, or 0 on an error.
func Unread(fd uintptr) int {
	n, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
	return n
}

// ReceiveBuffer returns the size of the receive buffer in bytes, or 0 on an error. The kernel also stores its own
// data in the buffer, so only about half of the size is available for input (socket(7), SO_RCVBUF).
func ReceiveBuffer(fd uintptr) int {
	n, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	return n
}

// Ended reports whether the peer has closed its side of the connection, even if unread bytes remain.
func Ended(fd uintptr) bool {
	one := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	_, _ = unix.Poll(one, 0)
	return one[0].Revents != 0
}
