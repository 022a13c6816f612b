//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// loads returns the client loads of this program by name.
func loads() map[string]func(context.Context, *load) error {
	return map[string]func(context.Context, *load) error{
		"grpc-unary":     grpcLoad(unaryCall),
		"grpc-chat":      grpcLoad(chatCall),
		"grpc-early":     grpcLoad(earlyEndCall),
		"grpc-codes":     grpcLoad(codeCall),
		"grpc-metadata":  grpcLoad(metadataCall),
		"grpc-upload":    grpcLoad(uploadCall),
		"grpc-download":  grpcLoad(downloadCall),
		"grpc-slow":      grpcLoad(slowReaderCall),
		"grpc-panic":     grpcLoad(panicCall),
		"grpc-subscribe": runSubscriptions,
		"http-get":       httpLoad(getRequest),
		"http-post":      httpLoad(postRequest),
		"connect":        runConnect,
		"repeat":         runTool,
	}
}

// A grpcPeer is a set of client connections to the target.
type grpcPeer struct {
	*load
	conns   []*grpc.ClientConn
	content content
	calls   atomic.Int64
}

// grpcLoad returns a load that repeats a call.
func grpcLoad(call func(p *grpcPeer, ctx context.Context, conn, n int)) func(context.Context, *load) error {
	return func(ctx context.Context, l *load) error {
		p, err := newGRPCPeer(l)
		if err != nil {
			return err
		}
		defer p.close()
		p.repeat(ctx, func(ctx context.Context, conn, n int) { call(p, ctx, conn, n) })
		return nil
	}
}

// retryPolicy lets the client retry calls that end with UNAVAILABLE, as many
// applications configure it. Only the load grpc-panic uses it.
const retryPolicy = `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.01s",
"maxBackoff":"0.1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`

func newGRPCPeer(l *load, more ...grpc.DialOption) (*grpcPeer, error) {
	p := &grpcPeer{load: l, content: newContent()}
	secret, err := l.tlsConfig()
	if err != nil {
		return nil, err
	}
	transport := insecure.NewCredentials()
	if secret != nil {
		transport = credentials.NewTLS(secret)
	}
	settings := append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(maxContent+1024)),
	}, more...)
	if l.path == "retry" {
		settings = append(settings, grpc.WithDefaultServiceConfig(retryPolicy))
	}
	if l.path == "keepalive" {
		settings = append(settings, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
	}
	if l.gzip {
		settings = append(settings, grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name)))
	}
	for range l.conns {
		// A client with the passthrough resolver uses exactly one connection.
		c, err := grpc.NewClient("passthrough:///"+l.target, settings...)
		if err != nil {
			p.close()
			return nil, fmt.Errorf("connect: %w", err)
		}
		p.conns = append(p.conns, c)
	}
	return p, nil
}

func (p *grpcPeer) close() {
	for _, c := range p.conns {
		c.Close()
	}
}

const (
	unaryMethod    = "/endurance.Peer/Unary"
	uploadMethod   = "/endurance.Peer/Upload"
	downloadMethod = "/endurance.Peer/Download"
	chatMethod     = "/endurance.Peer/Chat"
)

// An ending is the outcome of a gRPC call as observed by the client.
type ending struct {
	err             error // error of the call; nil if the status is OK
	header, trailer metadata.MD
}

// kind describes the outcome in words: the code, the message, and the Proxy-Status field if the
// response has one.
func (e ending) kind() string {
	s := status.Convert(e.err)
	kind := s.Code().String()
	if s.Message() != "" {
		kind += ": " + s.Message()
	}
	for _, md := range []metadata.MD{e.header, e.trailer} {
		if v := md.Get("proxy-status"); len(v) > 0 {
			return kind + " [Proxy-Status: " + strings.Join(v, ", ") + "]"
		}
	}
	return kind
}

// check returns an error message if the trailer does not contain the checksum, and "" if
// it does.
func (e ending) check(wantSum string) string {
	if got := strings.Join(e.trailer.Get(sumField), ","); got != wantSum {
		return "missing or wrong trailer: got " + got
	}
	return ""
}

// count counts a call that has ended. n is the length of its content in bytes. The parameter wrong describes an error
// in the content; "" means that the content is correct. Bounded calls can end with an expired deadline or with a
// cancellation.
func (p *grpcPeer) count(e ending, bounded bool, n int, wrong string) {
	code := status.Code(e.err)
	switch {
	case bounded && p.cancel > 0 && code == codes.Canceled, bounded && p.deadline > 0 && code == codes.DeadlineExceeded:
		p.tally.expected(code.String())
	case e.err != nil:
		p.tally.failed(e.kind())
	case wrong != "":
		p.tally.failed(wrong)
	default:
		p.tally.ok(n)
	}
}

// instruct adds the instructions to the metadata of a call.
func instruct(ctx context.Context, do instructions) context.Context {
	return metadata.AppendToOutgoingContext(ctx, instructionField, do.String())
}

// unaryCall makes one unary call. The application delays its response by p.delay. If p.share is
// greater than 1, it only delays the responses to calls with a deadline.
func unaryCall(p *grpcPeer, ctx context.Context, conn, n int) {
	ctx, cancel, bounded := p.callContext(ctx, n)
	defer cancel()
	do := instructions{seed: n % seeds, reply: p.reply, ignore: p.path == "ignore"}
	if bounded || p.share <= 1 {
		do.delay = p.delay
	}
	in := p.content.piece(n, p.size)
	e, out := p.invoke(instruct(ctx, do), conn, in)
	wrong := e.check(sum(in))
	want := in
	if p.reply >= 0 {
		want = p.content.piece(do.seed+1, p.reply)
	}
	if string(out) != string(want) {
		wrong = fmt.Sprintf("wrong content: got %d bytes", len(out))
	}
	p.count(e, bounded, len(in)+len(out), wrong)
}

