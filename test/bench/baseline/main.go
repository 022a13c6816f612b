// Command baseline is a minimal reverse proxy in Go with httputil.ReverseProxy. It has no
// limit, statistics, probes or drain.
//
// Three settings differ from the defaults of net/http. The maximum number of idle
// connections to the application equals the number of clients, because with the default
// of two idle connections, most requests would open a new connection. The proxy does not
// decompress bodies. It serves HTTP/2 in plain text.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	address := flag.String("listen", "127.0.0.1:8012", "listen address")
	app := flag.String("app", "127.0.0.1:8080", "address of the app")
	tlsAddress := flag.String("tls", "", "listen address for TLS; if empty, TLS is disabled")
	cert := flag.String("cert", "", "certificate file for TLS")
	key := flag.String("key", "", "key file for TLS")
	h2 := flag.Bool("h2", false, "use HTTP/2 with prior knowledge for the application")
	flag.Parse()
	if err := serve(*address, *app, *h2, *tlsAddress, *cert, *key); err != nil {
		fmt.Fprintln(os.Stderr, "baseline:", err)
		os.Exit(1)
	}
}

// keptConnections is higher than the number of connections of any measurement.
const keptConnections = 4096

// serve runs the proxy until a listener fails, and returns the error of this listener.
func serve(address, app string, h2 bool, tlsAddress, cert, key string) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = keptConnections
	transport.MaxIdleConnsPerHost = keptConnections
	transport.DisableCompression = true
	if h2 {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	target := &url.URL{Scheme: "http", Host: app}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		},
	}
	var plain http.Protocols
	plain.SetHTTP1(true)
	plain.SetUnencryptedHTTP2(true)

	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- (&http.Server{Handler: proxy, Protocols: &plain}).Serve(l) }()
	if tlsAddress != "" {
		l, err := net.Listen("tcp", tlsAddress)
		if err != nil {
			return err
		}
		go func() { failed <- (&http.Server{Handler: proxy}).ServeTLS(l, cert, key) }()
	}
	return <-failed
}
