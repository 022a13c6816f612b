package main

import (
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"time"
)

// The apps.
const (
	cpuBound = "CPU-bound"
	pooled   = "pooled"
)

// The pooled app: as many use a database over so many connections. Who waits for one for
// too long fails, as in the connection pools of most languages.
const (
	connections = 8
	query       = 20 * time.Millisecond // mean; it is half to one and a half of that
	poolTimeout = 250 * time.Millisecond
)

// The app that is bound by CPU: on one core it first waits for something else, and then
// compresses a document.
const (
	lookup   = 10 * time.Millisecond
	document = 64 << 10 // bytes
)

// serve is the app.
func serve(app, address string) error {
	handler := http.HandlerFunc(newPool().serve)
	if app == cpuBound {
		runtime.GOMAXPROCS(1)
		handler = compress(text())
	}
	return (&http.Server{Addr: address, Handler: handler}).ListenAndServe()
}

type pool struct{ free chan struct{} }

func newPool() *pool { return &pool{make(chan struct{}, connections)} }

func (p *pool) serve(w http.ResponseWriter, _ *http.Request) {
	late := time.NewTimer(poolTimeout)
	defer late.Stop()
	select {
	case p.free <- struct{}{}:
		time.Sleep(query/2 + rand.N(query))
		<-p.free
		fmt.Fprintln(w, "a row")
	case <-late.C:
		http.Error(w, "no connection to the database is free", http.StatusInternalServerError)
	}
}

// text returns a document that compresses as text does: words of a small vocabulary.
func text() []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	var b []byte
	for len(b) < document {
		b = fmt.Appendf(b, "word%d ", int(rng.ExpFloat64()*200))
	}
	return b
}

func compress(document []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(lookup)
		z := gzip.NewWriter(io.Discard)
		_, _ = z.Write(document) // to memory that nobody reads: it does not fail
		_ = z.Close()
		fmt.Fprintln(w, "compressed")
	}
}