// invoke makes a unary call.
func (p *grpcPeer) invoke(ctx context.Context, conn int, in []byte) (ending, []byte) {
	var out []byte
	var e ending
	e.err = p.conns[conn].Invoke(ctx, unaryMethod, &in, &out, grpc.Header(&e.header), grpc.Trailer(&e.trailer))
	return e, out
}

// stream opens a stream. The caller must cancel ctx.
func (p *grpcPeer) stream(ctx context.Context, conn int, method string) (grpc.ClientStream, error) {
	return p.conns[conn].NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
}

// end returns how a stream ended. err is the error of the last operation on the stream.
func end(stream grpc.ClientStream, err error) ending {
	if errors.Is(err, io.EOF) {
		err = nil
	}
	e := ending{err: err}
	if stream != nil {
		e.header, _ = stream.Header()
		e.trailer = stream.Trailer()
	}
	return e
}

// chatCall sends messages on one bidirectional stream until the load ends. Every message
// counts as a request.
func chatCall(p *grpcPeer, ctx context.Context, conn, n int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.stream(instruct(ctx, instructions{reply: -1}), conn, chatMethod)
	crc := crc32.NewIEEE()
	for i := 0; err == nil && p.more(); i++ {
		in := p.content.piece(n+i, p.size)
		crc.Write(in)
		watchdog := time.AfterFunc(maxCallTime, cancel)
		var out []byte
		if err = stream.SendMsg(&in); err != nil && !errors.Is(err, io.EOF) {
			break
		}
		if err = stream.RecvMsg(&out); err != nil {
			break
		}
		watchdog.Stop()
		if string(in) != string(out) {
			p.tally.failed(fmt.Sprintf("wrong content: got %d bytes", len(out)))
			return
		}
		p.tally.ok(2 * len(in))
	}
	if err != nil {
		p.tally.failed("stream ended early: " + end(stream, err).kind())
		return
	}
	if err = stream.CloseSend(); err == nil {
		var out []byte
		err = stream.RecvMsg(&out)
	}
	e := end(stream, err)
	p.count(e, false, 0, e.check(fmt.Sprintf("%08x", crc.Sum32())))
}

// earlyEndCall sends messages on a stream that the server ends after the first message. Every
// second stream ends with an error status.
func earlyEndCall(p *grpcPeer, ctx context.Context, conn, n int) {
	ctx, cancel, _ := p.callContext(ctx, 1)
	defer cancel()
	do := instructions{reply: -1, end: 1, message: "early end"}
	if n%2 == 1 {
		do.code = codes.FailedPrecondition
	}
	method := chatMethod
	if n%4 > 1 {
		method = uploadMethod
	}
	in := p.content.piece(n, p.size)
	stream, err := p.stream(instruct(ctx, do), conn, method)
	for i := 0; err == nil && i < max(1, p.options.count); i++ {
		err = stream.SendMsg(&in)
	}
	received := 0
	if err == nil || errors.Is(err, io.EOF) {
		for err = nil; err == nil && stream != nil; {
			var out []byte
			if err = stream.RecvMsg(&out); err == nil {
				received++
			}
		}
	}
	e := end(stream, err)
	switch {
	case status.Code(e.err) != do.code:
		p.tally.failed(fmt.Sprintf("want %v, got %s", do.code, e.kind()))
	case received != 1:
		p.tally.failed(fmt.Sprintf("wrong content: got %d messages", received))
	case e.check(sum(in)) != "":
		p.tally.failed(e.check(sum(in)))
	default:
		p.tally.ok(len(in))
	}
}

// codeCall makes one call. Successive calls request each status code in turn.
func codeCall(p *grpcPeer, ctx context.Context, conn, n int) {
	ctx, cancel, _ := p.callContext(ctx, 1)
	defer cancel()
	want := codes.Code(n % 17)
	message := "reason \u00e4\u4e16 100% of call"
	if want == codes.OK {
		message = ""
	}
	in := p.content.piece(n, p.size)
	e, _ := p.invoke(instruct(ctx, instructions{seed: n % seeds, reply: p.reply, code: want, message: message}), conn, in)
	if s := status.Convert(e.err); s.Code() != want || s.Message() != message {
		p.tally.failed(fmt.Sprintf("want %v, got %s", want, e.kind()))
		return
	}
	e.err = nil
	p.count(e, false, len(in), e.check(sum(in)))
}

// metadataCall sends a binary field of up to 8 KB and expects it in the header and in the
// trailer of the response.
func metadataCall(p *grpcPeer, ctx context.Context, conn, n int) {
	const field = "x-data-bin"
	ctx, cancel, _ := p.callContext(ctx, 1)
	defer cancel()
	value := string(p.content.piece(n, n*61%p.options.count+1))
	in := p.content.piece(n, p.size)
	ctx = metadata.AppendToOutgoingContext(instruct(ctx, instructions{seed: n % seeds, reply: p.reply, echo: field}), field, value)
	e, _ := p.invoke(ctx, conn, in)
	wrong := e.check(sum(in))
	for name, md := range map[string]metadata.MD{"header": e.header, "trailer": e.trailer} {
		if got := strings.Join(md.Get(field), ","); e.err == nil && got != value {
			wrong = name + " contains incorrect binary metadata"
		}
	}
	p.count(e, false, len(in)+3*len(value), wrong)
}
