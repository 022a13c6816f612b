//go:build linux && !race

package netconn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read reads the available input. At the end of the input, it returns 0 and no error.
func Read(fd uintptr, p []byte) (n int, err error) {
	return call(unix.SYS_RECVFROM, fd, pointer(p), uintptr(len(p)), syscall.MSG_DONTWAIT, 0, 0)
}

// Write writes as many bytes as possible without blocking.
func Write(fd uintptr, p []byte) (n int, err error) {
	return call(unix.SYS_SENDTO, fd, pointer(p), uintptr(len(p)), syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, 0, 0)
}

// WriteTwo writes as many bytes of p and then q as possible without blocking.
func WriteTwo(fd uintptr, p, q []byte) (n int, err error) {
	pieces := [2]unix.Iovec{{Base: unsafe.SliceData(p)}, {Base: unsafe.SliceData(q)}}
	pieces[0].SetLen(len(p))
	pieces[1].SetLen(len(q))
	message := unix.Msghdr{Iov: &pieces[0]}
	message.SetIovlen(len(pieces))
	return call(unix.SYS_SENDMSG, fd, unsafe.Pointer(&message), syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, 0, 0, 0)
}

// WriteNow writes to a pipe or file without blocking, even if the descriptor is in blocking mode. It returns the
// number of bytes written, or 0 after an error or if the file does not support nonblocking writes.
func WriteNow(fd uintptr, p []byte) int {
	piece := unix.Iovec{Base: unsafe.SliceData(p)}
	piece.SetLen(len(p))
	const here = ^uintptr(0) // offset -1, the current file position
	n, _ := call(unix.SYS_PWRITEV2, fd, unsafe.Pointer(&piece), 1, here, here, unix.RWF_NOWAIT)
	return n
}

// Peek is like Read, but the bytes stay in the receive buffer.
func Peek(fd uintptr, p []byte) (n int, err error) {
	return call(unix.SYS_RECVFROM, fd, pointer(p), uintptr(len(p)), syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
}

// call makes a system call without notifying the Go scheduler, because the call never blocks. With a
// notification, the scheduler would take the processor away from a thread that is in the kernel for
// more than 20 microseconds, for example while it sends to the loopback interface of a busy host. Each
// time, this would cost a thread switch, and the monitor thread would have to run continuously.
func call(trap, fd uintptr, what unsafe.Pointer, a3, a4, a5, a6 uintptr) (n int, err error) {
	for {
		r, _, errno := syscall.RawSyscall6(trap, fd, uintptr(what), a3, a4, a5, a6)
		switch errno {
		case 0:
			return int(r), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, syscall.EAGAIN // a constant, which avoids an allocation
		default:
			return 0, errno
		}
	}
}

func pointer(p []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(p)) }
