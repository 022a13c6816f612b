//go:build soak

package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// startClients starts all clients. They run until ctx is canceled. Their names start with the
// name of the turn.
func (s *soak) startClients(ctx context.Context, clients *sync.WaitGroup, name string) {
	join := func(kind string, n int, secure bool, change func(*ledger.Client)) {
		for i := range n {
			v := s.client(fmt.Sprintf("%s-%s%d", name, kind, i), secure, s.seeded())
			change(v)
			clients.Go(func() {
				s.sendRequests(ctx, v)
				s.note(v.Entries...)
			})
		}
	}
	mixed := append(ledger.Usual(),
		ledger.Get("/sse?n=5&ms=20", 45),
		ledger.Get("/sse?n=5&ms=20", 45).OverH2(),
		ledger.Get("/stream/2000000", 2000000),
		ledger.Get("/bytes/2000000", 2000000).OverH2(),
		ledger.Post("/sink", 1000000),
		ledger.Post("/sink", 1000000).InChunks(),
		ledger.Post("/trailers", 3000).InChunks(),
		ledger.Request{Method: "HEAD", Path: "/bytes/3000", Body: -1, Want: -1},
	)
	join("plain", 4, false, func(v *ledger.Client) { v.Requests = mixed })
	join("tls", 3, true, func(v *ledger.Client) { v.Requests = mixed })
	join("activator", 1, false, func(v *ledger.Client) {
		v.Fields = [][2]string{{"K-Proxy-Request", "activator"}, {"Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
	})
	join("kubelet", 3, false, func(v *ledger.Client) { // three clients, because only two kubelet requests can run in addition to the limit
		v.Requests = []ledger.Request{ledger.Get("/status/200", 0), ledger.Get("/status/200", 0).OverH2()}
		v.Fields = [][2]string{{"User-Agent", "kube-probe/1.35"}}
	})
	join("trouble", 1, false, func(v *ledger.Client) {
		v.Requests = append(ledger.Usual(),
			ledger.Get("/reset", -1),
			ledger.Post("/reset", 10000),
			ledger.Get("/die?after=0", -1),
			ledger.Get("/die?after=70000", -1),
			ledger.Get("/die?after=70000", -1).OverH2(),
			ledger.Get("/garbage", -1),
			ledger.Post("/early?status=413", 100000),
			ledger.Get("/hints?status=200", 0),
		)
	})
	for i := range 2 {
		rng := s.seeded()
		clients.Go(func() { s.call(ctx, fmt.Sprintf("%s-grpc%d", name, i), rng) })
		rng2 := s.seeded()
		clients.Go(func() { s.talk(ctx, fmt.Sprintf("%s-ws%d", name, i), rng2) })
	}
	for every, kind := range map[time.Duration]string{25 * time.Millisecond: "queue", 40 * time.Millisecond: "queue", 50 * time.Millisecond: "probe"} {
		clients.Go(func() { s.probes.follow(ctx, local(s.port.serving), kind, every) })
	}
}

func (s *soak) seeded() *rand.Rand { return rand.New(rand.NewPCG(s.rng.Uint64(), 0)) }

// sendRequests sends requests until ctx is canceled: single requests, concurrent requests, requests
// that are canceled, and requests on new connections.
func (s *soak) sendRequests(ctx context.Context, v *ledger.Client) {
	defer v.Leave()
	for ctx.Err() == nil {
		q := v.Next()
		switch chance := v.Rand.IntN(30); {
		case chance == 0:
			v.AskAndLeave(q, time.Duration(v.Rand.IntN(40_000))*time.Microsecond)
		case chance < 3:
			several := make([]ledger.Request, 2+v.Rand.IntN(4))
			for i := range several {
				several[i] = v.Next()
			}
			v.AskAtOnce(several)
		default:
			v.Ask(q)
		}
		if v.Rand.IntN(15) == 0 {
			v.Leave()
		}
		v.Pause(ctx)
	}
}

// verbatim is a gRPC codec for messages of type []byte.
type verbatim struct{}

func (verbatim) Name() string                    { return "verbatim" }
func (verbatim) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (verbatim) Unmarshal(b []byte, v any) error { *v.(*[]byte) = bytes.Clone(b); return nil }

// call makes unary and streaming gRPC calls and cancels some of them.
func (s *soak) call(ctx context.Context, name string, rng *rand.Rand) {
	c, err := grpc.NewClient("passthrough:///"+local(s.port.serving), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(verbatim{})))
	if err != nil {
		s.t.Error(err)
		return
	}
	defer c.Close()
	for n := 0; ctx.Err() == nil; n++ {
		e := ledger.Entry{ID: fmt.Sprintf("%s-%d", name, n), Method: "POST", Conn: true}
		begun := time.Now()
		mine, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), ledger.IDField, e.ID), ledger.Patience)
		header, trailer, err := s.messages(mine, cancel, c, ledger.Target("/grpc/echo", e.ID), rng, &e)
		cancel()
		a := http.Response{StatusCode: http.StatusOK, Header: http.Header{}}
		for _, md := range []metadata.MD{header, trailer} {
			for name, values := range md {
				a.Header[http.CanonicalHeaderKey(name)] = values
			}
		}
		switch {
		case e.Left:
			e.Verdict, e.Word = ledger.Broken, "by its client"
		case err != nil && a.Header.Get("Proxy-Status") == "":
			e.Fail(err, time.Since(begun))
		default:
			if err != nil {
				a.Header.Set("Grpc-Status", "refused") // the gRPC client does not expose Grpc-Status, so it is set to any value other than 0
			}
			e.Classify(-1, &a, nil)
		}
		s.note(e)
		time.Sleep(time.Duration(10+rng.IntN(30)) * time.Millisecond)
	}
}

