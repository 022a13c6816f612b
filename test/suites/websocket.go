//go:build linux

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
)

// A transport is the protocol below WebSocket.
type transport string

const (
	overTCP   transport = "tcp"
	overTLS   transport = "tls"
	overHTTP2 transport = "http2" // WebSockets over HTTP/2 (RFC 8441)
)

// A wsTarget is the address of the application or a proxy.
type wsTarget struct {
	transport transport
	address   string
	config    *tls.Config // TLS configuration of the client; nil without TLS
}

// runWebSocket runs the WebSocket cases. The application supports only HTTP/1.1, so the direct
// variant of the HTTP/2 cases uses HTTP/1.1.
func runWebSocket(t transport) func(context.Context, *environment, variant) (*result, error) {
	return func(ctx context.Context, e *environment, v variant) (*result, error) {
		app, err := startWSApplication(e)
		if err != nil {
			return nil, err
		}
		defer app.stop()
		r := &result{}
		target := wsTarget{transport: t, address: app.plain.Addr().String()}
		if v == direct && t == overHTTP2 {
			target.transport = overTCP
		}
		if v != direct {
			p, err := startProxy(e, v, target.address, false)
			if err != nil {
				return nil, err
			}
			defer func() { r.fail(string(v), p.stop()) }()
			target.address = p.plain
			if t == overTLS {
				target.address = p.tls
			}
		} else if t == overTLS {
			target.address = app.secure.Addr().String()
		}
		if t == overTLS {
			if target.config, err = e.clientTLS(); err != nil {
				return nil, err
			}
		}
		for _, c := range wsCases() {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if c.only != "" && c.only != t || c.library && t == overHTTP2 {
				continue
			}
			r.cases++
			r.fail(c.name, c.run(ctx, app, target))
		}
		return r, nil
	}
}

// clientTLS returns the TLS configuration of a client.
func (e *environment) clientTLS() (*tls.Config, error) {
	cert, err := e.certificate()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(cert) {
		return nil, errors.New("certificate: not valid")
	}
	return &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}}, nil
}

// run runs a case and compares the transcripts.
func (c *wsCase) run(ctx context.Context, app *wsApplication, t wsTarget) error {
	ctx, cancel := context.WithTimeout(ctx, 3*caseTime)
	defer cancel()
	if c.custom != nil {
		return c.custom(ctx, t)
	}
	path := "/echo?" + c.query
	var observed chan []string
	if c.app != nil {
		observed = make(chan []string, 1)
		path = "/script?" + app.register(c.app, observed)
	}
	got, err := t.converse(ctx, path, c)
	if err != nil {
		return err
	}
	if !slices.Equal(got, c.want) {
		return fmt.Errorf("client: got %s, want %s", strings.Join(got, "; "), strings.Join(c.want, "; "))
	}
	if c.app == nil {
		return nil
	}
	select {
	case got = <-observed:
	case <-ctx.Done():
		return errors.New("application: no request")
	}
	if !slices.Equal(got, c.wantApp) {
		return fmt.Errorf("application: got %s, want %s", strings.Join(got, "; "), strings.Join(c.wantApp, "; "))
	}
	return nil
}

// converse opens a connection, runs the steps of the client, and returns the transcript.
// The first event is the result of the handshake.
func (t wsTarget) converse(ctx context.Context, path string, c *wsCase) ([]string, error) {
	header := http.Header{}
	if c.protocols != "" {
		header.Set("Sec-WebSocket-Protocol", c.protocols)
	}
	if c.offer != "" {
		header.Set("Sec-WebSocket-Extensions", c.offer)
	}
	w, conn, r, err := t.open(ctx, path, header, c.change)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if w.StatusCode != http.StatusSwitchingProtocols && (t.transport != overHTTP2 || w.StatusCode != http.StatusOK) {
		return []string{fmt.Sprint(w.StatusCode)}, nil
	}
	opened := "open"
	for _, name := range []string{"Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions"} {
		if v := w.Header.Get(name); v != "" {
			opened += ", " + v
		}
	}
	p := &peer{connection: conn, client: true, context: !strings.Contains(opened, "server_no_context_takeover")}
	return append([]string{opened}, p.play(r, c.client)...), nil
}

// open sends the handshake. change can modify the request of an HTTP/1.1 handshake.
func (t wsTarget) open(ctx context.Context, path string, header http.Header, change func(*http.Request)) (*http.Response, connection, io.Reader, error) {
	if t.transport == overHTTP2 {
		return t.openHTTP2(ctx, path, header)
	}
	conn, err := t.dial(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.address+path, nil)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("handshake: %w", err)
	}
	r.Header = header
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	if change != nil {
		change(r)
	}
	if err := r.Write(conn); err != nil {
		return nil, nil, nil, fmt.Errorf("handshake: %w", err)
	}
	input := bufio.NewReader(conn)
	w, err := http.ReadResponse(input, r)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("handshake: %w", err)
	}
	return w, conn, input, nil
}

