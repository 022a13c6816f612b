package netconn_test

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// shaker accepts connections and completes their TLS handshakes.
type shaker struct{ addr string }

func newShaker(t *testing.T, s *netconn.Server) shaker {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l, err := netconn.New(c.(*net.TCPConn))
			if err != nil {
				t.Error(err)
				continue
			}
			running.Go(func() {
				_ = shake(l, s) // the client reports the error
				_ = l.Cut()
			})
		}
	})
	t.Cleanup(running.Wait)
	t.Cleanup(func() { ln.Close() })
	return shaker{ln.Addr().String()}
}

// dial connects from an address of this host.
func (s shaker) dial(from string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return d.Dial("tcp", s.addr)
}

// flood starts n handshakes from another address, and starts a new one when a handshake ends. It returns when all n are
// connected. The handshakes stop at the end of the test.
func (s shaker) flood(t *testing.T, n int, each func(net.Conn)) {
	t.Helper()
	stop := make(chan struct{})
	var running, there sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(func() { close(stop) })
	there.Add(n)
	for range n {
		running.Go(func() {
			first := sync.OnceFunc(there.Done)
			defer first()
			for {
				c, err := s.dial("127.0.0.2")
				if err != nil {
					t.Error(err)
					return
				}
				first()
				ended := make(chan struct{})
				go func() { each(c); close(ended) }()
				select {
				case <-ended:
					c.Close()
				case <-stop:
					c.Close()
					<-ended
					return
				}
			}
		})
	}
	there.Wait()
}

// waits is the timeout for the handshake of an honest client. It must be less than the time that the server needs for
// all handshakes of the other client. The server needs 30 s for 60 handshakes if two run at the same time and each
// ends after one second.
const waits = 20 * time.Second

// honest makes one handshake.
func (s shaker) honest(t *testing.T) {
	t.Helper()
	c, err := s.dial("127.0.0.1")
	harness.NoError(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(waits))
	harness.Equal(t, tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake(), nil, "handshake during those of another client")
}

func TestSilentHandshakesDoNotDelayOtherClients(t *testing.T) {
	server := newServer()
	server.SetMaxHandshakes(2, 100, time.Second)
	server.SetTimeout(harness.Patience)
	s := newShaker(t, server)
	s.flood(t, 60, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })
	for range 3 {
		s.honest(t)
	}
}

// A client that sends single bytes is treated like a client that sends nothing.
func TestSlowHandshakesDoNotDelayOtherClients(t *testing.T) {
	server := newServer()
	server.SetMaxHandshakes(2, 100, time.Second)
	server.SetTimeout(harness.Patience)
	s := newShaker(t, server)
	record := append([]byte{22, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3}, make([]byte, 200)...) // the beginning of a ClientHello
	s.flood(t, 8, func(c net.Conn) {
		for _, b := range record {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
			var late net.Error
			if _, err := c.Read(make([]byte, 1)); !errors.As(err, &late) || !late.Timeout() {
				return
			}
		}
	})
	for range 3 {
		s.honest(t)
	}
}

// A deadline of the owner, for example to replace the connection, also ends the handshake.
func TestDeadlineEndsHandshake(t *testing.T) {
	client, accepted := tcpPair(t)
	l, err := netconn.New(accepted)
	harness.NoError(t, err)
	l.SetReadDeadline(time.Unix(1, 0))
	done := make(chan error, 1)
	go func() {
		err := shake(l, server())
		_ = l.Cut()
		done <- err
	}()
	err = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake()
	if ended := <-done; ended == nil || err == nil {
		t.Errorf("got %v at the server and %v at the client after a deadline, want the handshake ended", ended, err)
	}
}
