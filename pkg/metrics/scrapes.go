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
	all     []*turn     // that wait, are rendered or sent; the oldest first
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
	own := 0
	for _, other := range s.all {
		if other.client == one.client {
			own++
		}
	}
	if own >= maxPerClient {
		oldest := s.oldest(one.client)
		if oldest == nil || time.Since(oldest.sent) < takeTime {
			return false
		}
		s.end(oldest)
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
	s.advance()
}

// load returns how many pages are being rendered, and the bytes of those and of what is
// sent. s.mu is held.
func (s *scrapes) load() (rendering, bytes int) {
	for _, one := range s.all {
		bytes += one.bytes
		if one.begun && one.sent.IsZero() {
			rendering++
		}
	}
	return rendering, bytes
}

// advance gives their turn to as many as can have it. s.mu is held.
func (s *scrapes) advance() {
	for {
		i := slices.IndexFunc(s.all, func(one *turn) bool { return !one.begun })
		if rendering, _ := s.load(); i < 0 || rendering == maxRendered {
			return
		}
		one := s.all[i]
		if !s.makeRoom() {
			return
		}
		one.begun, one.bytes = true, s.typical
		close(one.come)
	}
}

// makeRoom reports whether there is memory for another page, if need be of one that is
// given up. Where that may only be in a moment, advance is called then. s.mu is held.
func (s *scrapes) makeRoom() bool {
	for {
		if _, bytes := s.load(); bytes == 0 || bytes+s.typical <= maxPageBytes {
			return true
		}
		held := map[string]int{}
		for _, one := range s.all {
			held[one.client] += one.bytes
		}
		greediest := ""
		for client, n := range held {
			if n > held[greediest] && s.oldest(client) != nil {
				greediest = client
			}
		}
		oldest := s.oldest(greediest)
		if oldest == nil {
			return false // all are being rendered
		}
		if rest := takeTime - time.Since(oldest.sent); rest > 0 {
			s.timer.Reset(rest)
			return false
		}
		s.end(oldest)
	}
}

// oldest returns the page of a client that has been sent for longest, nil if none is.
// s.mu is held.
func (s *scrapes) oldest(client string) (oldest *turn) {
	for _, one := range s.all {
		if one.client == client && !one.sent.IsZero() && (oldest == nil || one.sent.Before(oldest.sent)) {
			oldest = one
		}
	}
	return oldest
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
	status int // 0: 200
	chunks [][]byte
	size   int
}

// Header implements http.ResponseWriter.
func (p *page) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (p *page) WriteHeader(status int) { p.status = status }

// Write implements http.ResponseWriter.
func (p *page) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		last := p.last()
		n := min(len(rest), cap(*last)-len(*last))
		*last = append(*last, rest[:n]...)
		rest = rest[n:]
	}
	p.size += len(b)
	return len(b), nil
}

// last returns a chunk that is not full.
func (p *page) last() *[]byte {
	if n := len(p.chunks); n == 0 || len(p.chunks[n-1]) == cap(p.chunks[n-1]) {
		p.chunks = append(p.chunks, make([]byte, 0, chunkSize))
	}
	return &p.chunks[len(p.chunks)-1]
}

// send sends it. An error is the scraper's: who hangs up asks again.
func (p *page) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), p.header)
	w.Header().Set("Content-Length", strconv.Itoa(p.size))
	if p.status != 0 {
		w.WriteHeader(p.status)
	}
	for _, b := range p.chunks {
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

// reset makes it a page without anything, with memory for the next.
func (p *page) reset() {
	clear(p.header)
	p.status, p.size = 0, 0
	if len(p.chunks) > 0 {
		clear(p.chunks[1:])
		p.chunks = p.chunks[:1]
		p.chunks[0] = p.chunks[0][:0]
	}
}
