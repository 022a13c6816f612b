package probe

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// healthFunc is a health service whose method Check calls the function.
type healthFunc func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error)

func (f healthFunc) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return f(ctx, r)
}

func (healthFunc) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	return nil, status.Error(codes.Unimplemented, "")
}

func (healthFunc) Watch(*healthpb.HealthCheckRequest, grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	return status.Error(codes.Unimplemented, "")
}

// serveGRPC starts a gRPC server and returns its port. If service is nil, the server has no health service.
func serveGRPC(t *testing.T, service healthpb.HealthServer, o ...grpc.ServerOption) int32 {
	t.Helper()
	l := harness.Listen(t)
	server := grpc.NewServer(o...)
	if service != nil {
		healthpb.RegisterHealthServer(server, service)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	return portOf(l.Addr())
}

func answers(s healthpb.HealthCheckResponse_ServingStatus) healthFunc {
	return func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
		return &healthpb.HealthCheckResponse{Status: s}, nil
	}
}

func gives(c codes.Code) healthFunc {
	return func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
		return nil, status.Error(c, "because")
	}
}

func TestGRPCProbeResponses(t *testing.T) {
	for _, v := range []struct {
		id      string
		service healthpb.HealthServer
		word    observation.ReadinessWord
		code    int
	}{
		{"SERVING", answers(healthpb.HealthCheckResponse_SERVING), "", 0},
		{"NOT_SERVING", answers(healthpb.HealthCheckResponse_NOT_SERVING), observation.WordNotServing, 2},
		{"UNKNOWN", answers(healthpb.HealthCheckResponse_UNKNOWN), observation.WordNotServing, 0},
		{"SERVICE_UNKNOWN", answers(healthpb.HealthCheckResponse_SERVICE_UNKNOWN), observation.WordNotServing, 3},
		{"9", answers(9), observation.WordNotServing, 9},
		{"-1", answers(-1), observation.WordNotServing, -1},
		{"no health service", nil, observation.WordUnimplemented, 0},
		{"UNIMPLEMENTED", gives(codes.Unimplemented), observation.WordUnimplemented, 0},
		{"NOT_FOUND", gives(codes.NotFound), observation.WordRPC, 5},
		{"CANCELLED", gives(codes.Canceled), observation.WordRPC, 1},
		{"UNKNOWN", gives(codes.Unknown), observation.WordRPC, 2},
		{"PERMISSION_DENIED", gives(codes.PermissionDenied), observation.WordRPC, 7},
		{"INTERNAL", gives(codes.Internal), observation.WordRPC, 13},
		{"UNAVAILABLE", gives(codes.Unavailable), observation.WordRPC, 14},
		{"UNAUTHENTICATED", gives(codes.Unauthenticated), observation.WordRPC, 16},
		{"DEADLINE_EXCEEDED", gives(codes.DeadlineExceeded), observation.WordTimeout, 0},
	} {
		t.Run(v.id, func(t *testing.T) {
			wantOutcome(t, try(t, first(newGRPCAttempt(&GRPCAction{Port: serveGRPC(t, v.service)})), harness.Patience), v.word, v.code)
		})
	}
}

func TestGRPCCallMatchesKubelet(t *testing.T) {
	type call struct {
		service  string
		agent    string
		deadline time.Duration
		from     net.Addr
	}
	calls := make(chan call, 1)
	port := serveGRPC(t, healthFunc(func(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		deadline, _ := ctx.Deadline()
		from, _ := peer.FromContext(ctx)
		calls <- call{r.GetService(), md.Get("user-agent")[0], time.Until(deadline), from.Addr}
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
	}))
	named, long, empty := "my.Svc", string(make([]byte, 300)), ""
	var last net.Addr
	for _, service := range []*string{nil, &empty, &named, &long} {
		attempt, _ := newGRPCAttempt(&GRPCAction{Port: port, Service: service})
		wantOutcome(t, try(t, attempt, harness.Patience), "", 0)
		got, want := <-calls, ""
		if service != nil {
			want = *service
		}
		harness.Equal(t, got.service, want, "service")
		harness.Equal(t, got.agent, agent, "user agent")
		if got.deadline <= 0 || got.deadline > harness.Patience {
			t.Errorf("deadline: got %v, want at most %v", got.deadline, harness.Patience)
		}
		if last != nil && got.from.String() == last.String() {
			t.Errorf("got the connection of the previous attempt, want a new one")
		}
		last = got.from
	}
}

func TestGRPCWithStandardHealthService(t *testing.T) {
	service := health.NewServer()
	port := serveGRPC(t, service)
	name := "my.Svc"
	call, _ := newGRPCAttempt(&GRPCAction{Port: port, Service: &name})
	wantOutcome(t, try(t, call, harness.Patience), observation.WordRPC, 5)
	service.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	wantOutcome(t, try(t, call, harness.Patience), "", 0)
	service.Shutdown()
	wantOutcome(t, try(t, call, harness.Patience), observation.WordNotServing, 2)
}

func TestGRPCServerWithoutResponseTimesOut(t *testing.T) {
	port := serveGRPC(t, healthFunc(func(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}))
	wantOutcome(t, try(t, first(newGRPCAttempt(&GRPCAction{Port: port})), 50*time.Millisecond), observation.WordTimeout, 0)
}

