//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// serveApplication runs an application of this program until ctx is done.
func serveApplication(ctx context.Context, name string, args []string) error {
	switch name {
	case "grpc":
		return serveGRPC(ctx, args)
	case "http":
		return serveHTTP(ctx, args)
	case "connect":
		return serveConnect(ctx, args)
	}
	return fmt.Errorf("app %s: unknown", name)
}

// An httpServer is the application of the HTTP rows. The path selects the handler, and
// the query contains numbers: "size" in bytes, "delay" as a duration.
type httpServer struct {
	content content
	mu      sync.Mutex
	runs    map[string]int // number of times that the handler of /panic ran, by the content of the request
}

func (s *httpServer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", s.get)
	mux.HandleFunc("/post", s.post)
	mux.HandleFunc("/panic", s.panic)
	mux.HandleFunc("/work", s.work)
	return mux
}

// serveHTTP runs a net/http server for HTTP/1.1 and HTTP/2 until ctx is done. It accepts plain
// text and TLS on separate ports.
func serveHTTP(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("http", flag.ContinueOnError)
	address := f.String("listen", "", "listen address for plain text")
	secure := f.String("tls", "", "listen address for TLS")
	cert := f.String("cert", "", "PEM file")
	key := f.String("key", "", "PEM file")
	http1 := f.Bool("http1", false, "disable HTTP/2")
	plainHTTP1 := f.Bool("plain-http1", false, "disable HTTP/2 without TLS")
	idle := f.Duration("idle", 0, "idle timeout of connections; 0 means no timeout")
	if err := f.Parse(args); err != nil {
		return err
	}
	s := &httpServer{content: newContent(), runs: map[string]int{}}
	h := &http.Server{Handler: s.handler(), ErrorLog: log.New(io.Discard, "", 0), IdleTimeout: *idle, Protocols: &http.Protocols{}}
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetHTTP2(!*http1)
	h.Protocols.SetUnencryptedHTTP2(!*http1 && !*plainHTTP1)
	return listen(ctx, h, *address, *secure, *cert, *key)
}

// listen runs a plain text server, and also a TLS server if secure is not "".
func listen(ctx context.Context, h *http.Server, address, secure, cert, key string) error {
	ended := make(chan error, 2)
	if secure != "" {
		l, err := net.Listen("tcp", secure)
		if err != nil {
			return fmt.Errorf("http: %w", err)
		}
		go func() { ended <- h.ServeTLS(l, cert, key) }()
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("http: %w", err)
	}
	go func() { ended <- h.Serve(l) }()
	select {
	case <-ctx.Done():
		return h.Close()
	case err := <-ended:
		return fmt.Errorf("http: %w", err)
	}
}

// get responds with content. The query can contain several fields. With "trailer", get also sends
// the checksum as a trailer. With "copies", it sends the content several times. With "ignore", it
// continues to wait after the client has canceled the request.
func (s *httpServer) get(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	size, _ := strconv.Atoi(q.Get("size"))
	seed, _ := strconv.Atoi(q.Get("seed"))
	delay, _ := time.ParseDuration(q.Get("delay"))
	if !(instructions{delay: delay, ignore: q.Has("ignore")}).done(r.Context()) {
		return
	}
	out := s.content.piece(seed, size)
	copies, _ := strconv.Atoi(q.Get("copies"))
	copies = max(1, copies)
	w.Header().Set("Content-Type", "application/octet-stream")
	if q.Has("trailer") {
		w.Header().Set("Trailer", "X-Sum")
	} else {
		w.Header().Set("X-Sum", sumOf(out, copies))
		w.Header().Set("Content-Length", strconv.Itoa(copies*len(out)))
	}
	for range copies {
		if _, err := w.Write(out); err != nil {
			return
		}
	}
	if q.Has("trailer") {
		w.Header().Set("X-Sum", sumOf(out, copies))
	}
}

// sumOf returns the checksum of copies of b.
func sumOf(b []byte, copies int) string {
	crc := crc32.NewIEEE()
	for range copies {
		crc.Write(b)
	}
	return fmt.Sprintf("%08x", crc.Sum32())
}

// done waits for the delay and reports whether the client is still waiting for a response.
func (i instructions) done(ctx context.Context) bool { return i.wait(ctx) == nil }

// post responds with the length and the checksum of the request content.
func (s *httpServer) post(w http.ResponseWriter, r *http.Request) {
	crc := crc32.NewIEEE()
	n, err := io.Copy(crc, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "%d %08x", n, crc.Sum32())
}

// panic does its work, and then panics before it responds.
func (s *httpServer) panic(_ http.ResponseWriter, r *http.Request) {
	in, err := readMessage(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.runs[string(in)]++
	s.mu.Unlock()
	panic("after the work")
}

// work responds with the number of times that the handler of /panic ran, as a gRPC message.
func (s *httpServer) work(w http.ResponseWriter, r *http.Request) {
	in, err := readMessage(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	out := strconv.Itoa(s.runs[string(in)])
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/grpc+proto")
	w.Header().Set("Trailer", "Grpc-Status")
	w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(out))), out...))
	w.Header().Set("Grpc-Status", "0")
}

// readMessage reads one message of gRPC without compression.
func readMessage(r io.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("gRPC message: %w", err)
	}
	in := make([]byte, min(binary.BigEndian.Uint32(head[1:]), 1<<20))
	if _, err := io.ReadFull(r, in); err != nil {
		return nil, fmt.Errorf("gRPC message: %w", err)
	}
	_, err := io.Copy(io.Discard, r)
	return in, err
}
