//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/url"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // register the compressor, so that the server decompresses messages
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// rawCodec sends and receives messages as raw bytes, so that the peers need no generated code in
// any language. Messages are values of type *[]byte.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(b)
	return nil
}

// instructionField is the metadata field with the instructions for the application. Its
// value has the form of a URL query.
const (
	instructionField = "x-do"
	sumField         = "x-sum" // trailer with the checksum of the request
)

// Instructions control the response of the application to one call.
type instructions struct {
	seed    int           // seed of the response content
	reply   int           // number of bytes in a response message; -1 means a copy of the request
	count   int           // number of messages in a download
	end     int           // number of messages after which the server ends the stream; 0 means no limit
	code    codes.Code    // status of the response
	delay   time.Duration // time to wait before the response
	ignore  bool          // the delay continues after the call is canceled
	hold    bool          // the stream stays open until the client disconnects
	message string        // text of the status
	echo    string        // metadata field to copy to the header and the trailer
}

func (i instructions) String() string {
	return fmt.Sprintf("seed=%d&reply=%d&count=%d&end=%d&code=%d&delay=%s&ignore=%t&hold=%t&message=%s&echo=%s",
		i.seed, i.reply, i.count, i.end, i.code, i.delay, i.ignore, i.hold, url.QueryEscape(i.message), i.echo)
}

func parseInstructions(text string) instructions {
	q, err := url.ParseQuery(text)
	if err != nil || text == "" {
		return instructions{reply: -1}
	}
	number := func(name string) int {
		n, _ := strconv.Atoi(q.Get(name))
		return n
	}
	delay, _ := time.ParseDuration(q.Get("delay"))
	return instructions{
		seed: number("seed"), reply: number("reply"), count: number("count"), end: number("end"),
		code: codes.Code(number("code")), delay: delay, ignore: q.Get("ignore") == "true",
		hold: q.Get("hold") == "true", message: q.Get("message"), echo: q.Get("echo"),
	}
}

// A grpcServer is the application of the gRPC rows.
type grpcServer struct{ content content }

// serveGRPC runs the grpc-go server until ctx is done.
func serveGRPC(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("grpc", flag.ContinueOnError)
	listen := f.String("listen", "", "listen address")
	streams := f.Int("streams", 0, "maximum number of streams per connection; 0 means no limit")
	age := f.Duration("age", 0, "maximum age of a connection; 0 means no limit")
	restart := f.Duration("restart", 0, "interval between graceful restarts; 0 means no restarts")
	permit := f.Duration("permit", 0, "minimum time between keepalive PINGs of a client; 0 means the default of 5m")
	if err := f.Parse(args); err != nil {
		return err
	}
	var settings []grpc.ServerOption
	if *permit > 0 {
		settings = append(settings, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: *permit}))
	}
	if *streams > 0 {
		settings = append(settings, grpc.MaxConcurrentStreams(uint32(*streams)))
	}
	if *age > 0 {
		settings = append(settings, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: *age, MaxConnectionAgeGrace: patience}))
	}
	s := &grpcServer{newContent()}
	for ctx.Err() == nil {
		if err := s.serve(ctx, *listen, *restart, settings); err != nil {
			return err
		}
	}
	return nil
}

// serve runs one server until ctx is done. If life is not 0, the server stops gracefully after
// that time without delaying the start of the next server.
func (s *grpcServer) serve(ctx context.Context, address string, life time.Duration, settings []grpc.ServerOption) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("grpc: %w", err)
	}
	g := grpc.NewServer(append(settings, grpc.ForceServerCodec(rawCodec{}),
		grpc.MaxRecvMsgSize(maxContent+1024), grpc.MaxSendMsgSize(maxContent+1024))...)
	g.RegisterService(s.description(), s)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }()
	var over <-chan time.Time
	if life > 0 {
		over = time.After(life)
	}
	select {
	case <-ctx.Done():
		g.Stop()
		return nil
	case <-over:
		l.Close()
		go g.GracefulStop()
		return nil
	case err := <-ended:
		return fmt.Errorf("grpc: %w", err)
	}
}

