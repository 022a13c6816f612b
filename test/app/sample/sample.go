// Package sample is the user container that people try the queue-proxy with and
// that its tests measure: a web server whose behaviour is chosen by the path.
//
// It keeps ledgers (requests running at once, requests by id, requests whose
// client left) so that a test can compare what the client saw with what the
// user container saw. Nothing in it holds a body whole.
package sample

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Guide is what GET / answers: the list of the paths, for people.
const Guide = `This is the sample app. What it does is chosen by the path:

  /echo               the request as JSON (so does every path not named here)
  /status/404         that status, no body
  /bytes/1000         that many bytes, with Content-Length
  /stream/1000        that many bytes, chunked
  /slow?ms=500        answers after half a second
  /sse?n=5&ms=100     five server-sent events
  /hints?status=200   103 Early Hints, then that status
  /trailers           the request's trailers, and the body's length and hash, as trailers
  /early?status=413   answers without reading the body
  /die?after=1000     breaks off after that many bytes
  /reset              resets the connection, without an answer
  /garbage            answers what is not HTTP
  /sink               counts and hashes an upload
  /ws                 WebSocket echo
  /grpc/any           gRPC echo: every message comes back, of a single call or of a stream
  /grpc.health.v1.Health/Check   gRPC health: SERVING, or NOT_SERVING when /ready says no

Its ledgers: GET /max (requests running now, at most, ended, abandoned; DELETE starts anew),
GET /seen?id=x (how often a request with X-Id: x came; without id: all of them; DELETE forgets),
GET /ready, POST /ready?status=503 (what /ready answers from now on).
The answer to a request with X-Id carries it too.
`

// IDHeader names a request for the ledger that /seen shows.
const IDHeader = "X-Id"

// Running is what GET /max tells. Requests to the ledgers themselves are not counted.
type Running struct {
	Now       int `json:"now"`       // in a handler at this moment
	Max       int `json:"max"`       // most at once since the start or the last DELETE
	Ended     int `json:"ended"`     // handlers that have returned
	Abandoned int `json:"abandoned"` // requests of /slow, /sse and /stream whose client left first
}

// Request is what /echo tells about the request it got.
type Request struct {
	Method     string              `json:"method"`
	Target     string              `json:"target"` // as it stood in the request line, or :path
	Proto      string              `json:"proto"`
	Host       string              `json:"host"`
	Fields     [][2]string         `json:"fields"` // sorted by name; lines of one name in their order
	BodyLength int64               `json:"bodyLength"`
	BodySHA256 string              `json:"bodySHA256"`
	BodyError  string              `json:"bodyError,omitempty"` // why reading the body ended early
	Trailers   map[string][]string `json:"trailers,omitempty"`
}

// An App is the sample's handler with its ledgers. Use [New]. It may serve any
// number of requests at once.
type App struct {
	// Ledger gets a line "seen ID" for each request with an id, before it is
	// answered: it outlives the process. Nil: nobody keeps it.
	Ledger io.Writer

	// Ending is closed when the app is to end: event streams then get a last event named
	// end, and gRPC streams the status 14, UNAVAILABLE. Nil: they are not told.
	Ending <-chan struct{}

	mu      sync.Mutex // protects all below
	running Running
	seen    map[string]int
	ready   int
}

// New returns an App that is ready and has seen nothing.
func New() *App {
	return &App{seen: make(map[string]int), ready: http.StatusOK}
}

// Running returns the ledger of requests running at once.
func (a *App) Running() Running {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running
}

// Seen returns how often a request with this id (the header [IDHeader]) has come.
func (a *App) Seen(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen[id]
}

// ServeHTTP behaves as [Guide] says. It looks at the path itself because
// [http.ServeMux] would redirect paths such as //a.
func (a *App) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/max":
		a.max(w, r)
	case "/seen":
		a.list(w, r)
	case "/ready":
		a.readiness(w, r)
	case "/grpc.health.v1.Health/Check":
		a.health(w)
	default:
		a.serve(w, r)
	}
}