// messages makes one call.
func (s *soak) messages(ctx context.Context, cancel func(), c *grpc.ClientConn, method string, rng *rand.Rand, e *ledger.Entry) (header, trailer metadata.MD, err error) {
	in, out := bytes.Repeat([]byte("m"), rng.IntN(30_000)), []byte(nil)
	echoed := func(err error) error {
		if err == nil && !bytes.Equal(in, out) {
			return fmt.Errorf("got an echo of %d bytes, want %d", len(out), len(in))
		}
		return err
	}
	if rng.IntN(2) == 0 {
		err := c.Invoke(ctx, method, &in, &out, grpc.Header(&header), grpc.Trailer(&trailer))
		return header, trailer, echoed(err)
	}
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return nil, nil, err
	}
	e.Left = rng.IntN(8) == 0
	for range 1 + rng.IntN(20) {
		// If SendMsg returns io.EOF, RecvMsg returns the cause.
		if err = stream.SendMsg(&in); err == nil || errors.Is(err, io.EOF) {
			err = echoed(stream.RecvMsg(&out))
		}
		if err != nil {
			break
		}
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
	}
	if e.Left {
		cancel()
		return nil, nil, err
	}
	if err == nil {
		stream.CloseSend()
		if err = stream.RecvMsg(&out); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = errors.New("got an additional message")
		}
	}
	header, _ = stream.Header()
	return header, stream.Trailer(), err
}

// talk opens WebSockets and closes most of them with a Close frame.
func (s *soak) talk(ctx context.Context, name string, rng *rand.Rand) {
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	for n := 0; ctx.Err() == nil; n++ {
		e := ledger.Entry{ID: fmt.Sprintf("%s-%d", name, n), Method: "GET", Conn: true}
		s.exchangeMessages(ctx, c, rng, &e)
		s.note(e)
		time.Sleep(time.Duration(20+rng.IntN(50)) * time.Millisecond)
	}
}

func (s *soak) exchangeMessages(ctx context.Context, c *http.Client, rng *rand.Rand, e *ledger.Entry) {
	begun := time.Now()
	mine, cancel := context.WithTimeout(context.Background(), ledger.Patience)
	defer cancel()
	ws, a, err := websocket.Dial(mine, "ws://"+local(s.port.serving)+ledger.Target("/ws", e.ID), &websocket.DialOptions{HTTPClient: c, HTTPHeader: http.Header{ledger.IDField: {e.ID}}})
	if err != nil {
		if a != nil {
			e.Classify(-1, a, nil)
		} else {
			e.Fail(err, time.Since(begun))
		}
		return
	}
	defer ws.CloseNow()
	e.Left = rng.IntN(8) == 0
	text := bytes.Repeat([]byte("w"), rng.IntN(5000))
	for range 1 + rng.IntN(60) {
		var got []byte
		if err = ws.Write(mine, websocket.MessageBinary, text); err == nil {
			_, got, err = ws.Read(mine)
		}
		if err == nil && !bytes.Equal(got, text) {
			err = fmt.Errorf("got an echo of %d bytes, want %d", len(got), len(text))
		}
		if err != nil || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
	}
	switch {
	case e.Left:
		e.Verdict, e.Word = ledger.Broken, "by its client"
	case err == nil:
		err = ws.Close(websocket.StatusNormalClosure, "")
		fallthrough
	default:
		if err != nil {
			e.Fail(err, time.Since(begun))
			return
		}
		e.Classify(-1, a, nil)
	}
}

// probes sends the probes of the activator and the ingress and counts them.
type probes struct {
	sent, answered atomic.Int64 // number of queue probes
	hashes         atomic.Int64
}

