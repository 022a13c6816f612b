//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// openLoop asks GET path so many times a second for a while and returns how long
// each request took, counted from the moment at which it was due. A server that
// stalls is so charged for every request that was due meanwhile, also for those
// that had to wait for a free connection; a client that waits for the answer
// before it counts on would overlook them.
//
// It is one thread on bare sockets: the microseconds of a scheduler would be
// added to every number. rate is per second, at most a million; an answer other
// than 200, or longer than 16 KB, is an error.
func openLoop(address, path string, rate, connections int, d time.Duration) ([]time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	l := &openLooper{
		request:  []byte("GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\nUser-Agent: bench\r\n\r\n"),
		interval: time.Second / time.Duration(rate),
		total:    int(d / (time.Second / time.Duration(rate))),
		clients:  map[int32]*openClient{},
	}
	defer l.close()
	if err := l.connect(address, connections); err != nil {
		return nil, err
	}
	if err := l.run(time.Now().Add(d + patience)); err != nil {
		return nil, err
	}
	return l.took, nil
}

// An openLooper is a run of openLoop.
type openLooper struct {
	request  []byte
	interval time.Duration
	total    int // requests

	epoll, timer int
	clients      map[int32]*openClient
	free         []*openClient // that have no request under way; used in turn

	start time.Time
	next  int // the number of the next request to be sent
	took  []time.Duration
}

// An openClient is one connection.
type openClient struct {
	fd      int
	due     time.Duration // of the request under way, from the start
	buffer  [16 << 10]byte
	filled  int
	waiting bool // for an answer
}

// due is when request n is to be sent, from the start.
func (l *openLooper) due(n int) time.Duration { return time.Duration(n) * l.interval }

func (l *openLooper) connect(address string, connections int) (err error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if l.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return err
	}
	const monotonic = 1 // CLOCK_MONOTONIC
	timer, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, monotonic, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errno != 0 {
		return errno
	}
	l.timer = int(timer)
	if err := l.watch(l.timer); err != nil {
		return err
	}
	for range connections {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		c := &openClient{fd: fd}
		l.clients[int32(fd)] = c
		l.free = append(l.free, c)
		if err := errors.Join(
			syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}),
			syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1),
			syscall.SetNonblock(fd, true),
			l.watch(fd),
		); err != nil {
			return fmt.Errorf("connecting to %s: %w", address, err)
		}
	}
	l.took = make([]time.Duration, 0, l.total)
	return nil
}

func (l *openLooper) watch(fd int) error {
	return syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)})
}

func (l *openLooper) close() {
	for _, c := range l.clients {
		syscall.Close(c.fd)
	}
	for _, fd := range []int{l.timer, l.epoll} {
		if fd > 0 {
			syscall.Close(fd)
		}
	}
}

// run sends every request when it is due, or as soon after as a connection is
// free, and returns when all are answered.
func (l *openLooper) run(end time.Time) error {
	l.start = time.Now()
	var events [64]syscall.EpollEvent
	for len(l.took) < l.total {
		now := time.Now()
		if now.After(end) {
			return fmt.Errorf("%d of %d requests were answered", len(l.took), l.total)
		}
		for l.next < l.total && len(l.free) > 0 && l.due(l.next) <= now.Sub(l.start) {
			if err := l.send(); err != nil {
				return err
			}
		}
		if l.next < l.total && len(l.free) > 0 {
			if err := l.ring(l.due(l.next) - time.Since(l.start)); err != nil {
				return err
			}
		}
		// Raw: the scheduler need not know that this thread sleeps, and is not
		// asked when it wakes. It never sleeps longer than this.
		const milliseconds = 100
		n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&events)), uintptr(len(events)), milliseconds, 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			return errno
		}
		for _, e := range events[:n] {
			if int(e.Fd) == l.timer {
				var count [8]byte
				syscall.Read(l.timer, count[:])
			} else if err := l.receive(l.clients[e.Fd]); err != nil {
				return err
			}
		}
	}
	return nil
}

// ring wakes run after d; at once when d is over.
func (l *openLooper) ring(d time.Duration) error {
	spec := [2]syscall.Timespec{1: syscall.NsecToTimespec(max(1, int64(d)))} // it rings once
	_, _, errno := syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, uintptr(l.timer), 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (l *openLooper) send() error {
	c := l.free[0]
	l.free = append(l.free[:0], l.free[1:]...)
	c.due, c.filled, c.waiting = l.due(l.next), 0, true
	l.next++
	if n, err := syscall.Write(c.fd, l.request); n != len(l.request) {
		return fmt.Errorf("sending a request: %d bytes written, %w", n, err)
	}
	return nil
}

// receive reads what has come and notes the time when the answer is complete.
func (l *openLooper) receive(c *openClient) error {
	n, err := syscall.Read(c.fd, c.buffer[c.filled:])
	switch {
	case errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR):
		return nil
	case err != nil:
		return fmt.Errorf("reading an answer: %w", err)
	case n == 0 || !c.waiting:
		return errors.New("a connection was closed, or something came on it unasked")
	}
	c.filled += n
	complete, err := isComplete(c.buffer[:c.filled])
	if err != nil {
		return err
	}
	if complete {
		l.took = append(l.took, time.Since(l.start)-c.due)
		c.waiting = false
		l.free = append(l.free, c)
	} else if c.filled == len(c.buffer) {
		return fmt.Errorf("an answer is longer than %d bytes", len(c.buffer))
	}
	return nil
}

// isComplete reports whether b holds all of a 200 with Content-Length.
func isComplete(b []byte) (bool, error) {
	head, body, ok := bytes.Cut(b, []byte("\r\n\r\n"))
	if !ok {
		return false, nil
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200")) {
		return false, fmt.Errorf("got %q, want HTTP/1.1 200", head)
	}
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if !bytes.EqualFold(name, []byte("Content-Length")) {
			continue
		}
		length, err := strconv.Atoi(string(bytes.TrimSpace(value)))
		if err != nil || len(body) > length {
			return false, fmt.Errorf("got %d bytes of body with %q", len(body), line)
		}
		return len(body) == length, nil
	}
	return false, fmt.Errorf("got %q, want a Content-Length", head)
}
