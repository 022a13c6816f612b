//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/net/http2"
)

// messageSize is the length of the message in each gRPC response, in bytes,
// without the five that precede it.
const messageSize = 100

// The windows that the app gives its clients: more than they ever fill, so that no
// proxy waits for the app. What was used of the connection's is given back in steps.
const (
	streamWindow     = 1 << 20
	connectionWindow = 1 << 30
	windowStep       = 1 << 20
)

// The parts of every response. The header blocks use nothing but HPACK's static
// table (RFC 7541, appendix A), so they are the same on every connection.
var (
	grpcHead    = append([]byte{0x88 /* :status: 200 */, 0x0f, 0x10 /* content-type */, 16}, "application/grpc"...)
	grpcMessage = append([]byte{0, 0, 0, 0, messageSize}, make([]byte, messageSize)...)
	grpcTrailer = append(append([]byte{0x00, 11}, "grpc-status"...), 1, '0')
)

// serveGRPC answers one connection of HTTP/2 by prior knowledge until it ends:
// every request, whatever its path, when all of it has come. Header blocks are
// not decoded: what they say changes nothing.
func serveGRPC(c net.Conn) {
	defer c.Close()
	in := bufio.NewReaderSize(c, readSize)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(in, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	g := &grpcConn{in: in, out: bufio.NewWriterSize(c, readSize), window: 65535, streamWindow: 65535}
	g.framer = http2.NewFramer(g.out, g.in)
	g.framer.SetReuseFrames()
	_ = g.serve() // the client has gone, or is one that the bench does not use: its requests fail, which the bench reports
}

// A grpcConn is one connection. One goroutine reads and writes.
type grpcConn struct {
	in           *bufio.Reader
	out          *bufio.Writer
	framer       *http2.Framer
	window       int      // how many bytes of DATA the client takes on the connection
	streamWindow int      // and on each stream
	waiting      []uint32 // streams whose answers do not fit into window
	received     int      // bytes of DATA that were not given back yet
}

func (g *grpcConn) serve() error {
	err := errors.Join(
		g.framer.WriteSettings(
			http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1000},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow}),
		g.framer.WriteWindowUpdate(0, connectionWindow),
	)
	for err == nil {
		if g.in.Buffered() == 0 { // answers to all that came at once leave at once
			if err := g.out.Flush(); err != nil {
				return err
			}
		}
		var f http2.Frame
		if f, err = g.framer.ReadFrame(); err == nil {
			err = g.take(f)
		}
	}
	return err
}

// take does what a frame asks for.
func (g *grpcConn) take(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.HeadersFrame:
		return g.answer(f.StreamID, f.StreamEnded())
	case *http2.DataFrame:
		if g.received += int(f.Length); g.received >= windowStep {
			if err := g.framer.WriteWindowUpdate(0, uint32(g.received)); err != nil {
				return err
			}
			g.received = 0
		}
		return g.answer(f.StreamID, f.StreamEnded())
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
			g.streamWindow = int(v)
		}
		if g.streamWindow < len(grpcMessage) {
			return fmt.Errorf("a stream's window of %d bytes is too small for an answer", g.streamWindow)
		}
		return g.framer.WriteSettingsAck()
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return g.framer.WritePing(true, f.Data)
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			g.window += int(f.Increment)
		}
		return g.answer(0, false)
	}
	return nil
}

// answer answers a request that has ended, and those that waited, as far as the
// connection's window allows.
func (g *grpcConn) answer(stream uint32, ended bool) error {
	if ended {
		g.waiting = append(g.waiting, stream)
	}
	for len(g.waiting) > 0 && g.window >= len(grpcMessage) {
		stream := g.waiting[0]
		g.waiting = append(g.waiting[:0], g.waiting[1:]...)
		g.window -= len(grpcMessage)
		if err := errors.Join(
			g.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: grpcHead, EndHeaders: true}),
			g.framer.WriteData(stream, false, grpcMessage),
			g.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: grpcTrailer, EndHeaders: true, EndStream: true}),
		); err != nil {
			return err
		}
	}
	return nil
}
