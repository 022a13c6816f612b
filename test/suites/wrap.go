//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The connectrpc runner and the programs under test exchange messages of the package
// connectrpc.conformance.v1. Each message is preceded by its length in four bytes. Go code
// outside the module of the runner cannot import the types of the messages, so this program
// changes the encoded fields.
const (
	serverRequestVersion     protowire.Number = 2 // HTTP version: 1 or 2
	serverRequestTLS         protowire.Number = 4
	serverRequestCredentials protowire.Number = 7

	serverResponseHost        protowire.Number = 1
	serverResponsePort        protowire.Number = 2
	serverResponseCertificate protowire.Number = 3

	clientRequestVersion     protowire.Number = 2 // HTTP version: 1 or 2
	clientRequestHost        protowire.Number = 6
	clientRequestPort        protowire.Number = 7
	clientRequestCertificate protowire.Number = 8 // certificate of the server; empty without TLS
)

// maxMessage is the maximum length of a message in bytes, which is the limit of the
// runner.
const maxMessage = 16 << 20

// readMessage reads a message that is preceded by its length. It returns io.EOF after the last
// message.
func readMessage(r io.Reader) ([]byte, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(prefix[:])
	if n > maxMessage {
		return nil, fmt.Errorf("message: length %d exceeds %d bytes", n, maxMessage)
	}
	message := make([]byte, n)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, fmt.Errorf("message: %w", io.ErrUnexpectedEOF)
	}
	return message, nil
}

// writeMessage writes the length of a message and the message.
func writeMessage(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...))
	return err
}

// fields contains the varint and bytes fields of a message. If a field occurs several times,
// the last value is used.
type fields struct {
	varints map[protowire.Number]uint64
	bytes   map[protowire.Number][]byte
}

// parseFields returns the fields of a message and removes the fields with the given
// numbers from a copy of the message.
func parseFields(message []byte, remove ...protowire.Number) (values fields, rest []byte, err error) {
	values = fields{varints: map[protowire.Number]uint64{}, bytes: map[protowire.Number][]byte{}}
	for len(message) > 0 {
		number, kind, header := protowire.ConsumeTag(message)
		if header < 0 {
			return values, nil, protowire.ParseError(header)
		}
		size := protowire.ConsumeFieldValue(number, kind, message[header:])
		if size < 0 {
			return values, nil, protowire.ParseError(size)
		}
		value := message[header : header+size]
		switch kind {
		case protowire.VarintType:
			values.varints[number], _ = protowire.ConsumeVarint(value)
		case protowire.BytesType:
			values.bytes[number], _ = protowire.ConsumeBytes(value)
		}
		kept := true
		for _, n := range remove {
			kept = kept && n != number
		}
		if kept {
			rest = append(rest, message[:header+size]...)
		}
		message = message[header+size:]
	}
	return values, rest, nil
}

// appendAddress appends the fields with the host and the port of an address.
func appendAddress(message []byte, host, portNumber protowire.Number, address string) ([]byte, error) {
	name, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	message = appendBytes(message, host, []byte(name))
	return appendVarint(message, portNumber, n), nil
}

func appendBytes(message []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(message, number, protowire.BytesType), value)
}

func appendVarint(message []byte, number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(message, number, protowire.VarintType), value)
}

// defectPrefix begins a line that reports a defect outside of any case.
const defectPrefix = "DEFECT: "

// stopProxy stops a proxy and prints any defect to standard error, which is part of the
// runner's output.
func stopProxy(p *proxy) {
	if err := p.stop(); err != nil {
		fmt.Fprintln(os.Stderr, defectPrefix+shorten(err.Error()))
	}
}

// underTestFlags reads the options of a subcommand.
func underTestFlags(args []string) (e *environment, v variant, otherVersion bool, err error) {
	e = &environment{}
	f := flag.NewFlagSet("suites", flag.ContinueOnError)
	f.StringVar(&e.sidecar, "sidecar", "", "path of the queue-proxy program")
	f.StringVar(&e.programs, "programs", "", "directory that contains the programs of the suites")
	f.StringVar(&e.dir, "dir", "", "directory of the run")
	f.StringVar((*string)(&v), "variant", "", "variant of the run")
	f.BoolVar(&otherVersion, "other-version", false, "use a different HTTP version for the application")
	return e, v, otherVersion, f.Parse(args)
}

