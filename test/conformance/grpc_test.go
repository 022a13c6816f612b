package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// plain is a codec for messages of type []byte.
type plain struct{}

func (plain) Name() string                    { return "plain" }
func (plain) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (plain) Unmarshal(b []byte, v any) error { *v.(*[]byte) = bytes.Clone(b); return nil }

var echoDesc = grpc.ServiceDesc{
	ServiceName: "test.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Once",
		Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var b []byte
			if err := decode(&b); err != nil {
				return nil, err
			}
			grpc.SetTrailer(ctx, metadata.Pairs("x-sum", fmt.Sprint(len(b))))
			if string(b) == "fail" {
				return nil, status.Error(codes.NotFound, "no such thing: 100 % sure")
			}
			return &b, nil
		},
	}},
	Streams: []grpc.StreamDesc{{
		StreamName:    "Many",
		ServerStreams: true,
		ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			n := 0
			for {
				var b []byte
				err := s.RecvMsg(&b)
				if err == io.EOF {
					s.SetTrailer(metadata.Pairs("x-count", fmt.Sprint(n)))
					return status.Error(codes.AlreadyExists, "all echoed")
				}
				if err != nil {
					return err
				}
				n++
				if err := s.SendMsg(&b); err != nil {
					return err
				}
			}
		},
	}},
}

// grpcApp serves test.Echo on the port of the user container.
func (p *proxy) grpcApp() {
	s := grpc.NewServer(grpc.ForceServerCodec(plain{}))
	s.RegisterService(&echoDesc, nil)
	go s.Serve(p.listen())
	p.t.Cleanup(s.Stop)
}

// grpcHolder starts a user container that echoes the first message of a stream and then waits
// until the stream ends. The channel receives the error of the stream.
func (p *proxy) grpcHolder() (ended <-chan error) {
	end := make(chan error, 1)
	s := grpc.NewServer(grpc.ForceServerCodec(plain{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var b []byte
		if err := errors.Join(s.RecvMsg(&b), s.SendMsg(&b)); err != nil {
			return err
		}
		<-s.Context().Done()
		end <- s.Context().Err()
		return nil
	}))
	go s.Serve(p.listen())
	p.t.Cleanup(s.Stop)
	return end
}

// held opens a stream to the application of grpcHolder and exchanges a message in each direction.
func (p *proxy) held(ctx context.Context) grpc.ClientStream {
	p.t.Helper()
	stream, err := p.grpcClient().NewStream(ctx, &echoDesc.Streams[0], "/any/Thing")
	if err != nil {
		p.t.Fatal(err)
	}
	in, out := []byte("x"), []byte(nil)
	if err := errors.Join(stream.SendMsg(&in), stream.RecvMsg(&out)); err != nil {
		p.t.Fatal(err)
	}
	return stream
}

func (p *proxy) grpcClient(more ...grpc.DialOption) *grpc.ClientConn {
	p.t.Helper()
	c, err := grpc.NewClient("passthrough:///"+p.addr(), append(more,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(plain{})))...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c
}

func TestGRPCStatusAndTrailersAreForwarded(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.grpcApp()
	c := p.grpcClient()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, size := range []int{0, 1, 100_000, 3_000_000} {
		in := noise(size)
		var out []byte
		var trailer metadata.MD
		if err := c.Invoke(ctx, "/test.Echo/Once", &in, &out, grpc.Trailer(&trailer)); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if !bytes.Equal(in, out) || fmt.Sprint(trailer.Get("x-sum")) != fmt.Sprintf("[%d]", size) {
			t.Errorf("got %d bytes and trailer %v, want the %d bytes of the request", len(out), trailer, size)
		}
	}
	in, out := []byte("fail"), []byte(nil)
	err := c.Invoke(ctx, "/test.Echo/Once", &in, &out)
	if status.Code(err) != codes.NotFound || status.Convert(err).Message() != "no such thing: 100 % sure" {
		t.Errorf("got %v, want NotFound with the message from the app", err)
	}
	if err := c.Invoke(ctx, "/test.Echo/None", &in, &out); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v, want Unimplemented", err)
	}
}

// In the bidirectional stream, the client sends each message after it has received the previous
// one. A proxy that buffers messages would block the stream. The status and a trailer follow at
// the end.
func TestGRPCStreamIsNotBuffered(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.grpcApp()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := p.grpcClient().NewStream(ctx, &echoDesc.Streams[0], "/test.Echo/Many")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		in := fmt.Appendf(nil, "message %d", i)
		if err := s.SendMsg(&in); err != nil {
			t.Fatalf("send message %d: %v", i, err)
		}
		var out []byte
		if err := s.RecvMsg(&out); err != nil {
			t.Fatalf("receive message %d: %v", i, err)
		}
		if !bytes.Equal(in, out) {
			t.Fatalf("message %d: got %q, want %q", i, out, in)
		}
	}
	s.CloseSend()
	var out []byte
	err = s.RecvMsg(&out)
	if status.Code(err) != codes.AlreadyExists || status.Convert(err).Message() != "all echoed" {
		t.Errorf("got %v, want AlreadyExists: all echoed", err)
	}
	if got := fmt.Sprint(s.Trailer().Get("x-count")); got != "[1000]" {
		t.Errorf("got trailer x-count %s, want [1000]", got)
	}
}