// follow sends probes at an interval until ctx is canceled. It opens a new connection from time
// to time.
func (p *probes) follow(ctx context.Context, address, kind string, every time.Duration) {
	c := &http.Client{Timeout: 300 * time.Millisecond, Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	for n := 0; ctx.Err() == nil; n++ {
		if n%50 == 0 {
			c.CloseIdleConnections()
		}
		_ = p.ask(c, address, kind) // ignore the error, because ask counts failed probes
		time.Sleep(every)
	}
}

// ask sends one probe. It returns an error if the probe fails.
func (p *probes) ask(c *http.Client, address, kind string) error {
	r, err := http.NewRequest(http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return err
	}
	r.Header.Set("K-Network-Probe", kind)
	r.Header.Set("K-Network-Hash", "some-hash")
	if kind == "queue" {
		p.sent.Add(1)
	} else {
		p.hashes.Add(1)
	}
	a, err := c.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		return err
	}
	switch {
	case kind == "queue":
		p.answered.Add(1)
		if a.StatusCode != http.StatusOK || string(body) != "queue" {
			return fmt.Errorf("got %d %q, want 200 queue", a.StatusCode, body)
		}
	case a.StatusCode != http.StatusOK || a.Header.Get("K-Network-Hash") != "some-hash":
		return fmt.Errorf("got %d %q, want 200 with the hash", a.StatusCode, a.Header)
	}
	return nil
}

// injectFaults injects faults sequentially until ctx is canceled.
func (s *soak) injectFaults(ctx context.Context, clients *sync.WaitGroup, name string) {
	sleep := func(least, most int) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(least+s.rng.IntN(most-least)) * time.Millisecond):
		}
	}
	n := 0
	rude := func(behave func(net.Conn), text string) {
		n++
		s.sendPartialRequest(clients, fmt.Sprintf("%s-rude%d", name, n), behave, text)
	}
	toTheEnd := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	faults := []struct {
		name string
		do   func()
	}{
		{"kill", func() {
			s.app.kill()
			sleep(1, 900)
			s.startApp()
		}},
		{"pause", func() {
			s.app.signal(syscall.SIGSTOP)
			sleep(300, 2500)
			s.app.signal(syscall.SIGCONT)
		}},
		{"burst", func() {
			n++
			s.burst(clients, fmt.Sprintf("%s-burst%d", name, n))
		}},
		{"stall", func() {
			for range 5 {
				rude(toTheEnd, "POST /sink?id=ID HTTP/1.1\r\nHost: a\r\nX-Id: ID\r\nContent-Le")
				rude(toTheEnd, "POST /sink?id=ID HTTP/1.1\r\nHost: a\r\nX-Id: ID\r\nContent-Length: 50\r\n\r\nhalf of it")
				rude(func(net.Conn) { time.Sleep(time.Second) }, "GET /stream/50000000?id=ID HTTP/1.1\r\nHost: a\r\nX-Id: ID\r\n\r\n")
			}
		}},
		{"half-close", func() {
			half := func(c net.Conn) {
				c.(*net.TCPConn).CloseWrite()
				toTheEnd(c)
			}
			for range 5 {
				rude(half, "GET /slow?ms=100&id=ID HTTP/1.1\r\nHost: a\r\nX-Id: ID\r\n\r\n")
				rude(half, "POST /sink?id=ID HTTP/1.1\r\nHost: a\r\nX-Id: ID\r\nContent-Length: 50\r\n\r\nhalf of it")
			}
		}},
		{"certificate", s.writeCertificate},
		{"log level", func() { s.setLogLevel([]string{"debug", "info", "error"}[s.rng.IntN(3)]) }},
	}
	for sleep(500, 1500); ctx.Err() == nil; sleep(500, 3000) {
		f := faults[s.rng.IntN(len(faults))]
		f.do()
		s.mu.Lock()
		s.faults[f.name]++
		s.mu.Unlock()
	}
}

// sendPartialRequest sends a part of a request and then calls behave with the connection.
func (s *soak) sendPartialRequest(clients *sync.WaitGroup, id string, behave func(net.Conn), text string) {
	s.note(ledger.Entry{ID: id, Method: "rude", Verdict: ledger.Broken, Word: "by its client", Left: true})
	clients.Go(func() {
		c, err := net.Dial("tcp", local(s.port.serving))
		if err != nil {
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(ledger.Patience))
		if _, err := io.WriteString(c, strings.ReplaceAll(text, "ID", id)); err == nil {
			behave(c)
		}
	})
}

// burst sends 80 concurrent requests from 80 new clients.
func (s *soak) burst(clients *sync.WaitGroup, name string) {
	for i := range 80 {
		v := s.client(fmt.Sprintf("%s-%d", name, i), false, s.seeded())
		clients.Go(func() {
			defer v.Leave()
			q := ledger.Get("/slow?ms=300", 5)
			q.H2 = i%2 == 0
			v.Ask(q)
			s.note(v.Entries...)
		})
	}
}

func (s *soak) writeCertificate() {
	if err := ledger.WritePair(s.dir); err != nil {
		s.t.Error(err)
	}
}

func (s *soak) setLogLevel(level string) {
	r, err := http.NewRequest(http.MethodPut, "http://"+local(s.port.status)+"/log-level", strings.NewReader(`{"level":"`+level+`"}`))
	if err != nil {
		s.t.Error(err)
		return
	}
	a, err := s.scraper.Do(r)
	if err != nil || a.StatusCode != http.StatusOK {
		s.t.Errorf("log level: got %v %v, want 200", a, err)
		return
	}
	_, _ = io.Copy(io.Discard, a.Body)
	a.Body.Close()
}