// guide says what the app can do; what does not ask for that is echoed.
func guide(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" || r.Method != http.MethodGet {
		echo(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, Guide)
}

// serve answers a request that counts as one of the app's.
func (a *App) serve(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(IDHeader)
	a.enter(id)
	defer a.leave()
	if id != "" {
		w.Header().Set(IDHeader, id)
	}

	first, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch first {
	case "":
		guide(w, r)
	case "status":
		status(w, rest)
	case "bytes":
		w.Header().Set("Content-Length", strconv.FormatInt(number(rest, 0), 10))
		fill(w, number(rest, 0))
	case "stream":
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		if fill(w, number(rest, 0)) != nil {
			a.abandoned()
		}
	case "slow":
		if !wait(r, query(r, "ms", 1000)) {
			a.abandoned()
			return
		}
		io.WriteString(w, "slow\n")
	case "sse":
		if !a.events(w, r) {
			a.abandoned()
		}
	case "hints":
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		status(w, strconv.FormatInt(query(r, "status", 200), 10))
	case "trailers":
		trailers(w, r)
	case "early":
		w.Header().Set("Connection", "close")
		status(w, strconv.FormatInt(query(r, "status", 413), 10))
	case "die":
		fill(w, query(r, "after", 0))
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case "reset":
		breakOff(w, "")
	case "garbage":
		breakOff(w, "HTTP? No: garbage\r\n\r\n")
	case "sink":
		sink(w, r)
	case "ws":
		talk(w, r)
	case "grpc":
		a.call(w, r)
	default:
		echo(w, r)
	}
}

func (a *App) enter(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running.Now++
	a.running.Max = max(a.running.Max, a.running.Now)
	if id != "" {
		a.seen[id]++
		if a.Ledger != nil {
			fmt.Fprintf(a.Ledger, "seen %s\n", id)
		}
	}
}

func (a *App) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running.Now--
	a.running.Ended++
}

func (a *App) abandoned() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running.Abandoned++
}

func (a *App) max(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	if r.Method == http.MethodDelete {
		a.running = Running{Now: a.running.Now, Max: a.running.Now}
	}
	running := a.running
	a.mu.Unlock()
	answer(w, running)
}

func (a *App) list(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Method == http.MethodDelete {
		clear(a.seen)
	}
	if id := r.URL.Query().Get("id"); id != "" {
		answer(w, a.seen[id])
		return
	}
	answer(w, a.seen)
}

func (a *App) readiness(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	if r.Method == http.MethodPost {
		a.ready = int(query(r, "status", 200))
	}
	ready := a.ready
	a.mu.Unlock()
	if r.Method == http.MethodPost {
		ready = http.StatusOK
	}
	status(w, strconv.Itoa(ready))
}

// health answers a Check of gRPC's health protocol, whatever service it asks about: one
// message, whose field 1 is the status.
func (a *App) health(w http.ResponseWriter) {
	a.mu.Lock()
	state := byte(2) // NOT_SERVING
	if a.ready == http.StatusOK {
		state = 1 // SERVING
	}
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	w.Write([]byte{0, 0, 0, 0, 2, 0x08, state})
	w.Header().Set("Grpc-Status", "0")
}

func echo(w http.ResponseWriter, r *http.Request) {
	e := Request{Method: r.Method, Target: r.RequestURI, Proto: r.Proto, Host: r.Host, Fields: [][2]string{}}
	for name, values := range r.Header {
		for _, v := range values {
			e.Fields = append(e.Fields, [2]string{name, v})
		}
	}
	sort.SliceStable(e.Fields, func(i, j int) bool { return e.Fields[i][0] < e.Fields[j][0] })
	n, sum, err := hash(r.Body)
	e.BodyLength, e.BodySHA256, e.Trailers = n, sum, r.Trailer
	if err != nil {
		e.BodyError = err.Error()
	}
	answer(w, e)
}

