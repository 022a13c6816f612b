// Command app is the sample application. It listens on the port that queue-proxy expects, and
// GET / returns a description of its paths. `make run` starts it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/test/app/sample"
)

func main() {
	port := flag.String("port", cmp.Or(os.Getenv("PORT"), "8080"), "listen port; the default is the value of the environment variable PORT")
	protocols := flag.String("protocols", "both", "protocols that the server supports (h1, h2 or both)")
	delay := flag.Duration("delay-listen", 0, "time before the application listens")
	keepAlive := flag.Duration("keepalive-timeout", 0, "idle timeout of connections, which HTTP/1.1 clients receive in the Keep-Alive field; 0 means no timeout")
	host := flag.String("host", "", "listen address; if empty, the application listens on all addresses")
	ledger := flag.Bool("ledger", false, "print a line for each request with the field X-Id")
	endStreams := flag.Bool("end-streams", false, "on SIGTERM, end event streams with an event and gRPC streams with a status")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	app := sample.New()
	if *ledger {
		app.Ledger = os.Stdout
	}
	if *endStreams {
		app.Ending = ctx.Done()
	}
	if err := serve(ctx, app, net.JoinHostPort(*host, *port), *protocols, *delay, *keepAlive); err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

// serve listens after the delay and serves requests until ctx is done. It then waits up
// to five seconds for running requests to complete.
func serve(ctx context.Context, app http.Handler, address, protocols string, delay, keepAlive time.Duration) error {
	var supported http.Protocols
	switch protocols {
	case "h1":
		supported.SetHTTP1(true)
	case "h2":
		supported.SetUnencryptedHTTP2(true)
	case "both":
		supported.SetHTTP1(true)
		supported.SetUnencryptedHTTP2(true)
	default:
		return fmt.Errorf("-protocols: unknown value %q", protocols)
	}
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s := &http.Server{
		Handler:                      announce(app, keepAlive),
		Protocols:                    &supported,
		IdleTimeout:                  keepAlive,
		ReadHeaderTimeout:            time.Minute,
		DisableGeneralOptionsHandler: true, // pass OPTIONS * to the handler
	}
	fmt.Printf("app: listening on %s (%s)\n", l.Addr(), protocols)

	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.Shutdown(limit); err != nil {
		s.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// announce adds the idle timeout of the server to the responses for HTTP/1.1 clients.
func announce(h http.Handler, keepAlive time.Duration) http.Handler {
	if keepAlive < time.Second {
		return h
	}
	value := "timeout=" + strconv.Itoa(int(keepAlive/time.Second))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 {
			w.Header().Set("Keep-Alive", value)
		}
		h.ServeHTTP(w, r)
	})
}
