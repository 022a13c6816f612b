// Command proxy replaces Linkerd's proxy, which is written in Rust. The iptables rules of
// Linkerd redirect connections to the proxy, and the proxy forwards each connection to its
// original destination. It supports no TLS, HTTP or policies. It reads its addresses from the
// variables that Linkerd's injector sets. After SIGTERM, it does not accept new connections,
// and it exits when all connections are closed, like the real proxy.
//
// Started under the name linkerd-await or sleep, it replaces the program of that name, which
// Linkerd's injector uses in hooks. linkerd-await waits until the proxy is ready.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	var err error
	switch filepath.Base(os.Args[0]) {
	case "linkerd-await":
		err = await(os.Args[1:])
	case "sleep":
		err = sleep(os.Args[1:])
	default:
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err = serve(ctx, os.Getenv)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Args[0]+":", err)
		os.Exit(1)
	}
}

// await waits until the proxy is ready or until --timeout expires.
func await(args []string) error {
	timeout := time.Minute
	for _, arg := range args {
		if text, is := strings.CutPrefix(arg, "--timeout="); is {
			var err error
			if timeout, err = time.ParseDuration(text); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:4191/ready", nil)
		if err != nil {
			return err
		}
		a, err := http.DefaultClient.Do(r)
		if err == nil {
			a.Body.Close()
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func sleep(args []string) error {
	if len(args) != 1 {
		return errors.New("missing argument: number of seconds")
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	time.Sleep(time.Duration(n) * time.Second)
	return nil
}

// A proxy counts the connections that it forwards.
type proxy struct {
	connections sync.WaitGroup

	mu        sync.Mutex
	forwarded map[string]int // number of connections by port of the pod
}

// serve forwards connections until ctx is canceled, and then waits until all connections are
// closed.
func serve(ctx context.Context, variable func(string) string) error {
	p := &proxy{forwarded: map[string]int{}}
	var accepting sync.WaitGroup
	for _, name := range []string{"INBOUND", "OUTBOUND"} {
		l, err := net.Listen("tcp4", variable("LINKERD2_PROXY_"+name+"_LISTEN_ADDR"))
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { l.Close() })
		accepting.Go(func() { p.accept(l, name == "INBOUND") })
	}
	admin, err := net.Listen("tcp4", variable("LINKERD2_PROXY_ADMIN_LISTEN_ADDR"))
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(admin, p.admin()) }() // this goroutine runs until the process exits
	accepting.Wait()
	p.connections.Wait()
	return nil
}

// admin serves the probes and the number of forwarded connections.
func (p *proxy) admin() http.Handler {
	m := http.NewServeMux()
	fine := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }
	m.HandleFunc("/live", fine)
	m.HandleFunc("/ready", fine)
	m.HandleFunc("/forwarded", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		_ = json.NewEncoder(w).Encode(p.forwarded)
	})
	return m
}

func (p *proxy) accept(l net.Listener, inbound bool) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // Accept failed because the listener is closed
		}
		p.connections.Go(func() {
			defer c.Close()
			p.forward(c.(*net.TCPConn), inbound)
		})
	}
}

// forward connects to the original destination of a connection and copies data until both
// directions end.
func (p *proxy) forward(c *net.TCPConn, inbound bool) {
	target, err := original(c)
	if err != nil || target == c.LocalAddr().String() {
		return // the connection was not redirected, so it has no other destination
	}
	if inbound {
		_, port, _ := net.SplitHostPort(target)
		p.mu.Lock()
		p.forwarded[port]++
		p.mu.Unlock()
	}
	to, err := net.DialTimeout("tcp4", target, time.Second)
	if err != nil {
		// Reset the connection like the real proxy, so that the client detects the failure.
		_ = c.SetLinger(0)
		return
	}
	defer to.Close()
	var both sync.WaitGroup
	both.Go(func() { pass(to.(*net.TCPConn), c) })
	both.Go(func() { pass(c, to.(*net.TCPConn)) })
	both.Wait()
}

// pass copies data in one direction. At the end of the data, it closes the write side of the
// destination. If an error occurs, it resets both connections.
func pass(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		_ = to.SetLinger(0)
		_ = to.Close()
		_ = from.Close()
		return
	}
	_ = to.CloseWrite()
}

// original returns the destination of a connection before the iptables redirection.
func original(c *net.TCPConn) (string, error) {
	const originalDestination = 80 // SO_ORIGINAL_DST of linux/netfilter_ipv4.h
	raw, err := c.SyscallConn()
	if err != nil {
		return "", err
	}
	var address *syscall.IPv6Mreq // the result is a sockaddr_in, which has the same size as this type
	var failed error
	if err := raw.Control(func(fd uintptr) {
		address, failed = syscall.GetsockoptIPv6Mreq(int(fd), syscall.IPPROTO_IP, originalDestination)
	}); err != nil {
		return "", err
	}
	if failed != nil {
		return "", failed
	}
	b := address.Multiaddr
	return net.JoinHostPort(net.IP(b[4:8]).String(), strconv.Itoa(int(b[2])<<8|int(b[3]))), nil
}
