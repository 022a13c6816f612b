//go:build linux && !race

package socket

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read reads what has come: n > 0, or an error, or n == 0 for the end.
func Read(fd uintptr, p []byte) (n int, err error) {
	return call(unix.SYS_RECVFROM, fd, pointer(p), uintptr(len(p)), syscall.MSG_DONTWAIT, 0, 0)
}

// Write writes what the socket takes at once, which may be less than all.
func Write(fd uintptr, p []byte) (n int, err error) {
	return call(unix.SYS_SENDTO, fd, pointer(p), uintptr(len(p)), syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, 0, 0)
}

// WriteTwo writes what the socket takes of p and q, one behind the other, at once.
func WriteTwo(fd uintptr, p, q []byte) (n int, err error) {
	pieces := [2]unix.Iovec{{Base: unsafe.SliceData(p)}, {Base: unsafe.SliceData(q)}}
	pieces[0].SetLen(len(p))
	pieces[1].SetLen(len(q))
	message := unix.Msghdr{Iov: &pieces[0]}
	message.SetIovlen(len(pieces))
	return call(unix.SYS_SENDMSG, fd, unsafe.Pointer(&message), syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, 0, 0, 0)
}

// WriteNow writes what a pipe or file takes without waiting, though it is one that
// blocks. It returns 0 where that is not known, and for every error.
func WriteNow(fd uintptr, p []byte) int {
	piece := unix.Iovec{Base: unsafe.SliceData(p)}
	piece.SetLen(len(p))
	const here = ^uintptr(0) // where the file is
	n, _ := call(unix.SYS_PWRITEV2, fd, unsafe.Pointer(&piece), 1, here, here, unix.RWF_NOWAIT)
	return n
}

// Peek reads bytes that stay in the receive buffer. Its results are those of Read.
func Peek(fd uintptr, p []byte) (n int, err error) {
	return call(unix.SYS_RECVFROM, fd, pointer(p), uintptr(len(p)), syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
}

// Silent reports whether nothing has come, not even the end.
func Silent(fd uintptr) bool {
	var one [1]byte
	_, err := Peek(fd, one[:])
	return errors.Is(err, syscall.EAGAIN)
}

// call makes a system call of which the runtime does not know. It has no need to,
// for nothing waits in it. If it knew, it would take the processor away from a
// thread that is in the kernel for more than 20 microseconds, as one is that sends
// to the loopback interface of a busy machine, and give it to another thread: a
// switch of threads for each, and a monitor that looks for them all the time.
func call(trap, fd uintptr, what unsafe.Pointer, a3, a4, a5, a6 uintptr) (n int, err error) {
	for {
		r, _, errno := syscall.RawSyscall6(trap, fd, uintptr(what), a3, a4, a5, a6)
		switch errno {
		case 0:
			return int(r), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, syscall.EAGAIN // a value that is there already
		default:
			return 0, errno
		}
	}
}

func pointer(p []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(p)) }
