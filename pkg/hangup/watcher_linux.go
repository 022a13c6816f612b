package hangup

import (
	"os"
	"sync"
	"syscall"
)

// epollET is EPOLLET, which package syscall declares as a negative number.
const epollET = 1 << 31

// maxEvents is how many events are taken from the kernel at once.
const maxEvents = 64

// Watcher watches connections. It is safe for concurrent use.
type Watcher struct {
	file *os.File // the epoll set, itself watched by the runtime's poller
	done chan struct{}

	mu    sync.Mutex
	last  uint64            // ids are never used again, unlike descriptors
	gone  map[uint64]func() // by id
	fdSet int
}

// New returns a watcher that runs until Close.
func New() (*Watcher, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // so that os.File lets the runtime wait for it
		syscall.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &Watcher{
		file:  os.NewFile(uintptr(fd), "hangup"),
		done:  make(chan struct{}),
		gone:  make(map[uint64]func()),
		fdSet: fd,
	}
	raw, _ := w.file.SyscallConn() // which every file has that is open
	go w.run(raw)
	return w, nil
}

// Close ends the watching and waits until no callback runs any more.
func (w *Watcher) Close() error {
	err := w.file.Close()
	<-w.done
	return err
}

// Add calls gone, once and from the watcher's goroutine, when the peer of c has
// closed its side or reset the connection; also when it has done so already.
// gone must not block. A nil Watch means that c can't be watched.
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

// remove forgets a watch. The kernel forgets it with the connection.
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
			return // closed
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
