//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// bytesCodec is a codec for messages of type []byte.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "bytes" }

func (bytesCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func TestGRPCCallsSucceed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the listener is closed at the end of the test
			}
			go serveGRPC(c)
		}
	}()
	// Use the smallest windows that gRPC allows, so that responses wait for the client.
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialConnWindowSize(65535), grpc.WithInitialWindowSize(65535), grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	const callers, calls = 64, 50
	errs := make(chan error, callers*calls)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range calls {
				request, response := make([]byte, 1000), []byte(nil)
				err := conn.Invoke(ctx, "/bench.Echo/Call", &request, &response)
				if err == nil && len(response) != messageSize {
					err = fmt.Errorf("got a message of %d bytes, want %d", len(response), messageSize)
				}
				if err != nil {
					errs <- err
				}
			}
		})
	}
	all.Wait()
	close(errs)
	if n := len(errs); n > 0 {
		t.Errorf("got %d failures of %d calls, want 0; first error: %v", n, callers*calls, <-errs)
	}
}
