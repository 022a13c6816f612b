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

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// agent is the User-Agent of probes: the kubelet's, of the Kubernetes release
// whose probe rules are followed.
const agent = "kube-probe/1.35"

const (
	maxBody      = 10 << 10  // bytes of a body that are read, as by the kubelet
	maxHead      = 256 << 10 // bytes of a response's head
	maxRedirects = 10        // as in the kubelet
)

// askHTTP passes on a status from 200 to 399. Its rules are the kubelet's
// (docs/promises.md 2.3); a 1xx or 101 is not an answer. own are the sidecar's ports.
func askHTTP(a *HTTPGetAction, autoDetectHTTP2 bool, own ...int) (try ask, where string) {
	host, d := hostOf(a.Host)
	target := urlOf(a, host)
	req := requestOf(a, target)
	get := func(via http.RoundTripper) ask {
		client := &http.Client{Transport: via, CheckRedirect: ownPorts(own).checkRedirect}
		return func(ctx context.Context) error {
			resp, err := client.Do(req.WithContext(ctx))
			if err != nil {
				return err
			}
			return ownPorts(own).verdict(resp)
		}
	}
	var h1, h2c http.Protocols
	h1.SetHTTP1(true)
	h1.SetHTTP2(true) // inside TLS, where ALPN chooses
	h2c.SetUnencryptedHTTP2(true)
	switch {
	case a.Protocol != nil && *a.Protocol == "HTTP2":
		return get(newOneShot(d.dial, h2c)), target.String()
	case autoDetectHTTP2 && target.Scheme == "http":
		return detect(d, func(dial dialFunc) ask { return get(newOneShot(dial, h2c)) }, get(newOneShot(d.dial, h1))), target.String()
	}
	return get(newOneShot(d.dial, h1)), target.String()
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// A oneShot makes a new connection for each request, without a proxy, without
// compression, and without a doubt about certificates: the app's are its own. It
// connects within the request's context, unlike a bare http.Transport, whose dials
// go on after their request: a silent app would collect one for every try.
type oneShot struct{ transport *http.Transport }

func newOneShot(dial dialFunc, protocols http.Protocols) oneShot {
	return oneShot{&http.Transport{
		DialContext:            dial,
		DialTLSContext:         dialTLS(dial, protocols),
		Protocols:              &protocols,
		DisableKeepAlives:      true, // says Connection: close
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHead,
	}}
}

func (o oneShot) RoundTrip(req *http.Request) (*http.Response, error) {
	address := net.JoinHostPort(req.URL.Hostname(), req.URL.Port())
	var secure *tls.Conn
	conn, err := o.transport.NewClientConn(context.WithValue(req.Context(), shaken{}, &secure), req.URL.Scheme, address)
	if err != nil {
		return nil, err
	}
	resp, err := conn.RoundTrip(req)
	if err != nil {
		_ = conn.Close()
		if secure != nil {
			// An alert closes the connection on which the request is being written, and the
			// transport tells of the one or the other. TLS remembers an alert.
			if _, cause := secure.Read(make([]byte, 1)); wordOf(cause) == wordTLS {
				err = cause
			}
		}
		return nil, err
	}
	resp.Body = &lastBody{resp.Body, conn}
	return resp, nil
}

// A lastBody takes its connection with it.
type lastBody struct {
	io.ReadCloser
	conn *http.ClientConn
}

func (b *lastBody) Close() error {
	return errors.Join(b.ReadCloser.Close(), b.conn.Close())
}

// shaken is the key under which a context has the place (**tls.Conn) for what dialTLS
// returns.
type shaken struct{}

// dialTLS shakes hands itself, so that a failure is known to be one of TLS.
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
			if wordOf(err) == wordTimeout {
				return nil, err
			}
			return nil, &failure{word: wordTLS, err: err}
		}
		if place, ok := ctx.Value(shaken{}).(**tls.Conn); ok {
			*place = secure
		}
		return secure, nil
	}
}

// ownPorts are those of the sidecar.
type ownPorts []int

// checkRedirect follows redirects on the host that was asked, whatever the port, but for
// our own. One that is not followed is itself the answer.
func (own ownPorts) checkRedirect(req *http.Request, via []*http.Request) error {
	if own.elsewhere(req.URL, via[0].URL) != "" {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return &failure{word: wordRedirect, err: fmt.Errorf("stopped after %d redirects", maxRedirects)}
	}
	if s := req.URL.Scheme; s != "http" && s != "https" {
		return &failure{word: wordRedirect, err: fmt.Errorf("redirected to the scheme %q", s)}
	}
	return nil
}

// elsewhere returns where a redirect leads that is not followed; "" if it is. An app that
// redirects to one of our ports must not make us ask ourselves: a GET of
// :8022/wait-for-drain makes the pod unready.
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

// verdict classifies an answer and releases it. The status decides; the body is
// read, within the try's time, only so that the app can finish writing.
func (own ownPorts) verdict(resp *http.Response) error {
	defer resp.Body.Close()
	switch code := resp.StatusCode; code {
	case 301, 302, 303, 307, 308:
		to, err := resp.Location()
		if err != nil {
			break
		}
		if where := own.elsewhere(to, resp.Request.URL); where != "" {
			return warning("answered with a redirect to " + where + ", which was not followed")
		}
	default:
		if code < 200 || code > 399 {
			return &failure{word: wordStatus, code: code, err: fmt.Errorf("HTTP status %d", code)}
		}
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxBody)
	return nil
}

// urlOf is the address to ask. The path goes out as it is written, except for
// what cannot stand in a request line, which is escaped.
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

// requestOf is the request with the user's fields: theirs win.
func requestOf(a *HTTPGetAction, target *url.URL) *http.Request {
	req := &http.Request{Method: http.MethodGet, URL: target, Header: http.Header{}}
	for _, h := range a.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	req.Host = req.Header.Get(header.Host)
	req.Header.Del(header.Host)
	if _, ok := req.Header[header.UserAgent]; !ok {
		req.Header.Set(header.UserAgent, agent)
	}
	switch _, ok := req.Header["Accept"]; {
	case !ok:
		req.Header.Set("Accept", "*/*")
	case req.Header.Get("Accept") == "":
		req.Header.Del("Accept")
	}
	return req
}

// isStatus reports whether an answer came that was HTTP.
func isStatus(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.word == wordStatus
}
