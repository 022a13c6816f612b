package probe

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
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
)

// healthFunc is a health service that answers as it is told.
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

// serveGRPC runs a real gRPC server; a nil service is none.
func serveGRPC(t *testing.T, service healthpb.HealthServer, o ...grpc.ServerOption) int32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(o...)
	if service != nil {
		healthpb.RegisterHealthServer(server, service)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	return portOf(t, l.Addr())
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

func TestGRPCHealth(t *testing.T) {
	for _, v := range []struct {
		id      string
		service healthpb.HealthServer
		word    Word
		code    int
	}{
		{"G01 SERVING", answers(healthpb.HealthCheckResponse_SERVING), "", 0},
		{"G02 NOT_SERVING", answers(healthpb.HealthCheckResponse_NOT_SERVING), NotServing, 2},
		{"G02 UNKNOWN", answers(healthpb.HealthCheckResponse_UNKNOWN), NotServing, 0},
		{"G02 SERVICE_UNKNOWN", answers(healthpb.HealthCheckResponse_SERVICE_UNKNOWN), NotServing, 3},
		{"G02 9", answers(9), NotServing, 9},
		{"G02 -1", answers(-1), NotServing, -1},
		{"G03 no health service", nil, Unimplemented, 0},
		{"G03 UNIMPLEMENTED", gives(codes.Unimplemented), Unimplemented, 0},
		{"G04 NOT_FOUND", gives(codes.NotFound), RPC, 5},
		{"G05 CANCELLED", gives(codes.Canceled), RPC, 1},
		{"G05 UNKNOWN", gives(codes.Unknown), RPC, 2},
		{"G05 PERMISSION_DENIED", gives(codes.PermissionDenied), RPC, 7},
		{"G05 INTERNAL", gives(codes.Internal), RPC, 13},
		{"G05 UNAVAILABLE", gives(codes.Unavailable), RPC, 14},
		{"G05 UNAUTHENTICATED", gives(codes.Unauthenticated), RPC, 16},
		{"G06 DEADLINE_EXCEEDED", gives(codes.DeadlineExceeded), Timeout, 0},
	} {
		t.Run(v.id, func(t *testing.T) {
			call, _ := askGRPC(&GRPCAction{Port: serveGRPC(t, v.service)})
			wantOutcome(t, try(t, call, 5*time.Second), v.word, v.code)
		})
	}
}

func TestGRPCCallsAsTheKubeletDoes(t *testing.T) { // G01, G09, G10
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
		ask, _ := askGRPC(&GRPCAction{Port: port, Service: service})
		wantOutcome(t, try(t, ask, 5*time.Second), "", 0)
		got, want := <-calls, ""
		if service != nil {
			want = *service
		}
		if got.service != want {
			t.Errorf("service: got %q, want %q", got.service, want)
		}
		if got.agent != agent {
			t.Errorf("user agent: got %q, want %q", got.agent, agent)
		}
		if got.deadline <= 0 || got.deadline > 5*time.Second {
			t.Errorf("deadline: got %v, want what is left of 5 s", got.deadline)
		}
		if last != nil && got.from.String() == last.String() {
			t.Errorf("got the connection of the last try, want a new one")
		}
		last = got.from
	}
}

func TestTheRealHealthServiceIsUnderstood(t *testing.T) {
	service := health.NewServer()
	port := serveGRPC(t, service)
	name := "my.Svc"
	call, _ := askGRPC(&GRPCAction{Port: port, Service: &name})
	wantOutcome(t, try(t, call, 5*time.Second), RPC, 5)
	service.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	wantOutcome(t, try(t, call, 5*time.Second), "", 0)
	service.Shutdown()
	wantOutcome(t, try(t, call, 5*time.Second), NotServing, 2)
}

func TestAGRPCServerThatHangsTimesOut(t *testing.T) { // G07
	port := serveGRPC(t, healthFunc(func(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}))
	call, _ := askGRPC(&GRPCAction{Port: port})
	wantOutcome(t, try(t, call, 50*time.Millisecond), Timeout, 0)
}

func TestGRPCInsideTLS(t *testing.T) {
	certs := httptest.NewUnstartedServer(http.NotFoundHandler())
	certs.StartTLS()
	t.Cleanup(certs.Close)
	over := credentials.NewTLS(&tls.Config{Certificates: certs.TLS.Certificates, NextProtos: []string{"h2"}})
	port := serveGRPC(t, answers(healthpb.HealthCheckResponse_SERVING), grpc.Creds(over))
	mode := "TLS"
	call, target := askGRPC(&GRPCAction{Port: port, Mode: &mode})
	if err := try(t, call, 5*time.Second); err != nil {
		t.Errorf("%s: got %v, want nil", target, err)
	}
	plain, _ := askGRPC(&GRPCAction{Port: port})
	if err := try(t, plain, 500*time.Millisecond); passes(err) {
		t.Error("plaintext to a TLS server: got a pass, want a failure")
	}
}

func TestAnAppThatIsNotGRPC(t *testing.T) { // G08
	h1 := newWebApp(t, 200, 0)
	call, _ := askGRPC(&GRPCAction{Port: h1.port})
	if w := failed(try(t, call, 5*time.Second)).word; w != Garbage && w != Reset {
		t.Errorf("an HTTP/1.1 server: got %s, want garbage, or reset when it closes first", w)
	}
	h2 := newWebApp(t, 0, 200)
	call, _ = askGRPC(&GRPCAction{Port: h2.port})
	wantOutcome(t, try(t, call, 5*time.Second), Garbage, 0)
	down := newWebApp(t, 0, 502)
	call, _ = askGRPC(&GRPCAction{Port: down.port})
	wantOutcome(t, try(t, call, 5*time.Second), Status, 502)
}

func TestServingStatusReadsAMessage(t *testing.T) {
	frame := func(message ...byte) []byte { return append([]byte{0, 0, 0, 0, byte(len(message))}, message...) }
	for name, v := range map[string]struct {
		frame []byte
		want  int
		bad   bool
	}{
		"empty":                        {frame(), 0, false},
		"serving":                      {frame(8, 1), 1, false},
		"the last one counts":          {frame(8, 1, 8, 2), 2, false},
		"unknown fields are skipped":   {frame(16, 7, 26, 2, 'a', 'b', 33, 1, 2, 3, 4, 5, 6, 7, 8, 45, 1, 2, 3, 4, 8, 1), 1, false},
		"no frame":                     {nil, 0, true},
		"a short frame":                {[]byte{0, 0, 0, 0, 9, 8, 1}, 0, true},
		"a compressed frame":           {[]byte{1, 0, 0, 0, 2, 8, 1}, 0, true},
		"a tag without a value":        {frame(8), 0, true},
		"a length past the end":        {frame(26, 200, 1), 0, true},
		"a length past 64 bits":        {frame(26, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1), 0, true},
		"a varint without end":         {frame(8, 128), 0, true},
		"a group, which no one writes": {frame(11), 0, true},
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
		if got := grpcTimeout(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

func FuzzServingStatus(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, 8, 1})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if got, err := servingStatus(frame); err == nil && got == serving && len(frame) < 7 {
			t.Errorf("%x: got SERVING, want it spelt", frame)
		}
	})
}
