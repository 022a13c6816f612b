// Package sample is the sample application for users and for tests of queue-proxy. It is a web
// server whose behavior depends on the path.
//
// The application counts the concurrent requests, the requests for each ID, and the requests
// whose client disconnected. With these counters, a test can compare the client's results with
// the application's results. The application never buffers a complete body.
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

// Guide is the response to GET /: a list of the paths.
const Guide = `This is the sample application. The path of a request selects the behavior:

  /echo               returns the request as JSON; used for all paths that are not in this list
  /status/404         returns this status without a body
  /bytes/1000         returns this number of bytes, with Content-Length
  /stream/1000        returns this number of bytes, chunked
  /slow?ms=500        responds after 500 ms
  /sse?n=5&ms=100     returns five server-sent events
  /hints?status=200   returns 103 (Early Hints) before this status
  /trailers           returns the trailers of the request, and the length and hash of the body, as trailers
  /early?status=413   responds without reading the body
  /die?after=1000     aborts the response after this number of bytes
  /reset              resets the connection without a response
  /garbage            returns a response that is not HTTP
  /sink               returns the length and hash of an upload
  /ws                 WebSocket echo
  /grpc/any           gRPC echo for unary and streaming calls
  /grpc.health.v1.Health/Check   gRPC health check; returns NOT_SERVING if the status of /ready is not 200

Counters:

  /max                returns the numbers of running, completed and abandoned requests
  /seen?id=1          returns the number of requests with X-Id: 1, or all numbers if there is no id
  /ready              returns 200, or the status that POST /ready?status=503 sets

DELETE resets the counters of /max and /seen.
A response contains the X-Id field of the request.
`

// IDHeader is the field with the ID of a request. /seen counts the requests for each ID.
const IDHeader = "X-Id"

// Running is the response of GET /max. It does not include requests to the counters.
type Running struct {
	Now       int `json:"now"`       // requests that are in a handler
	Max       int `json:"max"`       // maximum of Now since the start or the last DELETE
	Ended     int `json:"ended"`     // completed handlers
	Abandoned int `json:"abandoned"` // requests for /slow, /sse and /stream whose client disconnected before the response was complete
}

// Request is the response of /echo.
type Request struct {
	Method     string              `json:"method"`
	Target     string              `json:"target"` // request target from the request line, or :path
	Proto      string              `json:"proto"`
	Host       string              `json:"host"`
	Fields     [][2]string         `json:"fields"` // sorted by name; fields with the same name keep their order
	BodyLength int64               `json:"bodyLength"`
	BodySHA256 string              `json:"bodySHA256"`
	BodyError  string              `json:"bodyError,omitempty"` // error while reading the body
	Trailers   map[string][]string `json:"trailers,omitempty"`
}

// An App is the handler of the sample application with its counters. Use [New] to create one.
// It is safe for concurrent use.
type App struct {
	// Ledger receives the line "seen ID" for each request with an ID. The line is written before
	// the response, so that it is not lost if the process is killed. Ledger may be nil.
	Ledger io.Writer

	// Ending is closed when the application must stop. Event streams then send a last event
	// named end, and gRPC streams end with status 14 (UNAVAILABLE). If Ending is nil, streams
	// are not notified.
	Ending <-chan struct{}

	mu      sync.Mutex // protects the following fields
	running Running
	seen    map[string]int
	ready   int
}

// New returns an App that is ready.
func New() *App {
	return &App{seen: make(map[string]int), ready: http.StatusOK}
}

// Running returns the counters of the requests.
func (a *App) Running() Running {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running
}

// Seen returns the number of requests whose field [IDHeader] has this value.
func (a *App) Seen(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen[id]
}

// ServeHTTP handles the paths of [Guide]. It does not use [http.ServeMux], which redirects
// paths such as //a.
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

// guide returns the guide, or the request if the path is not /.
func guide(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" || r.Method != http.MethodGet {
		echo(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, Guide)
}

// serve handles a request that is counted.
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

// health implements the method Check of the gRPC health protocol for all services. The
// response is one message, and its field 1 is the status.
func (a *App) health(w http.ResponseWriter) {
	a.mu.Lock()
	state := byte(2) // NOT_SERVING in the gRPC health protocol
	if a.ready == http.StatusOK {
		state = 1 // SERVING in the gRPC health protocol
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

// breakOff writes text and closes the connection during an exchange. If text is empty, it
// resets the connection.
func breakOff(w http.ResponseWriter, text string) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // net/http closes an HTTP/1.1 connection, and resets an HTTP/2 stream
	}
	defer c.Close()
	if text != "" {
		io.WriteString(c, text)
	} else if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
}

// events writes n server-sent events at intervals of ms milliseconds. It returns false if the
// client disconnected.
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

// talk echoes WebSocket messages up to 16 MiB until the client closes the connection.
func talk(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // websocket.Accept has already sent an error response
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

// call echoes the messages of a gRPC call immediately. It does not parse them, because the
// bytes, including the length prefixes, do not change.
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
				_ = control.SetReadDeadline(time.Now()) // the following Read returns, so the loop ends
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

// isEnding reports whether the application must stop.
func (a *App) isEnding() bool {
	select {
	case <-a.Ending:
		return true
	default:
		return false
	}
}

// waitOrEnd is like wait, but it also returns when the application must stop.
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

// wait sleeps for ms milliseconds. It returns false if the client disconnects first.
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
		http.Error(w, "the status must be between 200 and 999", http.StatusBadRequest)
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
