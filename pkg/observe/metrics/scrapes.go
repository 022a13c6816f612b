package metrics

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
)

// Limits for scrapes. Any client that can connect to the port can send scrape requests.
const (
	maxRendered  = 4                // maximum number of pages that are rendered at the same time
	maxPageBytes = 8 << 20          // maximum total size of all pages in bytes; a single page may be larger
	maxPerClient = 4                // maximum number of scrapes from one client address
	maxScrapes   = 1024             // maximum number of scrapes that wait
	chunkSize    = 32 << 10         // size in bytes of a part of a page; about the size of our own metrics
	turnTime     = 3 * time.Second  // maximum time that a scrape waits for other scrapes
	takeTime     = time.Second      // minimum time that a scraper has to read a page
	writeTime    = 30 * time.Second // maximum time to read a page if the memory is not needed for other scrapes
)

// scrapes serves the metrics at path. A page is rendered into memory and then sent. Therefore a scraper that
// does not read the page uses memory, but does not prevent other pages from being rendered.
//
// If the pages of other scrapes leave no memory, the server selects the oldest page of the client with the most bytes.
// It cancels this page if it began to send the page at least takeTime ago. Otherwise, the new scrape waits. If a client
// has maxPerClient scrapes, only its own pages can be canceled for a new scrape. If none of them can be canceled, the
// new scrape fails.
type scrapes struct {
	handler   http.Handler
	free      sync.Pool       // contains *page
	pages     *fair.Semaphore // each slot is a byte of a page
	rendering *fair.Semaphore
	typical   atomic.Int64 // expected number of bytes of the next page
}

// bounded returns a handler that serves h at path with limits on scrapes.
func bounded(h http.Handler) http.Handler {
	s := &scrapes{
		handler: h,
		pages: fair.New(fair.Options{
			Slots: maxPageBytes, Queue: maxScrapes, PerClient: maxPerClient, MinPatience: takeTime, MaxPatience: takeTime,
		}),
		rendering: fair.New(fair.Options{Slots: maxRendered, Queue: maxScrapes}),
	}
	s.typical.Store(chunkSize)
	s.free.New = func() any { return &page{header: http.Header{}} }
	mux := http.NewServeMux()
	mux.Handle("GET "+path, s)
	return mux
}

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), turnTime)
	defer cancel()
	control := http.NewResponseController(w) // errors are ignored, because the recorder in a test has no deadlines
	scrape := fair.Request{Client: fair.Address(r.RemoteAddr), Weight: int(s.typical.Load()), End: func() bool {
		_ = control.SetWriteDeadline(time.Unix(1, 0))
		return true
	}}
	slot, err := s.pages.Acquire(ctx, scrape)
	if errors.Is(err, fair.ErrClientLimit) {
		http.Error(w, "too many concurrent scrapes from the client", http.StatusTooManyRequests)
		return
	}
	var turn *fair.Slot
	if err == nil {
		defer slot.Release()
		turn, err = s.rendering.Acquire(ctx, fair.Request{Client: scrape.Client})
	}
	if err != nil {
		http.Error(w, "too many concurrent scrapes", http.StatusServiceUnavailable)
		return
	}
	p := s.free.Get().(*page)
	defer func() { p.reset(); s.free.Put(p) }()
	func() {
		defer turn.Release()
		s.handler.ServeHTTP(p, r)
	}()
	typical := s.typical.Load()
	s.typical.Store(max(int64(p.size), (typical+int64(p.size))/2))
	_ = control.SetWriteDeadline(time.Now().Add(writeTime))
	slot.Resize(p.size)
	slot.Idle()
	p.send(w)
}

// A page stores a response in memory.
type page struct {
	header http.Header
	status int      // 0 means 200
	chunks [][]byte // each has the length chunkSize
	size   int      // number of bytes written
}

// Header implements http.ResponseWriter.
func (p *page) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (p *page) WriteHeader(status int) { p.status = status }

// Write implements http.ResponseWriter.
func (p *page) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		last, at := p.size/chunkSize, p.size%chunkSize
		if last == len(p.chunks) {
			p.chunks = append(p.chunks, make([]byte, chunkSize))
		}
		n := copy(p.chunks[last][at:], rest)
		p.size += n
		rest = rest[n:]
	}
	return len(b), nil
}

// send sends the page to w. It ignores write errors, which mean that the scraper disconnected or is too slow.
func (p *page) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), p.header)
	w.Header().Set("Content-Length", strconv.Itoa(p.size))
	if p.status != 0 {
		w.WriteHeader(p.status)
	}
	for i, b := range p.chunks {
		if _, err := w.Write(b[:min(p.size-i*chunkSize, chunkSize)]); err != nil {
			return
		}
	}
}

// reset empties the page, but keeps one chunk for the next page.
func (p *page) reset() {
	clear(p.header)
	p.status, p.size = 0, 0
	p.chunks = slices.Delete(p.chunks, min(1, len(p.chunks)), len(p.chunks))
}