// serveUnderTest is the server under test: it starts the reference server with a proxy in
// front of it, and reports the address of the proxy. The proxy terminates TLS.
func serveUnderTest(ctx context.Context, args []string) error {
	e, v, otherVersion, err := underTestFlags(args)
	if err != nil {
		return err
	}
	request, err := readMessage(os.Stdin)
	if err != nil {
		return fmt.Errorf("read the runner's request: %w", err)
	}
	request, useTLS, http2, err := plainServerRequest(request, otherVersion)
	if err != nil {
		return err
	}
	server := &process{cmd: exec.Command(filepath.Join(e.programs, "referenceserver"))}
	server.cmd.Stderr = os.Stderr
	stdin, err := server.cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("reference server: %w", err)
	}
	stdout, err := server.cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("reference server: %w", err)
	}
	if err := server.start(); err != nil {
		return err
	}
	defer server.stop()
	if err := errors.Join(writeMessage(stdin, request), stdin.Close()); err != nil {
		return fmt.Errorf("reference server: %w", err)
	}
	response, err := readMessage(stdout)
	if err != nil {
		return fmt.Errorf("read the response of the reference server: %w", err)
	}
	values, _, err := parseFields(response)
	if err != nil {
		return fmt.Errorf("read the response of the reference server: %w", err)
	}
	p, err := startProxy(e, v, values.address(serverResponseHost, serverResponsePort), http2)
	if err != nil {
		return err
	}
	defer stopProxy(p)
	if response, err = e.serverResponse(p, useTLS); err != nil {
		return err
	}
	if err := writeMessage(os.Stdout, response); err != nil {
		return fmt.Errorf("write the response to the runner: %w", err)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-server.done:
		return errors.New("the reference server exited")
	case <-orphaned(ctx):
		return errors.New("the runner exited")
	}
}

// orphaned returns a channel that is closed after the parent process exits.
func orphaned(ctx context.Context) <-chan struct{} {
	parent := os.Getppid()
	ended := make(chan struct{})
	go func() {
		for os.Getppid() == parent && ctx.Err() == nil {
			time.Sleep(time.Second)
		}
		close(ended)
	}()
	return ended
}

// plainServerRequest replaces the TLS fields and the HTTP version in a request of the runner. The
// returned request starts a server without TLS. useTLS reports whether the runner requested TLS,
// and http2 reports whether the server must support HTTP/2.
func plainServerRequest(request []byte, otherVersion bool) (plain []byte, useTLS, http2 bool, err error) {
	values, rest, err := parseFields(request, serverRequestVersion, serverRequestTLS, serverRequestCredentials)
	if err != nil {
		return nil, false, false, fmt.Errorf("decode the runner's request: %w", err)
	}
	version := values.varints[serverRequestVersion]
	if version != 1 && version != 2 {
		return nil, false, false, fmt.Errorf("invalid HTTP version %d in the runner's request", version)
	}
	if otherVersion {
		version = 3 - version
	}
	return appendVarint(rest, serverRequestVersion, version), values.varints[serverRequestTLS] != 0, version == 2, nil
}

// serverResponse returns the response with the address of the proxy and, if TLS is used, its
// certificate.
func (e *environment) serverResponse(p *proxy, useTLS bool) ([]byte, error) {
	if !useTLS {
		return appendAddress(nil, serverResponseHost, serverResponsePort, p.plain)
	}
	cert, err := e.certificate()
	if err != nil {
		return nil, err
	}
	response, err := appendAddress(nil, serverResponseHost, serverResponsePort, p.tls)
	return appendBytes(response, serverResponseCertificate, cert), err
}

// address returns the address with the host and the port in the given fields of a message.
func (f fields) address(host, portNumber protowire.Number) string {
	return net.JoinHostPort(string(f.bytes[host]), strconv.FormatUint(f.varints[portNumber], 10))
}

