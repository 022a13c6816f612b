package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// agent is the User-Agent of probes. It contains the Kubernetes release whose kubelet rules this package implements.
const agent = "kube-probe/1.35"

const (
	maxBody      = 10 << 10  // maximum number of bytes that are read from a body, as in the kubelet
	maxHead      = 256 << 10 // maximum length of a header section in bytes
	maxRedirects = 10        // maximum number of redirects, as in the kubelet
)

// newHTTPAttempt returns an attempt that passes if the status is in the range 200 to 399. The rules are the same as in
// the kubelet (docs/promises.md 2.3). Status 101 does not pass. The attempt does not follow redirects to the
// ports of the sidecar, which are listed in own.
func newHTTPAttempt(a *HTTPGetAction, autoDetectHTTP2 bool, own ...int) (try attemptFunc, where string) {
	host, d := hostOf(a.Host)
	target := urlOf(a, host)
	req := requestOf(a, target)
	get := func(via http.RoundTripper) attemptFunc {
		client := &http.Client{Transport: via, CheckRedirect: ownPorts(own).checkRedirect}
		return func(ctx context.Context) error {
			resp, err := client.Do(req.WithContext(ctx))
			if err != nil {
				return err
			}
			return ownPorts(own).checkResponse(resp)
		}
	}
	var h1, h2c http.Protocols
	h1.SetHTTP1(true)
	h1.SetHTTP2(true) // with TLS, ALPN selects the protocol
	h2c.SetUnencryptedHTTP2(true)
	switch {
	case a.Protocol != nil && *a.Protocol == "HTTP2":
		return get(newOneShot(d.dial, h2c)), target.String()
	case autoDetectHTTP2 && target.Scheme == "http":
		return detect(d, func(dial dialFunc) attemptFunc { return get(newOneShot(dial, h2c)) }, get(newOneShot(d.dial, h1))), target.String()
	}
	return get(newOneShot(d.dial, h1)), target.String()
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// A oneShot is a RoundTripper that opens a connection for each request. It does not use proxies or compression,
// and it does not verify certificates. The dial ends when the context of the request is done. In contrast, a dial of
// http.Transport continues after the request, and connections to an app that does not respond would accumulate.
type oneShot struct{ transport *http.Transport }

func newOneShot(dial dialFunc, protocols http.Protocols) oneShot {
	return oneShot{&http.Transport{
		DialContext:            dial,
		DialTLSContext:         dialTLS(dial, protocols),
		Protocols:              &protocols,
		DisableKeepAlives:      true, // sends Connection: close
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHead,
	}}
}

func (o oneShot) RoundTrip(req *http.Request) (*http.Response, error) {
	address := net.JoinHostPort(req.URL.Hostname(), req.URL.Port())
	var secure *tls.Conn
	conn, err := o.transport.NewClientConn(context.WithValue(req.Context(), tlsConnKey{}, &secure), req.URL.Scheme, address)
	if err != nil {
		return nil, err
	}
	resp, err := conn.RoundTrip(req)
	if err != nil {
		_ = conn.Close()
		if secure != nil {
			// If the server sends a TLS alert, the transport returns the alert or a write error. After a write
			// error, a read returns the alert.
			if _, cause := secure.Read(make([]byte, 1)); wordOf(cause) == observation.WordTLS {
				err = cause
			}
		}
		return nil, err
	}
	resp.Body = &lastBody{resp.Body, conn}
	return resp, nil
}

// A lastBody is the body of the only response on a connection. Close also closes the connection.
type lastBody struct {
	io.ReadCloser
	conn *http.ClientConn
}

func (b *lastBody) Close() error {
	return errors.Join(b.ReadCloser.Close(), b.conn.Close())
}

// tlsConnKey is the context key for a **tls.Conn, in which dialTLS stores its result.
type tlsConnKey struct{}

// dialTLS returns a dialFunc that also performs the TLS handshake. The dialFunc returns handshake errors as failures
// with the word WordTLS, to distinguish them from other connection errors.
func dialTLS(dial dialFunc, protocols http.Protocols) dialFunc {
	var alpn []string
	if protocols.HTTP2() {
		alpn = append(alpn, "h2")
	}
	if protocols.HTTP1() {
		alpn = append(alpn, "http/1.1")
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		host, _, _ := net.SplitHostPort(address)
		secure := tls.Client(conn, &tls.Config{ServerName: host, NextProtos: alpn, InsecureSkipVerify: true}) //nolint:gosec // the kubelet does not verify either (kubernetes#92647)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			if wordOf(err) == observation.WordTimeout {
				return nil, err
			}
			return nil, &failure{word: observation.WordTLS, err: err}
		}
		if place, ok := ctx.Value(tlsConnKey{}).(**tls.Conn); ok {
			*place = secure
		}
		return secure, nil
	}
}

