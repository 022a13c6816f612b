//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// uploadCall sends count messages and checks the checksum in the response.
func uploadCall(p *grpcPeer, ctx context.Context, conn, n int) {
	ctx, cancel, bounded := p.callContext(ctx, n)
	defer cancel()
	stream, err := p.stream(instruct(ctx, instructions{}), conn, uploadMethod)
	crc := crc32.NewIEEE()
	for i := 0; err == nil && i < p.options.count; i++ {
		in := p.content.piece(n+i, p.size)
		crc.Write(in)
		err = stream.SendMsg(&in)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	var out []byte
	if err == nil || errors.Is(err, io.EOF) {
		if err = stream.RecvMsg(&out); err == nil {
			var none []byte
			err = stream.RecvMsg(&none)
		}
	}
	e, want := end(stream, err), fmt.Sprintf("%08x", crc.Sum32())
	wrong := e.check(want)
	if string(out) != want {
		wrong = "wrong checksum of the upload"
	}
	p.count(e, bounded, p.options.count*p.size, wrong)
}

// downloadCall receives count messages and compares each one.
func downloadCall(p *grpcPeer, ctx context.Context, conn, n int) {
	p.download(ctx, conn, n, 0)
}

// slowReaderCall is a download with a pause before each message is read. Every second worker
// does not pause.
func slowReaderCall(p *grpcPeer, ctx context.Context, conn, n int) {
	pause := time.Duration(0)
	if n%2 == 0 {
		pause = 50 * time.Millisecond
	}
	p.download(ctx, conn, n, pause)
}

// download receives count messages, with a pause before each one.
func (p *grpcPeer) download(ctx context.Context, conn, n int, pause time.Duration) {
	ctx, cancel, bounded := p.callContext(ctx, n)
	defer cancel()
	do := instructions{seed: n % seeds, reply: p.reply, count: p.options.count}
	in := p.content.piece(n, p.size)
	stream, err := p.stream(instruct(ctx, do), conn, downloadMethod)
	if err == nil {
		err = stream.SendMsg(&in)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	received, wrong := 0, ""
	for err == nil {
		time.Sleep(pause)
		var out []byte
		if err = stream.RecvMsg(&out); err != nil {
			break
		}
		if string(out) != string(p.content.piece(do.seed+received, p.reply)) {
			wrong = fmt.Sprintf("wrong content: message of %d bytes", len(out))
		}
		received++
	}
	e := end(stream, err)
	switch {
	case received != do.count:
		wrong = fmt.Sprintf("wrong content: got %d messages", received)
	case wrong == "":
		wrong = e.check(sum(in))
	}
	p.count(e, bounded, received*p.reply, wrong)
}

// callInterval is the time between two calls while subscriptions are open. It is longer than
// the 10 s after which the sidecar checks an idle connection.
const callInterval = 11 * time.Second

// runSubscriptions keeps conns x streams idle streams open, and makes a unary call every
// callInterval. If the option path is "silent", the streams receive no message, and another stream
// is opened instead of each call. All streams must be open at the end.
func runSubscriptions(ctx context.Context, l *load) error {
	p, err := newGRPCPeer(l)
	if err != nil {
		return err
	}
	defer p.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ended sync.WaitGroup
	open := func(conn int) {
		stream, err := p.subscribe(ctx, conn)
		if err != nil {
			l.tally.failed("open: " + end(stream, err).kind())
			return
		}
		ended.Go(func() {
			var out []byte
			err := stream.RecvMsg(&out)
			if status.Code(err) == codes.Canceled && ctx.Err() != nil {
				l.tally.ok(0)
				return
			}
			l.tally.failed("subscription ended: " + end(stream, err).kind())
		})
	}
	for i := range l.conns * l.streams {
		open(i % l.conns)
	}
	for n := 0; l.more(); n++ {
		if l.path == silent {
			open(n % l.conns)
		} else {
			unaryCall(p, ctx, n%l.conns, n)
		}
		time.Sleep(callInterval)
	}
	cancel()
	ended.Wait()
	return nil
}

// silent is the value of the option path for subscriptions without messages.
const silent = "silent"

// subscribe opens a download that sends at most one message and then stays open.
func (p *grpcPeer) subscribe(ctx context.Context, conn int) (grpc.ClientStream, error) {
	do := instructions{count: 1, reply: p.reply, hold: true}
	if p.path == silent {
		do.count = 0
	}
	stream, err := p.stream(instruct(ctx, do), conn, downloadMethod)
	if err != nil {
		return nil, err
	}
	in := p.content.piece(0, p.size)
	if err := stream.SendMsg(&in); err != nil {
		return stream, err
	}
	if err := stream.CloseSend(); err != nil {
		return stream, err
	}
	if do.count == 0 {
		return stream, nil
	}
	var out []byte
	return stream, stream.RecvMsg(&out)
}

// panicCall calls a handler that panics after its work, and then asks the application how often
// the handler ran for this call.
func panicCall(p *grpcPeer, ctx context.Context, conn, n int) {
	ctx, cancel, _ := p.callContext(ctx, 1)
	defer cancel()
	in := fmt.Appendf(nil, "work %d", n)
	var out []byte
	var e ending
	e.err = p.conns[conn].Invoke(ctx, "/panic", &in, &out, grpc.Header(&e.header), grpc.Trailer(&e.trailer))
	if code := status.Code(e.err); code != codes.Internal {
		p.tally.failed("want Internal, got " + e.kind())
		return
	}
	if err := p.conns[conn].Invoke(ctx, "/work", &in, &out); err != nil {
		p.tally.failed("number of runs: " + ending{err: err}.kind())
		return
	}
	if string(out) != "1" {
		p.tally.failed("the handler ran " + string(out) + " times")
		return
	}
	p.tally.ok(len(in))
}
