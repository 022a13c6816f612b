//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"
)

// serveConnect runs a connect-go server until ctx is done.
func serveConnect(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("connect", flag.ContinueOnError)
	address := f.String("listen", "", "listen address for plain text")
	secure := f.String("tls", "", "listen address for TLS")
	cert := f.String("cert", "", "PEM file")
	key := f.String("key", "", "PEM file")
	if err := f.Parse(args); err != nil {
		return err
	}
	s := &grpcServer{newContent()}
	mux := http.NewServeMux()
	mux.Handle(unaryMethod, connect.NewUnaryHandler(unaryMethod, s.connectUnary, connect.WithCodec(rawCodec{})))
	mux.Handle(chatMethod, connect.NewBidiStreamHandler(chatMethod, s.connectChat, connect.WithCodec(rawCodec{})))
	h := &http.Server{Handler: mux, Protocols: &http.Protocols{}, ReadHeaderTimeout: patience}
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetHTTP2(true)
	h.Protocols.SetUnencryptedHTTP2(true)
	return listen(ctx, h, *address, *secure, *cert, *key)
}

func (s *grpcServer) connectUnary(ctx context.Context, r *connect.Request[[]byte]) (*connect.Response[[]byte], error) {
	do := parseInstructions(r.Header().Get(instructionField))
	if err := do.wait(ctx); err != nil {
		return nil, connect.NewError(connect.CodeCanceled, err)
	}
	if do.code != 0 {
		return nil, connect.NewError(connect.Code(do.code), errors.New(do.message))
	}
	out := s.content.piece(do.seed+1, do.reply)
	w := connect.NewResponse(&out)
	w.Trailer().Set(sumField, sum(*r.Msg))
	return w, nil
}

// connectChat returns each message to the client.
func (s *grpcServer) connectChat(_ context.Context, stream *connect.BidiStream[[]byte, []byte]) error {
	var all []byte
	for {
		in, err := stream.Receive()
		if err != nil {
			break
		}
		all = append(all, *in...)
		if err := stream.Send(in); err != nil {
			return err
		}
	}
	stream.ResponseTrailer().Set(sumField, sum(all))
	return nil
}

// runConnect makes unary calls and opens short bidirectional streams with connect-go. The option
// "path" selects the protocol: "grpc", "grpcweb" or "connect".
func runConnect(ctx context.Context, l *load) error {
	h, err := newHTTPPeer(l)
	if err != nil {
		return err
	}
	settings := []connect.ClientOption{connect.WithCodec(rawCodec{})}
	switch l.path {
	case "grpc":
		settings = append(settings, connect.WithGRPC())
	case "grpcweb":
		settings = append(settings, connect.WithGRPCWeb())
	case "connect":
	default:
		return fmt.Errorf("protocol %s: unknown", l.path)
	}
	if err := h.connect(ctx); err != nil {
		return err
	}
	type client = connect.Client[[]byte, []byte]
	var unary, chat []*client
	for _, c := range h.clients {
		unary = append(unary, connect.NewClient[[]byte, []byte](c, h.base+unaryMethod, settings...))
		chat = append(chat, connect.NewClient[[]byte, []byte](c, h.base+chatMethod, settings...))
	}
	l.repeat(ctx, func(ctx context.Context, conn, n int) {
		if n%10 == 0 {
			h.connectChat(ctx, chat[conn], n)
		} else {
			h.connectUnary(ctx, unary[conn], n)
		}
	})
	return nil
}

// connectUnary makes one unary call.
func (p *httpPeer) connectUnary(ctx context.Context, c *connect.Client[[]byte, []byte], n int) {
	ctx, cancel, bounded := p.callContext(ctx, n)
	defer cancel()
	in := p.content.piece(n, p.size)
	r := connect.NewRequest(&in)
	do := instructions{seed: n % seeds, reply: p.reply}
	if bounded || p.share <= 1 {
		do.delay = p.delay
	}
	r.Header().Set(instructionField, do.String())
	w, err := c.CallUnary(ctx, r)
	wrong := ""
	switch {
	case err != nil:
	case w.Trailer().Get(sumField) != sum(in):
		wrong = "missing or wrong trailer"
	case string(*w.Msg) != string(p.content.piece(do.seed+1, p.reply)):
		wrong = fmt.Sprintf("wrong content: got %d bytes", len(*w.Msg))
	}
	p.count(ctx, bounded, p.size+p.reply, connectProblem(err), wrong)
}

// connectChat sends count messages on one stream.
func (p *httpPeer) connectChat(ctx context.Context, c *connect.Client[[]byte, []byte], n int) {
	ctx, cancel := context.WithTimeout(ctx, maxCallTime)
	defer cancel()
	stream := c.CallBidiStream(ctx)
	var all []byte
	for i := range p.options.count {
		in := p.content.piece(n+i, p.size)
		if err := stream.Send(&in); err != nil {
			break // the following Receive returns the reason
		}
		all = append(all, in...)
		out, err := stream.Receive()
		if err != nil {
			p.count(ctx, false, 0, connectProblem(err), "")
			return
		}
		if string(*out) != string(in) {
			p.count(ctx, false, 0, nil, fmt.Sprintf("wrong content: got %d bytes", len(*out)))
			return
		}
	}
	err := stream.CloseRequest()
	if _, e := stream.Receive(); err == nil && !strings.Contains(fmt.Sprint(e), "EOF") {
		err = e
	}
	wrong := ""
	if err == nil && stream.ResponseTrailer().Get(sumField) != sum(all) {
		wrong = "missing or wrong trailer"
	}
	stream.CloseResponse()
	p.count(ctx, false, 2*len(all), connectProblem(err), wrong)
}

// connectProblem adds the Proxy-Status field to an error of connect-go.
func connectProblem(err error) error {
	var e *connect.Error
	if !errors.As(err, &e) {
		return err
	}
	if v := e.Meta().Get("Proxy-Status"); v != "" {
		return fmt.Errorf("%w [Proxy-Status: %s]", err, v)
	}
	return err
}