// callUnderTest is the client under test: it passes the runner's requests to the reference
// client, with the address of a proxy instead of the address of the server.
func callUnderTest(ctx context.Context, args []string) error {
	e, v, _, err := underTestFlags(args)
	if err != nil {
		return err
	}
	cert, err := e.certificate()
	if err != nil {
		return err
	}
	client := &process{cmd: exec.Command(filepath.Join(e.programs, "referenceclient"))}
	client.cmd.Stdout, client.cmd.Stderr = os.Stdout, os.Stderr
	stdin, err := client.cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("reference client: %w", err)
	}
	if err := client.start(); err != nil {
		return err
	}
	defer client.stop()
	stopped := context.AfterFunc(ctx, client.stop)
	defer stopped()
	proxies := &proxySet{e: e, v: v, certificate: cert, all: map[string]*proxy{}}
	defer proxies.stop()
	for {
		request, err := readMessage(os.Stdin)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the runner's request: %w", err)
		}
		if request, err = proxies.redirect(request); err != nil {
			return err
		}
		if err := writeMessage(stdin, request); err != nil {
			return fmt.Errorf("reference client: %w", err)
		}
	}
	if err := stdin.Close(); err != nil {
		return fmt.Errorf("reference client: %w", err)
	}
	<-client.done
	if !client.cmd.ProcessState.Success() {
		return fmt.Errorf("reference client: %s", client.cmd.ProcessState)
	}
	return nil
}

// maxProxies is the maximum number of proxies in client mode. The runner starts one server
// for each combination of protocol, HTTP version and TLS.
const maxProxies = 32

// A proxySet contains the proxies of the client mode, one for each server.
type proxySet struct {
	e           *environment
	v           variant
	certificate []byte
	all         map[string]*proxy // proxies by the address of the server
	relays      []*relay
}

// redirect returns a request with the address of the proxy in front of the server.
func (s *proxySet) redirect(request []byte) ([]byte, error) {
	values, rest, err := parseFields(request, clientRequestHost, clientRequestPort, clientRequestCertificate)
	if err != nil {
		return nil, fmt.Errorf("decode the runner's request: %w", err)
	}
	p, err := s.proxyOf(values)
	if err != nil {
		return nil, err
	}
	if len(values.bytes[clientRequestCertificate]) == 0 {
		return appendAddress(rest, clientRequestHost, clientRequestPort, p.plain)
	}
	rest = appendBytes(rest, clientRequestCertificate, s.certificate)
	return appendAddress(rest, clientRequestHost, clientRequestPort, p.tls)
}

// proxyOf returns the proxy of the server in a request. The first request for a server starts
// its proxy. A proxy does not support TLS to the application, so a relay adds it.
func (s *proxySet) proxyOf(request fields) (*proxy, error) {
	server := request.address(clientRequestHost, clientRequestPort)
	if p := s.all[server]; p != nil {
		return p, nil
	}
	if len(s.all) == maxProxies {
		return nil, fmt.Errorf("the runner requires more than %d servers", maxProxies)
	}
	application, http2 := server, request.varints[clientRequestVersion] == 2
	if cert := request.bytes[clientRequestCertificate]; len(cert) > 0 {
		r, err := startRelay(server, cert, http2)
		if err != nil {
			return nil, err
		}
		s.relays = append(s.relays, r)
		application = r.listener.Addr().String()
	}
	p, err := startProxy(s.e, s.v, application, http2)
	if err != nil {
		return nil, err
	}
	s.all[server] = p
	return p, nil
}

func (s *proxySet) stop() {
	for _, p := range s.all {
		stopProxy(p)
	}
	for _, r := range s.relays {
		r.stop()
	}
}

// A relay accepts plain text connections and forwards them over TLS.
type relay struct {
	listener net.Listener
	server   string
	config   *tls.Config
	group    sync.WaitGroup
	cancel   context.CancelFunc
}

// startRelay starts a relay to a server with a certificate.
func startRelay(server string, certificate []byte, http2 bool) (*relay, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(certificate) {
		return nil, errors.New("relay: the request contains no certificate")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	r := &relay{listener: l, server: server, config: &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}}}
	if http2 {
		r.config.NextProtos = []string{"h2"}
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	r.group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.group.Go(func() { r.forward(ctx, c) })
		}
	})
	return r, nil
}

// forward copies the data of a connection in both directions until both sides are closed.
func (r *relay) forward(ctx context.Context, client net.Conn) {
	defer client.Close()
	d := tls.Dialer{Config: r.config}
	server, err := d.DialContext(ctx, "tcp", r.server)
	if err != nil {
		return
	}
	defer server.Close()
	stopped := context.AfterFunc(ctx, func() {
		client.Close()
		server.Close()
	})
	defer stopped()
	var upload sync.WaitGroup
	upload.Go(func() {
		io.Copy(server, client)
		server.Close()
	})
	io.Copy(client, server)
	client.Close()
	upload.Wait()
}

// stop closes all connections and waits for their goroutines.
func (r *relay) stop() {
	r.cancel()
	r.listener.Close()
	r.group.Wait()
}
