package knative

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	ping "knative.dev/serving/test/test_images/grpc-ping/proto"
)

const (
	grpcService = "grpc-ping" // name of the Service: one concurrent request, ten queued requests, 100 ms for each request

	// retries is a common retry policy of a gRPC client.
	retries = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5,
		"initialBackoff": "0.5s", "maxBackoff": "2s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

	minPushback, maxPushback = 500, 1500 // in milliseconds
)

func (p *pod) pingClient(options ...grpc.DialOption) ping.PingServiceClient {
	p.t.Helper()
	c, err := grpc.NewClient("passthrough:///"+p.addr(), append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	return ping.NewPingServiceClient(c)
}

// The test makes the same calls as Knative's TestGRPCUnaryPing and TestGRPCStreamingPing.
func grpcCallsAndStreamsSucceed(t *testing.T, _ *Release) {
	p := newPod(t, grpcService)
	p.start()
	p.image("grpc-ping")
	p.waitUntilReady()
	c := p.pingClient()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if got, err := c.Ping(ctx, &ping.Request{Msg: "hello"}); err != nil || got.Msg != "hello" {
		t.Errorf("got %v, %v, want hello", got, err)
	}
	s, err := c.PingStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		msg := "hello " + strconv.Itoa(i)
		if err := s.Send(&ping.Request{Msg: msg}); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Recv(); err != nil || got.Msg != msg {
			t.Fatalf("got %v, %v, want %q", got, err, msg)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Error(err)
	}
}

// pings sends n concurrent calls and returns the errors and trailers of failed calls.
func pings(c ping.PingServiceClient, n int) (failed []error, trailers []metadata.MD) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			var trailer metadata.MD
			if _, err := c.Ping(ctx, &ping.Request{Msg: "hello"}, grpc.Trailer(&trailer)); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed, trailers = append(failed, err), append(trailers, trailer)
			}
		})
	}
	all.Wait()
	return failed, trailers
}

// If the queue is full, gRPC calls get UNAVAILABLE with the time after which clients may retry.
func fullQueueReturnsUnavailable(t *testing.T, _ *Release) {
	p := newPod(t, grpcService)
	p.start()
	p.image("grpc-ping")
	p.waitUntilReady()
	failed, trailers := pings(p.pingClient(grpc.WithDisableRetry()), 40)
	if len(failed) == 0 {
		t.Fatal("the queue is full, but all calls succeeded")
	}
	for i, err := range failed {
		pushback := trailers[i].Get("grpc-retry-pushback-ms")
		ms, bad := 0, errors.New("the response has no pushback")
		if len(pushback) == 1 {
			ms, bad = strconv.Atoi(pushback[0])
		}
		if status.Code(err) != codes.Unavailable || bad != nil || ms < minPushback || ms > maxPushback {
			t.Fatalf("got %v with grpc-retry-pushback-ms %q, want UNAVAILABLE and %d to %d", err, pushback, minPushback, maxPushback)
		}
	}
}

// The calls of a client with a common retry policy succeed even if the queue is full for a short
// time.
func grpcClientRetriesFullQueue(t *testing.T, _ *Release) {
	p := newPod(t, grpcService)
	p.start()
	p.image("grpc-ping")
	p.waitUntilReady()
	if failed, _ := pings(p.pingClient(grpc.WithDefaultServiceConfig(retries)), 24); len(failed) > 0 {
		t.Errorf("%d of 24 calls failed; the first error is: %v", len(failed), failed[0])
	}
}