// dial opens a TCP or TLS connection.
func (t wsTarget) dial(ctx context.Context) (connection, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", t.address)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	plain := tcpConnection{conn.(*net.TCPConn)}
	if t.config == nil {
		return plain, nil
	}
	config := t.config.Clone()
	config.ServerName = "127.0.0.1"
	secure := tls.Client(conn, config)
	return tlsConnection{secure, plain}, secure.HandshakeContext(ctx)
}

// A tcpConnection is a connection over TCP.
type tcpConnection struct{ *net.TCPConn }

// Reset closes the connection with RST.
func (c tcpConnection) Reset() error {
	return errors.Join(c.SetLinger(0), c.Close())
}

// A tlsConnection is a connection over TLS.
type tlsConnection struct {
	*tls.Conn
	plain tcpConnection
}

// Reset closes the connection with RST and without a TLS alert.
func (c tlsConnection) Reset() error { return c.plain.Reset() }

// openHTTP2 opens a WebSocket connection with an extended CONNECT request (RFC 8441).
func (t wsTarget) openHTTP2(ctx context.Context, path string, header http.Header) (*http.Response, connection, io.Reader, error) {
	ctx, cancel := context.WithCancel(ctx)
	body, input := io.Pipe()
	r, err := http.NewRequestWithContext(ctx, http.MethodConnect, "http://"+t.address+path, body)
	if err != nil {
		cancel()
		return nil, nil, nil, fmt.Errorf("handshake: %w", err)
	}
	r.Header = header
	r.Header.Set(":protocol", "websocket")
	r.Header.Set("Sec-WebSocket-Version", "13")
	client := &http2.Transport{AllowHTTP: true, IdleConnTimeout: time.Second, DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}}
	w, err := client.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, nil, nil, fmt.Errorf("handshake: %w", err)
	}
	return w, &streamConnection{Reader: w.Body, input: input, cancel: cancel}, w.Body, nil
}

// A streamConnection is a connection over one HTTP/2 stream.
type streamConnection struct {
	io.Reader
	input  *io.PipeWriter
	cancel context.CancelFunc
}

func (c *streamConnection) Write(b []byte) (int, error) { return c.input.Write(b) }

// CloseWrite sends END_STREAM.
func (c *streamConnection) CloseWrite() error { return c.input.Close() }

// Reset sends RST_STREAM.
func (c *streamConnection) Reset() error {
	c.cancel()
	return c.input.CloseWithError(context.Canceled)
}

// Close ends the stream in both directions.
func (c *streamConnection) Close() error {
	err := c.input.Close()
	c.cancel()
	return err
}

// A wsApplication is the application for the WebSocket cases. It consists of an echo server that uses
// a WebSocket library, and a server that executes the steps of a case.
type wsApplication struct {
	plain, secure net.Listener
	server        *http.Server
	group         sync.WaitGroup

	mu      sync.Mutex
	scripts map[string]script // scripts by the query of the request
}

// A script contains the steps of the application in one case.
type script struct {
	steps    []step
	observed chan<- []string
}

// startWSApplication starts the application on a plain text port and a TLS port.
func startWSApplication(e *environment) (*wsApplication, error) {
	a := &wsApplication{scripts: map[string]script{}}
	var err error
	if a.plain, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("application: %w", err)
	}
	if a.secure, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("application: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", echo)
	mux.HandleFunc("/script", a.runScript)
	a.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}}
	a.group.Go(func() { a.server.Serve(a.plain) })
	a.group.Go(func() { a.server.ServeTLS(a.secure, filepath.Join(e.dir, "tls.crt"), filepath.Join(e.dir, "tls.key")) })
	return a, nil
}

func (a *wsApplication) stop() {
	a.server.Close()
	a.group.Wait()
}

// register adds a script and returns the query of its requests.
func (a *wsApplication) register(steps []step, observed chan<- []string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	query := fmt.Sprintf("id=%d", len(a.scripts))
	a.scripts[query] = script{steps, observed}
	return query
}

// compressionModes contains the values of the query parameter "compression".
var compressionModes = map[string]websocket.CompressionMode{
	"":          websocket.CompressionDisabled,
	"context":   websocket.CompressionContextTakeover,
	"nocontext": websocket.CompressionNoContextTakeover,
}

// echo returns each message to the client, or responds with the query parameter "status".
func echo(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("status") != "" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols:         []string{"chat", "superchat"},
		CompressionMode:      compressionModes[r.FormValue("compression")],
		CompressionThreshold: 1,
	})
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(maxFrame)
	for {
		kind, message, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if err := c.Write(r.Context(), kind, message); err != nil {
			return
		}
	}
}

// runScript accepts a WebSocket connection and runs the steps of its case.
func (a *wsApplication) runScript(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	s := a.scripts[r.URL.RawQuery]
	a.mu.Unlock()
	conn, input, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.observed <- []string{err.Error()}
		return
	}
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		acceptKey(r.Header.Get("Sec-WebSocket-Key")))
	p := &peer{}
	switch c := conn.(type) {
	case *tls.Conn:
		p.connection = tlsConnection{c, tcpConnection{c.NetConn().(*net.TCPConn)}}
	case *net.TCPConn:
		p.connection = tcpConnection{c}
	}
	s.observed <- p.play(input, s.steps)
}
