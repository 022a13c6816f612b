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

// messageSize is the length of the message in each gRPC response in bytes, without its prefix
// of five bytes.
const messageSize = 100

// The flow control windows of the app are so large that a proxy never waits for a window update.
// The app replenishes the window of a connection in steps of windowStep.
const (
	streamWindow     = 1 << 20
	connectionWindow = 1 << 30
	windowStep       = 1 << 20
)

// The parts of each response. The header blocks use only the static table of HPACK (RFC 7541,
// appendix A), so they are the same for all connections.
var (
	grpcHead    = append([]byte{0x88 /* :status: 200 */, 0x0f, 0x10 /* content-type */, 16}, "application/grpc"...)
	grpcMessage = append([]byte{0, 0, 0, 0, messageSize}, make([]byte, messageSize)...)
	grpcTrailer = append(append([]byte{0x00, 11}, "grpc-status"...), 1, '0')
)

// serveGRPC serves one HTTP/2 connection with prior knowledge until the connection ends. It sends
// the same response to each complete request. It does not decode header blocks, because their
// contents do not matter.
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
	_ = g.serve() // ignore the error, because it also makes requests of the load fail
}

// A grpcConn is a connection of serveGRPC. A single goroutine reads and writes.
type grpcConn struct {
	in           *bufio.Reader
	out          *bufio.Writer
	framer       *http2.Framer
	window       int      // remaining window of the connection
	streamWindow int      // initial window of a stream
	waiting      []uint32 // streams that wait for the window of the connection
	received     int      // number of received DATA bytes that are not yet added to the window
}

func (g *grpcConn) serve() error {
	err := errors.Join(
		g.framer.WriteSettings(
			http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1000},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow}),
		g.framer.WriteWindowUpdate(0, connectionWindow),
	)
	for err == nil {
		if g.in.Buffered() == 0 { // flush the responses to all requests that arrived together
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

// take processes a frame.
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
			return fmt.Errorf("stream window of %d bytes is too small for a response", g.streamWindow)
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

// answer queues the response to a request if ended is true, and then sends as many queued
// responses as the window of the connection allows.
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