func (s *grpcServer) description() *grpc.ServiceDesc {
	unary := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var in []byte
		if err := decode(&in); err != nil {
			return nil, err
		}
		out, err := s.unary(ctx, in)
		return &out, err
	}
	return &grpc.ServiceDesc{
		ServiceName: "endurance.Peer",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Unary", Handler: unary}},
		Streams: []grpc.StreamDesc{
			{StreamName: "Upload", Handler: s.upload, ClientStreams: true},
			{StreamName: "Download", Handler: s.download, ServerStreams: true},
			{StreamName: "Chat", Handler: s.chat, ClientStreams: true, ServerStreams: true},
		},
	}
}

// readInstructions returns the instructions in the metadata of a call.
func readInstructions(ctx context.Context) instructions {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, text := range md.Get(instructionField) {
		return parseInstructions(text)
	}
	return instructions{reply: -1}
}

// wait delays a call. It returns an error if the call ends first.
func (i instructions) wait(ctx context.Context) error {
	if i.ignore {
		time.Sleep(i.delay)
		return nil
	}
	if i.delay > 0 {
		select {
		case <-time.After(i.delay):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

// status returns the status of the call as an error, or nil if the status is OK.
func (i instructions) status() error {
	if i.code == codes.OK {
		return nil
	}
	return status.Error(i.code, i.message)
}

func (s *grpcServer) unary(ctx context.Context, in []byte) ([]byte, error) {
	do := readInstructions(ctx)
	if err := do.wait(ctx); err != nil {
		return nil, err
	}
	trailer := metadata.Pairs(sumField, sum(in))
	if do.echo != "" {
		md, _ := metadata.FromIncomingContext(ctx)
		for _, v := range md.Get(do.echo) {
			trailer.Append(do.echo, v)
			if err := grpc.SetHeader(ctx, metadata.Pairs(do.echo, v)); err != nil {
				return nil, err
			}
		}
	}
	if err := grpc.SetTrailer(ctx, trailer); err != nil {
		return nil, err
	}
	if do.reply < 0 {
		return in, do.status()
	}
	return s.content.piece(do.seed+1, do.reply), do.status()
}

// receive calls handle for each message until the client half-closes the stream or sends do.end
// messages. It sets a trailer with the checksum of the messages, and returns the checksum.
func (do instructions) receive(stream grpc.ServerStream, handle func(message []byte) error) (sum string, err error) {
	crc := crc32.NewIEEE()
	for n := 1; ; n++ {
		var in []byte
		err := stream.RecvMsg(&in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		crc.Write(in)
		if err := handle(in); err != nil {
			return "", err
		}
		if n == do.end {
			break
		}
	}
	sum = fmt.Sprintf("%08x", crc.Sum32())
	stream.SetTrailer(metadata.Pairs(sumField, sum))
	return sum, nil
}

// upload reads all messages and returns their checksum.
func (s *grpcServer) upload(_ any, stream grpc.ServerStream) error {
	do := readInstructions(stream.Context())
	sum, err := do.receive(stream, func([]byte) error { return nil })
	if err != nil {
		return err
	}
	out := []byte(sum)
	if err := stream.SendMsg(&out); err != nil {
		return err
	}
	return do.status()
}

// download sends messages.
func (s *grpcServer) download(_ any, stream grpc.ServerStream) error {
	do := readInstructions(stream.Context())
	var in []byte
	if err := stream.RecvMsg(&in); err != nil {
		return err
	}
	for n := range do.count {
		if err := do.wait(stream.Context()); err != nil {
			return err
		}
		out := s.content.piece(do.seed+n, do.reply)
		if err := stream.SendMsg(&out); err != nil {
			return err
		}
	}
	stream.SetTrailer(metadata.Pairs(sumField, sum(in)))
	if do.hold {
		<-stream.Context().Done()
		return status.FromContextError(stream.Context().Err()).Err()
	}
	return do.status()
}

// chat returns each message to the client. It ends the stream after do.end messages, even
// if the client is still sending.
func (s *grpcServer) chat(_ any, stream grpc.ServerStream) error {
	do := readInstructions(stream.Context())
	_, err := do.receive(stream, func(message []byte) error {
		if err := do.wait(stream.Context()); err != nil {
			return err
		}
		return stream.SendMsg(&message)
	})
	if err != nil {
		return err
	}
	return do.status()
}
