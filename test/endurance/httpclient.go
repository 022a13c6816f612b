//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// An httpPeer is a set of net/http clients. With HTTP/2, each client uses one
// connection. With HTTP/1.1, each client uses one connection per concurrent request.
type httpPeer struct {
	*load
	clients []*http.Client
	base    string
	content content
}

// httpLoad returns a load that repeats a request. If the option path has the prefix "http1:", the
// load uses HTTP/1.1.
func httpLoad(request func(p *httpPeer, ctx context.Context, conn, n int)) func(context.Context, *load) error {
	return func(ctx context.Context, l *load) error {
		p, err := newHTTPPeer(l)
		if err != nil {
			return err
		}
		if err := p.connect(ctx); err != nil {
			return err
		}
		p.repeat(ctx, func(ctx context.Context, conn, n int) { request(p, ctx, conn, n) })
		for _, c := range p.clients {
			c.CloseIdleConnections()
		}
		return nil
	}
}

func newHTTPPeer(l *load) (*httpPeer, error) {
	secret, err := l.tlsConfig()
	if err != nil {
		return nil, err
	}
	p := &httpPeer{load: l, base: "http://" + l.target, content: newContent()}
	if secret != nil {
		p.base = "https://" + l.target
	}
	path, http1 := strings.CutPrefix(l.path, "http1:")
	p.path = path
	for range l.conns {
		t := &http.Transport{TLSClientConfig: secret, DisableCompression: true, MaxIdleConnsPerHost: l.streams, Protocols: &http.Protocols{}}
		t.Protocols.SetHTTP1(http1)
		t.Protocols.SetHTTP2(!http1)
		t.Protocols.SetUnencryptedHTTP2(!http1)
		p.clients = append(p.clients, &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }})
	}
	return p, nil
}

// connect makes one request with each client. Without this request, an HTTP/2 client would open
// a connection for each of its first concurrent requests, and continue to use all of these
// connections.
func (p *httpPeer) connect(ctx context.Context) error {
	for _, c := range p.clients {
		ctx, cancel := context.WithTimeout(ctx, maxCallTime)
		defer cancel()
		if _, err, _ := p.get(ctx, c, "/"); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	return nil
}

// problem describes an unexpected response.
func problem(r *http.Response) string {
	kind := r.Status
	if v := r.Header.Values("Proxy-Status"); len(v) > 0 {
		kind += " [Proxy-Status: " + strings.Join(v, ", ") + "]"
	}
	return kind
}

// count counts a request that has ended.
func (p *httpPeer) count(ctx context.Context, bounded bool, n int, err error, wrong string) {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case wrong != "":
		p.tally.failed(wrong)
	case err == nil:
		p.tally.ok(n)
	case bounded && ctx.Err() != nil && p.cancel > 0:
		p.tally.expected("Canceled")
	case bounded && ctx.Err() != nil:
		p.tally.expected("DeadlineExceeded")
	default:
		p.tally.failed(err.Error())
	}
}

// getRequest requests the path and checks the content with its checksum.
func getRequest(p *httpPeer, ctx context.Context, conn, n int) {
	ctx, cancel, bounded := p.callContext(ctx, n)
	defer cancel()
	path := strings.ReplaceAll(p.path, "SEED", fmt.Sprint(n%seeds))
	size, err, wrong := p.get(ctx, p.clients[conn], path)
	p.count(ctx, bounded, size, err, wrong)
}

// get makes a GET request. It returns the size of the response content in bytes and, if the
// response is wrong, a description of the problem.
func (p *httpPeer) get(ctx context.Context, c *http.Client, path string) (size int, err error, wrong string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return 0, err, ""
	}
	w, err := c.Do(r)
	if err != nil {
		return 0, err, ""
	}
	defer w.Body.Close()
	time.Sleep(p.late)
	crc := crc32.NewIEEE()
	n, err := io.Copy(crc, w.Body)
	if err != nil {
		return int(n), err, ""
	}
	want := w.Header.Get("X-Sum") + w.Trailer.Get("X-Sum")
	switch {
	case w.StatusCode != http.StatusOK:
		return int(n), nil, problem(w)
	case want == "" && strings.Contains(path, "trailer"):
		return int(n), nil, "missing trailer"
	case want != "" && want != fmt.Sprintf("%08x", crc.Sum32()):
		return int(n), nil, fmt.Sprintf("wrong content: got %d bytes", n)
	case w.ContentLength >= 0 && n != w.ContentLength:
		return int(n), nil, fmt.Sprintf("wrong content: got %d bytes", n)
	}
	return int(n), nil, ""
}

// postRequest sends content, count times size bytes, and checks the checksum in the
// response.
func postRequest(p *httpPeer, ctx context.Context, conn, n int) {
	ctx, cancel, bounded := p.callContext(ctx, n)
	defer cancel()
	piece := p.content.piece(n, p.size)
	crc := crc32.NewIEEE()
	var parts []io.Reader
	for range p.options.count {
		crc.Write(piece)
		parts = append(parts, bytes.NewReader(piece))
	}
	total := p.options.count * len(piece)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+p.path, io.MultiReader(parts...))
	if err != nil {
		p.count(ctx, bounded, 0, err, "")
		return
	}
	r.ContentLength = int64(total)
	w, err := p.clients[conn].Do(r)
	if err != nil {
		p.count(ctx, bounded, 0, err, "")
		return
	}
	defer w.Body.Close()
	out, err := io.ReadAll(w.Body)
	wrong, want := "", fmt.Sprintf("%d %08x", total, crc.Sum32())
	switch {
	case err != nil:
	case w.StatusCode != http.StatusOK:
		wrong = problem(w)
	case strings.TrimSpace(string(out)) != want:
		wrong = "wrong checksum of the request"
	}
	p.count(ctx, bounded, total, err, wrong)
}