func trailers(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "X-Body-Length, X-Body-Sha256")
	w.WriteHeader(http.StatusOK)
	n, sum, _ := hash(r.Body)
	fmt.Fprintf(w, "%d bytes\n", n)
	w.Header().Set("X-Body-Length", strconv.FormatInt(n, 10))
	w.Header().Set("X-Body-Sha256", sum)
	for name, values := range r.Trailer {
		w.Header()[http.TrailerPrefix+name] = values
	}
}

func sink(w http.ResponseWriter, r *http.Request) {
	n, sum, err := hash(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer(w, map[string]any{"length": n, "sha256": sum})
}

// breakOff ends the connection in the midst of an exchange: after a text, or with
// a reset if there is none.
func breakOff(w http.ResponseWriter, text string) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2 ends the stream
	}
	defer c.Close()
	if text != "" {
		io.WriteString(c, text)
	} else if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
}

// events writes n server-sent events ms apart; false when the client left.
func (a *App) events(w http.ResponseWriter, r *http.Request) bool {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	n, ms := query(r, "n", 10), query(r, "ms", 100)
	for i := range n {
		if i > 0 && !a.waitOrEnd(r, ms) {
			return false
		}
		if a.isEnding() {
			io.WriteString(w, "event: end\ndata: end\n\n")
			return true
		}
		fmt.Fprintf(w, "data: %d\n\n", i)
		if http.NewResponseController(w).Flush() != nil {
			return false
		}
	}
	return true
}

// talk echoes WebSocket messages of up to 16 MiB until the client closes.
func talk(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // Accept has answered
	}
	defer c.CloseNow()
	c.SetReadLimit(16 << 20)
	for {
		kind, message, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if c.Write(r.Context(), kind, message) != nil {
			return
		}
	}
}

// call echoes the messages of a gRPC call as they come. They need not be taken apart
// for that: they are bytes with their length in front of them.
func (a *App) call(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	control := http.NewResponseController(w)
	flush := control.Flush
	if flush() != nil {
		return
	}
	if a.Ending != nil {
		over := make(chan struct{})
		defer close(over)
		go func() {
			select {
			case <-a.Ending:
				_ = control.SetReadDeadline(time.Now()) // the read below returns
			case <-over:
			}
		}()
	}
	b := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(b)
		if n > 0 {
			if _, err := w.Write(b[:n]); err != nil || flush() != nil {
				return
			}
		}
		if errors.Is(err, io.EOF) {
			w.Header().Set("Grpc-Status", "0")
			return
		}
		if err != nil {
			if a.isEnding() {
				w.Header().Set("Grpc-Status", "14")
			}
			return
		}
	}
}

// isEnding reports whether the app has been told to end.
func (a *App) isEnding() bool {
	select {
	case <-a.Ending:
		return true
	default:
		return false
	}
}

// waitOrEnd is wait that returns at once when the app is to end.
func (a *App) waitOrEnd(r *http.Request, ms int64) bool {
	t := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-a.Ending:
		return true
	case <-r.Context().Done():
		return false
	}
}

// wait sleeps for so many milliseconds; false when the client left first.
func wait(r *http.Request, ms int64) bool {
	t := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// fill writes n bytes of text.
func fill(w io.Writer, n int64) error {
	const line = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n"
	block := []byte(strings.Repeat(line, 512)) // 32 KiB
	for n > 0 {
		m, err := w.Write(block[:min(n, int64(len(block)))])
		if err != nil {
			return err
		}
		n -= int64(m)
	}
	return nil
}

func hash(body io.Reader) (n int64, sum string, err error) {
	h := sha256.New()
	n, err = io.Copy(h, body)
	return n, hex.EncodeToString(h.Sum(nil)), err
}

func status(w http.ResponseWriter, text string) {
	n := number(text, 0)
	if n < 200 || n > 999 {
		http.Error(w, "a status is a number from 200 to 999", http.StatusBadRequest)
		return
	}
	w.WriteHeader(int(n))
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	e.Encode(v)
}

func query(r *http.Request, name string, missing int64) int64 {
	return number(r.URL.Query().Get(name), missing)
}

func number(text string, missing int64) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return missing
	}
	return n
}
