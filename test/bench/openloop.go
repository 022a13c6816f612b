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

// openLoop sends GET requests at a constant rate and returns the duration of each request. The
// duration starts at the scheduled time of the request. If the server does not respond for some
// time, openLoop therefore measures a delay for all requests that are scheduled in this time,
// including requests that wait for a free connection. A client that sends each request after the
// previous response does not measure this delay.
//
// openLoop runs on one thread with raw sockets, because the Go scheduler would add microseconds
// to each result. rate is the number of requests per second, at most one million. A status that
// is not 200 is an error. A response of more than 16 KB is also an error.
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
	total    int // number of requests

	epoll, timer int
	clients      map[int32]*openClient
	free         []*openClient // connections without a request in progress; used in turn

	start time.Time
	next  int // number of the next request
	took  []time.Duration
}

// An openClient is a connection of an openLooper.
type openClient struct {
	fd      int
	due     time.Duration // due time of the request in progress, relative to the start
	buffer  [16 << 10]byte
	filled  int
	waiting bool // a request is in progress
}

// due returns the due time of request n, relative to the start.
func (l *openLooper) due(n int) time.Duration { return time.Duration(n) * l.interval }

func (l *openLooper) connect(address string, connections int) (err error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if l.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return err
	}
	const monotonic = 1 // value of CLOCK_MONOTONIC
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
			return fmt.Errorf("connect to %s: %w", address, err)
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

// run sends each request at its due time or as soon as a connection is free. It returns after
// all responses.
func (l *openLooper) run(end time.Time) error {
	l.start = time.Now()
	var events [64]syscall.EpollEvent
	for len(l.took) < l.total {
		now := time.Now()
		if now.After(end) {
			return fmt.Errorf("timeout: received %d of %d responses", len(l.took), l.total)
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
		// A raw system call does not involve the Go scheduler when the thread sleeps and wakes
		// up. The thread sleeps for at most 100 ms.
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

// ring sets the timer that wakes run after d, or immediately if d is not positive.
func (l *openLooper) ring(d time.Duration) error {
	spec := [2]syscall.Timespec{1: syscall.NsecToTimespec(max(1, int64(d)))} // the timer expires once
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
		return fmt.Errorf("send a request: %d bytes written: %w", n, err)
	}
	return nil
}

// receive reads available data and records the duration when the response is complete.
func (l *openLooper) receive(c *openClient) error {
	n, err := syscall.Read(c.fd, c.buffer[c.filled:])
	switch {
	case errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR):
		return nil
	case err != nil:
		return fmt.Errorf("read a response: %w", err)
	case n == 0 || !c.waiting:
		return errors.New("unexpected data, or the connection was closed")
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
		return fmt.Errorf("the response is longer than %d bytes", len(c.buffer))
	}
	return nil
}

// isComplete reports whether b contains a complete response with status 200 and Content-Length.
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
