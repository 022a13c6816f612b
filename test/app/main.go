// Command app is the sample user container: it listens where the queue-proxy
// expects one and behaves as its GET / says. People start it with `make run`.
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
	port := flag.String("port", cmp.Or(os.Getenv("PORT"), "8080"), "port to listen on (also the variable PORT)")
	protocols := flag.String("protocols", "both", "what is spoken: h1, h2 (prior knowledge) or both")
	delay := flag.Duration("delay-listen", 0, "time from the start to listening, to play a slow start")
	keepAlive := flag.Duration("keepalive-timeout", 0, "idle connections are closed after this, and HTTP/1.1 clients are told so (0: never)")
	host := flag.String("host", "", "address to listen on (all)")
	ledger := flag.Bool("ledger", false, "print a line for each request with an X-Id")
	endStreams := flag.Bool("end-streams", false, "at SIGTERM, end event streams with an event and gRPC streams with a status")
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

// serve listens after the delay and serves until ctx ends; then it lets running
// requests finish for five seconds.
func serve(ctx context.Context, app http.Handler, address, protocols string, delay, keepAlive time.Duration) error {
	var speaks http.Protocols
	switch protocols {
	case "h1":
		speaks.SetHTTP1(true)
	case "h2":
		speaks.SetUnencryptedHTTP2(true)
	case "both":
		speaks.SetHTTP1(true)
		speaks.SetUnencryptedHTTP2(true)
	default:
		return fmt.Errorf("-protocols: %q is none of h1, h2, both", protocols)
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
		Protocols:                    &speaks,
		IdleTimeout:                  keepAlive,
		ReadHeaderTimeout:            time.Minute,
		DisableGeneralOptionsHandler: true, // OPTIONS * is echoed as well
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

// announce tells HTTP/1.1 clients when an idle connection will be closed.
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
