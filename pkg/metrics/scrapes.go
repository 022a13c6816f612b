package metrics

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Limits on scrapes, which any client that reaches the port can ask for.
const (
	maxRendered  = 4                // pages are made at once
	maxPageBytes = 8 << 20          // of all pages together; one alone may be larger
	maxPerClient = 4                // scrapes of one client address
	chunkSize    = 32 << 10         // bytes: all of our own metrics, or nearly
	turnTime     = 3 * time.Second  // that a scrape waits for others, at most
	takeTime     = time.Second      // that a scraper has for its page in any case
	writeTime    = 30 * time.Second // that it has while nobody else needs the memory
)

// scrapes serves path. A scrape is rendered into memory first and sent then: so a
// scraper that does not read holds memory, but keeps nobody from rendering.
//
// Where the pages of others leave no memory, or a client has too many, the oldest page
// that is being sent is given up: that of the client that holds the most, and not
// before takeTime. Otherwise scrapes wait, and are served in the order in which they
// came.
type scrapes struct {
	handler http.Handler
	pages   sync.Pool // of *page

	mu      sync.Mutex
	all     []*turn     // that wait, are rendered or sent; each of these in the order in which they began to
	typical int         // bytes of the last pages: the next will be like them
	timer   *time.Timer // calls advance when a page may be given up
}

// A turn is a scrape's; guarded by scrapes.mu.
type turn struct {
	client string
	come   chan struct{} // closed when it may be rendered
	begun  bool          // it may
	bytes  int           // that are reserved for it
	sent   time.Time     // since then; zero: not yet
	cancel func()        // ends the sending
}

// bounded serves h at path.
func bounded(h http.Handler) http.Handler {
	s := &scrapes{handler: h, typical: chunkSize}
	s.timer = time.AfterFunc(time.Hour, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.advance()
	})
	s.timer.Stop()
	s.pages.New = func() any { return &page{header: http.Header{}} }
	mux := http.NewServeMux()
	mux.Handle("GET "+path, s)
	return mux
}

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	client, _, _ := net.SplitHostPort(r.RemoteAddr)
	one := &turn{client: client, come: make(chan struct{})}
	if !s.enter(one) {
		http.Error(w, "too many scrapes of this client at once", http.StatusTooManyRequests)
		return
	}
	defer s.leave(one)
	ctx, cancel := context.WithTimeout(r.Context(), turnTime)
	defer cancel()
	select {
	case <-one.come:
	case <-ctx.Done():
		http.Error(w, "too many scrapes at once", http.StatusServiceUnavailable)
		return
	}
	p := s.pages.Get().(*page)
	defer func() { p.reset(); s.pages.Put(p) }()
	s.handler.ServeHTTP(p, r)
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(writeTime)) // where there is a connection
	s.send(one, p, func() { _ = control.SetWriteDeadline(time.Unix(1, 0)) })
	p.send(w)
}

// enter puts a scrape behind all others, or reports that its client has too many.
func (s *scrapes) enter(one *turn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := slices.DeleteFunc(slices.Clone(s.all), func(other *turn) bool { return other.client != one.client })
	if len(own) >= maxPerClient {
		first := firstToGo(own)
		if first == nil || time.Since(first.sent) < takeTime {
			return false
		}
		s.end(first)
	}
	s.all = append(s.all, one)
	s.advance()
	return true
}

// leave is called when a scrape has been served, or has not.
func (s *scrapes) leave(one *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(one)
	s.advance()
}

// send notes that a page has been rendered and will be sent.
func (s *scrapes) send(one *turn, p *page, cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.typical = max(p.size, (s.typical+p.size)/2)
	one.bytes, one.sent, one.cancel = p.size, time.Now(), cancel
	s.remove(one)
	s.all = append(s.all, one)
	s.advance()
}

// advance gives their turn to as many as can have it, if need be in the memory of pages
// that are given up. Where one may only be given up in a moment, it is called then. s.mu
// is held.
func (s *scrapes) advance() {
	for {
		next := slices.IndexFunc(s.all, func(one *turn) bool { return !one.begun })
		rendering, bytes := 0, 0 // the bytes of those and of what is sent
		for _, one := range s.all {
			bytes += one.bytes
			if one.begun && one.sent.IsZero() {
				rendering++
			}
		}
		if next < 0 || rendering == maxRendered {
			return
		}
		if bytes == 0 || bytes+s.typical <= maxPageBytes {
			one := s.all[next]
			one.begun, one.bytes = true, s.typical
			close(one.come)
			continue
		}
		first := firstToGo(s.all)
		if first == nil {
			return // all are being rendered
		}
		if rest := takeTime - time.Since(first.sent); rest > 0 {
			s.timer.Reset(rest)
			return
		}
		s.end(first)
	}
}

// firstToGo returns the page that is given up first, nil if none is being sent: of the
// client that holds the most, the one that has been sent for longest.
func firstToGo(all []*turn) (first *turn) {
	held := map[string]int{}
	for _, one := range all {
		held[one.client] += one.bytes
	}
	for _, one := range all {
		if !one.sent.IsZero() && (first == nil || held[one.client] > held[first.client]) {
			first = one
		}
	}
	return first
}

// end gives up a page that is being sent. s.mu is held.
func (s *scrapes) end(one *turn) {
	one.cancel()
	s.remove(one)
}

// remove takes a scrape out, if it still is there. s.mu is held.
func (s *scrapes) remove(one *turn) {
	s.all = slices.DeleteFunc(s.all, func(other *turn) bool { return other == one })
}

// A page is a response in memory.
type page struct {
	header http.Header
	status int      // 0: 200
	chunks [][]byte // of chunkSize each
	size   int      // bytes that were written
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

// send sends it. An error is the scraper's: who hangs up asks again.
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

// reset makes it a page without anything, with memory for the next.
func (p *page) reset() {
	clear(p.header)
	p.status, p.size = 0, 0
	p.chunks = slices.Delete(p.chunks, min(1, len(p.chunks)), len(p.chunks))
}
