package netconn

import (
	"os"
	"sync"
	"syscall"
)

// epollET is EPOLLET, which package syscall defines as a negative number.
const epollET = 1 << 31

// maxEvents is the maximum number of events per epoll_wait call.
const maxEvents = 64

// Watcher watches connections. It is safe for concurrent use.
type Watcher struct {
	file *os.File // the epoll set, which the runtime poller watches
	done chan struct{}

	mu    sync.Mutex
	last  uint64            // last assigned ID; unlike file descriptors, IDs are not reused
	gone  map[uint64]func() // callbacks by ID
	fdSet int
}

// NewWatcher returns a watcher that runs until Close.
func NewWatcher() (*Watcher, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // required by os.File to use the runtime poller
		syscall.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &Watcher{
		file:  os.NewFile(uintptr(fd), "hangup"),
		done:  make(chan struct{}),
		gone:  make(map[uint64]func()),
		fdSet: fd,
	}
	raw, _ := w.file.SyscallConn() // cannot fail for an open file
	go w.run(raw)
	return w, nil
}

// Close stops the watcher and waits for a running callback.
func (w *Watcher) Close() error {
	err := w.file.Close()
	<-w.done
	return err
}

// Add registers c. When the peer closes its side of the connection or resets the connection, the watcher calls gone
// once from its own goroutine. gone is also called if the peer closed or reset the connection before Add was called.
// gone must not block. Add returns nil if c cannot be watched.
func (w *Watcher) Add(c syscall.Conn, gone func()) *Watch {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	w.mu.Lock()
	w.last++
	id := w.last
	w.gone[id] = gone
	w.mu.Unlock()

	event := syscall.EpollEvent{
		Events: syscall.EPOLLRDHUP | epollET,
		Fd:     int32(id), Pad: int32(id >> 32), // the kernel's 64 bits of user data
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = syscall.EpollCtl(w.fdSet, syscall.EPOLL_CTL_ADD, int(fd), &event)
	})
	if err != nil || failed != nil {
		w.remove(id)
		return nil
	}
	return &Watch{id: id, from: w}
}

// remove removes a callback. The kernel removes the registration when the connection is closed.
func (w *Watcher) remove(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gone, id)
}

func (w *Watcher) run(raw syscall.RawConn) {
	defer close(w.done)
	var events [maxEvents]syscall.EpollEvent
	for {
		var n int
		err := raw.Read(func(fd uintptr) bool {
			n, _ = syscall.EpollWait(int(fd), events[:], 0)
			return n > 0
		})
		if err != nil {
			return // the watcher was closed
		}
		for _, e := range events[:n] {
			id := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			w.mu.Lock()
			gone := w.gone[id]
			delete(w.gone, id)
			w.mu.Unlock()
			if gone != nil {
				gone()
			}
		}
	}
}
