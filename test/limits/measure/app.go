package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"
)

// An app describes an application. Its workers process the requests to /.
type app struct {
	workers int
	took    time.Duration                  // mean time that a worker needs for a request; the time of a request is 0.5 to 1.5 times the mean
	reject  int                            // maximum number of requests in the application; 0 means no limit
	status  int                            // status code of the response to a request that exceeds reject
	batch   int                            // maximum number of requests that a worker processes together; 0 means 1
	each    time.Duration                  // time added to took for each request of a batch
	pause   time.Duration                  // length of the garbage collection pause every 2 s; 0 means none
	warm    time.Duration                  // duration of the warm-up, in which requests take up to six times as long
	changed func(at time.Duration) float64 // factor of took at a given time; nil means 1
}

// A handler is a running application.
type handler struct {
	app

	began   time.Time
	free    chan struct{}      // one element for each worker in use
	running atomic.Int64       // number of requests to / in progress
	queued  chan chan struct{} // requests that wait for a batch; a channel is closed when its request is complete
}

// serve runs the application of a row.
func serve(row, address string) error {
	for _, r := range realRows() {
		if r.name == row {
			server := &http.Server{Addr: address, Handler: r.app.handler()}
			server.Protocols = new(http.Protocols)
			server.Protocols.SetHTTP1(true)
			server.Protocols.SetUnencryptedHTTP2(true)
			return server.ListenAndServe()
		}
	}
	return fmt.Errorf("%s: no such row", row)
}

func (a app) handler() http.Handler {
	h := &handler{app: a, began: time.Now(), free: make(chan struct{}, a.workers), queued: make(chan chan struct{}, 1000)}
	mux := http.NewServeMux()
	mux.HandleFunc("/", h.work)
	mux.HandleFunc("/hold", hold)
	mux.HandleFunc("/error", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "bug", http.StatusInternalServerError)
	})
	mux.HandleFunc("/unknown", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "12")
	})
	mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // ignore errors, because the client may disconnect
	})
	mux.HandleFunc("/socket", socket)
	mux.HandleFunc("/cached", func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(time.Millisecond)
		fmt.Fprintln(w, "done")
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(make([]byte, 4<<20)) // ignore errors, because the client may disconnect
	})
	return mux
}

// socket accepts an upgrade and keeps the connection open.
func socket(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_, _ = io.Copy(io.Discard, conn) // read until the client closes the connection
}

// hold responds after the time in the query parameter "for". With the parameter "stream", it begins
// the response immediately. hold ignores the context, to simulate an application that continues
// after the client has disconnected.
func hold(w http.ResponseWriter, r *http.Request) {
	took, err := time.ParseDuration(r.URL.Query().Get("for"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if r.URL.Query().Has("stream") {
		w.Header().Set("Content-Type", "application/grpc")
		_ = http.NewResponseController(w).Flush() // ignore errors, because the client may disconnect
	}
	time.Sleep(took)
	fmt.Fprintln(w, "done")
}

func (a *handler) work(w http.ResponseWriter, r *http.Request) {
	if n := a.running.Add(1); a.reject > 0 && n > int64(a.reject) {
		a.running.Add(-1)
		http.Error(w, "overload", a.status)
		return
	}
	defer a.running.Add(-1)
	if a.batch > 0 {
		a.processBatches()
		fmt.Fprintln(w, "done")
		return
	}
	a.free <- struct{}{}
	defer func() { <-a.free }()
	took := a.took/2 + rand.N(a.took)
	if r.URL.Query().Has("fast") {
		took /= 10
	} else if r.URL.Query().Has("slow") {
		took *= 2
	}
	age := time.Since(a.began)
	if a.warm > 0 && age < a.warm {
		took = time.Duration(float64(took) * (1 + 5*(1-age.Seconds()/a.warm.Seconds())))
	}
	if a.changed != nil {
		took = time.Duration(float64(took) * a.changed(age))
	}
	if a.pause > 0 && age%(2*time.Second) < a.pause {
		took += a.pause - age%(2*time.Second)
	}
	time.Sleep(took)
	fmt.Fprintln(w, "done")
}

// gatherTime is the time to wait for further requests of a batch.
const gatherTime = 2 * time.Millisecond

// processBatches waits until the request is complete. If a worker is free before another goroutine
// completes the request, processBatches uses this worker to process batches until one of them
// contains the request.
func (a *handler) processBatches() {
	complete := make(chan struct{})
	a.queued <- complete
	select {
	case <-complete:
		return
	case a.free <- struct{}{}:
	}
	defer func() { <-a.free }()
	for {
		select {
		case <-complete:
			return
		default:
		}
		time.Sleep(gatherTime)
		var requests []chan struct{}
		for len(requests) < a.batch && len(a.queued) > 0 {
			requests = append(requests, <-a.queued)
		}
		time.Sleep(a.took + time.Duration(len(requests))*a.each)
		for _, c := range requests {
			close(c)
		}
	}
}