func TestGRPCCancelReachesApp(t *testing.T) {
	p := newProxy(t)
	p.start()
	ended := p.grpcHolder()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.held(ctx)
	cancel()
	if err := receive(t, "the stream ends in the app", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("stream in the app: got %v, want %v", err, context.Canceled)
	}
}

// docs/promises.md 3.2: responses from the sidecar to gRPC requests have a grpc-status and
// never only an HTTP status.
func TestErrorsForGRPCHaveGRPCStatus(t *testing.T) {
	p := newProxy(t)
	p.start("CONNECT_RETRY=20ms", "CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=0", "REVISION_TIMEOUT_SECONDS=2")
	c := p.grpcClient()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	in, out := []byte("x"), []byte(nil)
	if err := c.Invoke(ctx, "/test.Echo/Once", &in, &out); status.Code(err) != codes.Unavailable {
		t.Errorf("app down: got %v, want Unavailable", err)
	}
	m, err := exchangeH2(dial(t, p.addr()), "POST", "/test.Echo/Once", "http", "a.test",
		[]field{{"Content-Type", "application/grpc"}, {"TE", "trailers"}}, "\x00\x00\x00\x00\x00")
	if err != nil {
		t.Fatal(err)
	}
	if m.status() != 200 || m.get("grpc-status") != "14" || m.Body != "" || m.Trailers != nil {
		t.Errorf("app down: got %q with %v and %d bytes, want 200, trailers only, grpc-status 14", m.Start, m.Fields, len(m.Body))
	}

	p.grpcApp()
	s, err := c.NewStream(ctx, &echoDesc.Streams[0], "/test.Echo/Many")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.SendMsg(&in), s.RecvMsg(&out)); err != nil {
		t.Fatalf("stream with the only slot: %v", err)
	}
	var trailer metadata.MD
	if err := c.Invoke(ctx, "/test.Echo/Once", &in, &out, grpc.Trailer(&trailer)); status.Code(err) != codes.Unavailable {
		t.Errorf("queue full: got %v, want Unavailable", err)
	}
	pushback := strings.Join(trailer.Get("grpc-retry-pushback-ms"), "")
	if n, err := strconv.Atoi(pushback); err != nil || n < 500 || n > 1500 {
		t.Errorf("queue full: got grpc-retry-pushback-ms %q, want 500 to 1500", pushback)
	}
	s.CloseSend()
	if err := s.RecvMsg(&out); status.Code(err) != codes.AlreadyExists {
		t.Errorf("stream with the slot: got %v, want AlreadyExists", err)
	}
}

// A client with an ordinary retry policy succeeds after the queue was full, as with Knative's
// queue-proxy.
func TestGRPCClientRetriesFullQueue(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=0")
	p.grpcApp()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	in, out := []byte("x"), []byte(nil)
	holder, err := p.grpcClient().NewStream(ctx, &echoDesc.Streams[0], "/test.Echo/Many")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(holder.SendMsg(&in), holder.RecvMsg(&out)); err != nil {
		t.Fatalf("stream with the only slot: %v", err)
	}
	c := p.grpcClient(grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`))
	called := make(chan error, 1)
	go func() { called <- c.Invoke(ctx, "/test.Echo/Once", &in, &out) }()
	p.awaitLog(`"reason":"queue-full"`)
	holder.CloseSend()
	holder.RecvMsg(&out)
	if err := receive(t, "the call ends", called); err != nil {
		t.Errorf("got %v, want success after a retry", err)
	}
}

// The request timeout expires before the first byte of the response.
func TestGRPCRequestTimeoutReturnsDeadlineExceeded(t *testing.T) {
	p := newProxy(t)
	p.start("REVISION_TIMEOUT_SECONDS=1", "REVISION_TIMEOUT_SCOPE=request")
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	s := grpc.NewServer(grpc.ForceServerCodec(plain{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		select {
		case <-release:
		case <-s.Context().Done():
		}
		return nil
	}))
	go s.Serve(p.listen())
	t.Cleanup(s.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	in, out := []byte("x"), []byte(nil)
	if err := p.grpcClient().Invoke(ctx, "/any/Thing", &in, &out); status.Code(err) != codes.DeadlineExceeded || ctx.Err() != nil {
		t.Errorf("got %v (context of the client: %v), want DeadlineExceeded from the sidecar", err, ctx.Err())
	}
}
