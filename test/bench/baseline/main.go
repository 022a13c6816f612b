// Command baseline is the least that a reverse proxy in Go can be: the standard
// library's, with nothing around it. It limits, counts, probes and drains nothing.
//
// Three settings differ from the library's own. Connections to the app are kept,
// as many as there are clients: at two, the default, most requests would dial.
// Bodies are not decompressed on the way. And HTTP/2 in plain text is served.
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
	address := flag.String("listen", "127.0.0.1:8012", "where to listen")
	app := flag.String("app", "127.0.0.1:8080", "where to forward to")
	tlsAddress := flag.String("tls", "", "where to listen over TLS; empty: nowhere")
	cert := flag.String("cert", "", "the certificate, for TLS")
	key := flag.String("key", "", "its key")
	h2 := flag.Bool("h2", false, "speak HTTP/2 to the app, by prior knowledge")
	flag.Parse()
	if err := serve(*address, *app, *h2, *tlsAddress, *cert, *key); err != nil {
		fmt.Fprintln(os.Stderr, "baseline:", err)
		os.Exit(1)
	}
}

// keptConnections is more than any measurement opens.
const keptConnections = 4096

// serve returns when one of the two listeners fails.
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