func TestGRPCOverTLS(t *testing.T) {
	server, _ := harness.TLS(t)
	server.NextProtos = []string{"h2"}
	over := credentials.NewTLS(server)
	port := serveGRPC(t, answers(healthpb.HealthCheckResponse_SERVING), grpc.Creds(over))
	mode := "TLS"
	call, target := newGRPCAttempt(&GRPCAction{Port: port, Mode: &mode})
	harness.Equal(t, try(t, call, harness.Patience), nil, target)
	plain, _ := newGRPCAttempt(&GRPCAction{Port: port})
	if err := try(t, plain, 500*time.Millisecond); passes(err) {
		t.Error("plaintext with a TLS server: got a pass, want a failure")
	}
}

func TestGRPCProbeOfHTTPServerFails(t *testing.T) {
	h1 := newWebApp(t, 200, 0)
	call, _ := newGRPCAttempt(&GRPCAction{Port: h1.port})
	if w := failed(try(t, call, harness.Patience)).word; w != observation.WordGarbage && w != observation.WordReset {
		t.Errorf("HTTP/1.1 server: got %s, want garbage, or reset if the server closes the connection first", w)
	}
	h2 := newWebApp(t, 0, 200)
	wantOutcome(t, try(t, first(newGRPCAttempt(&GRPCAction{Port: h2.port})), harness.Patience), observation.WordGarbage, 0)
	down := newWebApp(t, 0, 502)
	wantOutcome(t, try(t, first(newGRPCAttempt(&GRPCAction{Port: down.port})), harness.Patience), observation.WordStatus, 502)
}

func TestServingStatusOfResponseBody(t *testing.T) {
	frame := func(message ...byte) []byte { return append([]byte{0, 0, 0, 0, byte(len(message))}, message...) }
	for name, v := range map[string]struct {
		frame []byte
		want  int
		bad   bool
	}{
		"empty":                {frame(), 0, false},
		"serving":              {frame(8, 1), 1, false},
		"duplicate field":      {frame(8, 1, 8, 2), 2, false},
		"unknown fields":       {frame(16, 7, 26, 2, 'a', 'b', 33, 1, 2, 3, 4, 5, 6, 7, 8, 45, 1, 2, 3, 4, 8, 1), 1, false},
		"no frame":             {nil, 0, true},
		"short frame":          {[]byte{0, 0, 0, 0, 9, 8, 1}, 0, true},
		"compressed frame":     {[]byte{1, 0, 0, 0, 2, 8, 1}, 0, true},
		"tag without a value":  {frame(8), 0, true},
		"length after the end": {frame(26, 200, 1), 0, true},
		"length above 64 bits": {frame(26, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1), 0, true},
		"varint without end":   {frame(8, 128), 0, true},
		"group without end":    {frame(11), 0, true},
	} {
		got, err := servingStatus(v.frame)
		if got != v.want && err == nil || (err != nil) != v.bad {
			t.Errorf("%s: got %d, %v, want %d, error %v", name, got, err, v.want, v.bad)
		}
	}
}

func TestGRPCTimeoutHasEightDigits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                "1m",
		0:                           "1m",
		time.Microsecond:            "1m",
		100 * time.Millisecond:      "100m",
		time.Second + 1:             "1001m",
		99999999 * time.Millisecond: "99999999m",
		100000 * time.Second:        "100000S",
		2147483647 * time.Second:    "99999999S",
	} {
		harness.Equal(t, grpcTimeout(d), want, d)
	}
}

// FuzzServingStatus compares servingStatus with the package proto.
func FuzzServingStatus(f *testing.F) {
	frame := func(message string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	}
	for _, message := range []string{
		"\x08\x01", "\x08\x02", "", "\x08\x02\x08\x01", "\x08\x81\x80\x80\x80\x80\x80\x80\x80\x80\x01", // twice; 10 bytes
		"\x12\x02\x08\x01", "\x0a\x02\x08\x01", "\x0d\x01\x00\x00\x00", "\x11\x01\x00\x00\x00\x00\x00\x00\x00", // other fields
		"\x0b\x08\x01\x0c", "\x00\x01", "\x08", "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x88\x80\x80\x80\x80\x80\x80\x80\x80\x02\x01",
	} {
		f.Add(frame(message))
	}
	f.Add([]byte{1, 0, 0, 0, 2, 8, 1})                   // compressed
	f.Add([]byte{0, 0, 0, 0, 2, 8, 1, 0, 0, 0, 0, 0})    // two messages
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff, 8, 1, 8, 1}) // wrong length
	f.Fuzz(func(t *testing.T, frame []byte) {
		got, err := servingStatus(frame)
		if len(frame) < 5 || frame[0] != 0 || uint64(binary.BigEndian.Uint32(frame[1:])) != uint64(len(frame)-5) {
			if err == nil {
				t.Errorf("%x: got %d, want an error for an invalid frame", frame, got)
			}
			return
		}
		var want healthpb.HealthCheckResponse
		switch wantErr := proto.Unmarshal(frame[5:], &want); {
		case err == nil && wantErr != nil:
			t.Errorf("%x: got %d, want an error: %v", frame, got, wantErr)
		case err == nil && got != int(want.GetStatus()):
			t.Errorf("%x: got %d, want %d", frame, got, want.GetStatus())
		case err != nil && wantErr == nil:
			t.Errorf("%x: got %v, want %d", frame, err, want.GetStatus())
		}
	})
}
