package export

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

const fine = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

// fineHTTP2 sends the response of a gRPC server that accepts an export.
func fineHTTP2(f *harness.Frames, stream uint32) error {
	return f.WriteHead(stream, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
}

// senderTo returns a sender for a plain-text server. It is released when the test ends.
func senderTo(t *testing.T, exporter Protocol, s *harness.App) Sender {
	t.Helper()
	send, release, err := New(Target{Protocol: exporter, Endpoint: "http://" + s.Address(), Signal: Traces})
	harness.NoError(t, err)
	t.Cleanup(release)
	return send
}

func mustSend(t *testing.T, send Sender) {
	t.Helper()
	_, err := send(t.Context(), []byte("spans"))
	harness.Equal(t, err, nil, "an export")
}

func TestExportsReuseConnection(t *testing.T) {
	for exporter, serve := range map[Protocol]func(*harness.AppConn){
		OTLP:     h1(says(fine)),
		OTLPGRPC: h2(fineHTTP2),
	} {
		s := harness.NewApp(t, serve)
		send := senderTo(t, exporter, s)
		for range 5 {
			mustSend(t, send)
		}
		harness.Equal(t, s.Connections(), 1, exporter, "connections for 5 exports")
	}
}

// Metrics are pushed once per minute, and a failed push is not retried. A push must therefore not
// fail because the server has closed an idle connection.
func TestExportRetriesClosedIdleConnection(t *testing.T) {
	var answers atomic.Int32
	once := func() error {
		if answers.Add(1)%2 == 0 {
			return io.EOF // close the connection without a response
		}
		return nil
	}
	for exporter, serve := range map[Protocol]func(*harness.AppConn){
		OTLP: h1(func(w io.Writer) error {
			if err := once(); err != nil {
				return err
			}
			return says(fine)(w)
		}),
		OTLPGRPC: h2(func(f *harness.Frames, stream uint32) error {
			if err := once(); err != nil {
				return err
			}
			return fineHTTP2(f, stream)
		}),
	} {
		answers.Store(0)
		s := harness.NewApp(t, serve)
		send := senderTo(t, exporter, s)
		for range 4 {
			mustSend(t, send)
		}
		harness.Equal(t, s.Connections(), 4, exporter, "connections for 4 exports")
	}
}

func TestIdleConnectionTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		c := newConnection(nil, &protocols, nil)
		ended := time.Duration(0)
		c.via.DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				began := time.Now()
				answerEach(bufio.NewReader(theirs), theirs, says(fine))
				ended = time.Since(began)
			}()
			return ours, nil
		}
		e := &end{client: &http.Client{Transport: c}, target: "http://collector", fields: http.Header{}, timeout: time.Second}
		for range 2 {
			mustSend(t, e.post)
			time.Sleep(maxIdle - time.Second)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		harness.Equal(t, ended, 2*maxIdle-time.Second, "lifetime of the connection")
	})
}

func TestExportTimeoutCancelsDNSLookup(t *testing.T) {
	asked, looked := make(chan struct{}, 100), make(chan error, 100)
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		asked <- struct{}{}
		<-ctx.Done()
		looked <- ctx.Err()
		return nil, ctx.Err()
	}}
	send, release, err := New(Target{Protocol: OTLP, Endpoint: "http://collector.test", Timeout: shortTimeout, Signal: Traces})
	harness.NoError(t, err)
	defer release()
	if _, err := send(t.Context(), nil); err == nil {
		t.Error("got no error, want one because the name does not resolve")
	}
	for range len(asked) {
		// If the resolver times out, the error is context.DeadlineExceeded.
		harness.Equal(t, <-looked, context.Canceled, "error of the lookup")
	}
	if len(asked) == 0 {
		t.Error("got no lookup of the name, want one")
	}
}

// socketsTo counts the local sockets that are connected to a port. The result includes closed
// sockets with unsent data. Sockets in TIME-WAIT are not counted, because they hold no data and may
// belong to an earlier test with the same port.
func socketsTo(t *testing.T, port int) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	harness.NoError(t, err)
	const timeWait = "06"
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line) // number, local address, remote address, state
		if len(fields) > 3 && fields[3] != timeWait && strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", port)) {
			n++
		}
	}
	return n
}

// If a peer does not read, the kernel keeps the unsent data for minutes after the connection is
// closed. This data counts as memory of the sender.
func TestFailedExportDiscardsUnsentData(t *testing.T) {
	for _, exporter := range []Protocol{OTLP, OTLPGRPC} {
		t.Run(string(exporter), func(t *testing.T) {
			s := harness.NewApp(t, (*harness.AppConn).Idle)
			send, release, err := New(Target{
				Protocol: exporter, Endpoint: "http://" + s.Address(), Timeout: shortTimeout, Signal: Traces,
			})
			harness.NoError(t, err)
			defer release()
			for range 3 {
				if _, err := send(t.Context(), make([]byte, 8<<20)); err == nil {
					t.Error("got no error from a collector that does not read, want one")
				}
			}
			harness.Until(t, "all sockets to the collector are closed", func() bool { return socketsTo(t, s.Port) == 0 })
		})
	}
}

func TestUnsolicitedResponseLogIsBounded(t *testing.T) {
	const most = 4*maxUnsolicited + 256 // the log contains four characters for each byte; 256 is for the rest of the line
	var logged harness.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	s := harness.NewApp(t, h1(pieces(fine, "\x01")))
	mustSend(t, senderTo(t, OTLP, s))
	harness.Until(t, "line of net/http", func() bool { return logged.String() != "" })
	if got := len(logged.String()); got > most {
		t.Errorf("got %d bytes in the log, want %d at most", got, most)
	}
}

func TestExportUsesProxy(t *testing.T) {
	collector := httptest.NewTLSServer(http.NotFoundHandler())
	defer collector.Close()
	lines := make(chan string, 2)
	proxy := harness.NewApp(t, func(c *harness.AppConn) {
		req, err := http.ReadRequest(c.In)
		if err != nil {
			return
		}
		lines <- req.Method + " " + req.RequestURI
		if req.Method != http.MethodConnect {
			_, _ = io.WriteString(c, fine)
			return
		}
		to, err := net.Dial("tcp", req.Host)
		if err != nil {
			return
		}
		defer to.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(to, c.In); _ = to.(*net.TCPConn).CloseWrite() }()
		_, _ = io.Copy(c, to)
	})
	for target, want := range map[string]string{
		"http://collector.test/v1/traces": "POST http://collector.test/v1/traces",
		collector.URL:                     "CONNECT " + collector.Listener.Addr().String(),
	} {
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		trust := &tls.Config{RootCAs: collector.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
		c := newConnection(&url.URL{Scheme: "http", Host: proxy.Address()}, &protocols, trust)
		e := &end{client: &http.Client{Transport: c}, target: target, fields: http.Header{}, timeout: defaultTimeout}
		_, err := e.post(t.Context(), nil)
		c.close()
		harness.Equal(t, <-lines, want, "request to the proxy", err)
	}
}