// ownPorts contains the ports of the sidecar.
type ownPorts []int

// checkRedirect allows redirects to the same host, except to the ports of the sidecar. For other hosts and for these
// ports, the client returns the redirect as the response.
func (own ownPorts) checkRedirect(req *http.Request, via []*http.Request) error {
	if own.elsewhere(req.URL, via[0].URL) != "" {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return &failure{word: observation.WordRedirect, err: fmt.Errorf("stopped after %d redirects", maxRedirects)}
	}
	if s := req.URL.Scheme; s != "http" && s != "https" {
		return &failure{word: observation.WordRedirect, err: fmt.Errorf("redirected to the scheme %q", s)}
	}
	return nil
}

// elsewhere describes the target of a redirect if the redirect must not be followed. Otherwise it returns "". A
// redirect to a port of the sidecar must not be followed, because a GET request for :8022/wait-for-drain starts a
// drain.
func (own ownPorts) elsewhere(to, from *url.URL) string {
	if to.Hostname() != from.Hostname() {
		return "another host"
	}
	port := to.Port()
	switch {
	case port != "":
	case to.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	if n, err := strconv.Atoi(port); err == nil && slices.Contains(own, n) {
		return "a port of the queue-proxy"
	}
	return ""
}

// checkResponse returns the result for a response and closes its body. The result depends only on the status and on
// the target of a redirect. If the status passes, checkResponse reads at most maxBody bytes of the body until the
// timeout, so that the app can write its response.
func (own ownPorts) checkResponse(resp *http.Response) error {
	defer resp.Body.Close()
	switch code := resp.StatusCode; code {
	case 301, 302, 303, 307, 308:
		to, err := resp.Location()
		if err != nil {
			break
		}
		if where := own.elsewhere(to, resp.Request.URL); where != "" {
			return warning("the redirect to " + where + " was not followed")
		}
	default:
		if code < 200 || code > 399 {
			return &failure{word: observation.WordStatus, code: code, err: fmt.Errorf("HTTP status %d", code)}
		}
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxBody)
	return nil
}

// urlOf returns the URL of the probe. A valid path is not changed. If the path contains characters or escapes that are
// invalid in a request line, urlOf escapes the path like net/url. The fragment is removed.
func urlOf(a *HTTPGetAction, host string) *url.URL {
	path, _, _ := strings.Cut(a.Path, "#")
	path, query, _ := strings.Cut(path, "?")
	path = "/" + strings.TrimPrefix(path, "/")
	u := &url.URL{
		Scheme:   "http",
		Host:     net.JoinHostPort(host, strconv.Itoa(a.Port.number())),
		Path:     path,
		RawQuery: escapeQuery(query),
	}
	if strings.EqualFold(a.Scheme, "HTTPS") {
		u.Scheme = "https"
	}
	if plain, err := url.PathUnescape(path); err == nil {
		u.Path, u.RawPath = plain, path
	}
	return u
}

func escapeQuery(query string) string {
	var b strings.Builder
	for _, c := range []byte(query) {
		if c <= ' ' || c >= 0x7f {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// requestOf returns the request of the probe. The header fields of the action replace the default fields. An empty
// Accept removes the field.
func requestOf(a *HTTPGetAction, target *url.URL) *http.Request {
	req := &http.Request{Method: http.MethodGet, URL: target, Header: http.Header{}}
	for _, h := range a.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	req.Host = req.Header.Get(transport.Host)
	req.Header.Del(transport.Host)
	if _, ok := req.Header[transport.UserAgent]; !ok {
		req.Header.Set(transport.UserAgent, agent)
	}
	switch _, ok := req.Header["Accept"]; {
	case !ok:
		req.Header.Set("Accept", "*/*")
	case req.Header.Get("Accept") == "":
		req.Header.Del("Accept")
	}
	return req
}

// isStatus reports whether an attempt failed because of an HTTP response status.
func isStatus(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.word == observation.WordStatus
}
