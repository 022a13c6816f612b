//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// The cost of telemetry is meaningful only if the telemetry is complete. Therefore the lines
// and spans are counted at their receiver.

// A lineCounter counts the lines that are written to it.
type lineCounter struct{ n atomic.Int64 }

func (c *lineCounter) Write(b []byte) (int, error) {
	c.n.Add(int64(bytes.Count(b, []byte("\n"))))
	return len(b), nil
}

func (c *lineCounter) count() int { return int(c.n.Load()) }

// A spanSink receives OTLP/HTTP spans and counts them.
type spanSink struct {
	address string
	server  *http.Server
	n       atomic.Int64
	bad     atomic.Pointer[error] // error of the first invalid export
}

func newSpanSink() (*spanSink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &spanSink{address: l.Addr().String()}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: patience}
	go s.server.Serve(l)
	return s, nil
}

func (s *spanSink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		var n int
		n, err = countSpans(body)
		s.n.Add(int64(n))
	}
	if err != nil {
		s.bad.CompareAndSwap(nil, &err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf") // the empty response is a valid protobuf message
}

func (s *spanSink) count() int { return int(s.n.Load()) }

// exportError returns the error of the first invalid export, or nil.
func (s *spanSink) exportError() error {
	if err := s.bad.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *spanSink) close() { s.server.Close() }

// countSpans returns the number of spans in an ExportTraceServiceRequest. In opentelemetry-proto,
// the field numbers of resource_spans, scope_spans and spans are 1, 2 and 2.
func countSpans(message []byte) (n int, err error) {
	err = eachField(message, 1, func(resource []byte) error {
		return eachField(resource, 2, func(scope []byte) error {
			return eachField(scope, 2, func([]byte) error {
				n++
				return nil
			})
		})
	})
	return n, err
}

// eachField calls f with each value of a length-delimited protobuf field.
func eachField(message []byte, number uint64, f func([]byte) error) error {
	broken := errors.New("invalid protobuf message")
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return broken
		}
		message = message[n:]
		size := uint64(0)
		switch tag & 7 {
		case 0: // skip a varint
			if _, n = binary.Uvarint(message); n <= 0 {
				return broken
			}
			size = uint64(n)
		case 1:
			size = 8
		case 5:
			size = 4
		case 2:
			if size, n = binary.Uvarint(message); n <= 0 {
				return broken
			}
			message = message[n:]
		default:
			return broken
		}
		if size > uint64(len(message)) {
			return broken
		}
		if tag&7 == 2 && tag>>3 == number {
			if err := f(message[:size]); err != nil {
				return err
			}
		}
		message = message[size:]
	}
	return nil
}

// arrived waits for the expected number of lines or spans, but not longer than the duration
// arrival. If significantly fewer lines or spans arrive, it returns a note. If no line or span
// arrives, it returns an error.
func arrived(what string, count func() int, want float64) (note string, err error) {
	enough := int(want * mostly)
	for end := time.Now().Add(arrival); count() < enough && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	switch got := count(); {
	case got == 0:
		return "", fmt.Errorf("no %ss arrived", what)
	case got < enough:
		return fmt.Sprintf("%.0f %% of the %ss arrived; the others were dropped", 100*float64(got)/want, what), nil
	}
	return "", nil
}

const (
	// mostly is the minimum share of the expected lines or spans. It is less than 1, because a
	// sampler decides randomly for each request.
	mostly = 0.9

	// arrival is the maximum time that exporters keep a batch.
	arrival = 6 * time.Second
)
