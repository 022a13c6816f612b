package kubectl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// passed are the paths that the proxy passes on: lists of pods, and /metrics of a port of a pod.
const passed = `^/api/v1/(pods|namespaces/[^/]+/pods(/[^/]+/proxy/metrics)?)$`

// startTime is how long the proxy may take until it listens.
const startTime = 30 * time.Second

// A Proxy is a kubectl proxy that runs. Its methods may be called concurrently.
type Proxy struct {
	client http.Client
	folder string
	cmd    *exec.Cmd
	stderr *tail
	end    context.CancelFunc
	ended  chan struct{} // is closed when it has ended
}

// Proxy starts a kubectl proxy. It must be closed.
func (c Command) Proxy(ctx context.Context) (*Proxy, error) {
	folder, err := os.MkdirTemp("", "kubectl-queue_proxy-") // for this user alone
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(folder, "api")
	ctx, end := context.WithCancel(ctx)
	p := &Proxy{folder: folder, end: end, stderr: &tail{also: c.Stderr}, ended: make(chan struct{})}
	p.cmd = c.command(ctx, "proxy", "--unix-socket="+socket, "--accept-paths="+passed, "--reject-methods=^(POST|PUT|PATCH|DELETE)$")
	p.cmd.Stdin, p.cmd.Stderr = c.Stdin, p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		end()
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	listening := make(chan struct{})
	go func() { // reads until the process ends, and waits for that
		defer close(p.ended)
		out := bufio.NewReader(stdout)
		if line, _ := out.ReadString('\n'); strings.Contains(line, socket) {
			close(listening)
		}
		_, _ = io.Copy(io.Discard, out)
		_ = p.cmd.Wait() // its standard error says more
	}()
	p.client.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost:    Parallel,
		MaxResponseHeaderBytes: 64 << 10,
	}
	p.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	select {
	case <-listening:
		return p, nil
	case <-p.ended:
		err = p.Failed()
	case <-time.After(startTime):
		err = fmt.Errorf("kubectl proxy: it does not listen after %v", startTime)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, p.Close())
}

// Silence keeps what kubectl writes to its standard error from ours: a screen is shown there.
func (p *Proxy) Silence() { p.stderr.silence() }

// Failed is why the proxy has ended, nil while it runs.
func (p *Proxy) Failed() error {
	select {
	case <-p.ended:
		return p.stderr.explain("kubectl proxy", errors.New("it has ended"))
	default:
		return nil
	}
}

// Close ends the proxy and waits for its end.
func (p *Proxy) Close() error {
	p.client.CloseIdleConnections()
	p.end()
	<-p.ended
	return os.RemoveAll(p.folder)
}

// get asks the API server. The body of the answer must be closed.
func (p *Proxy) get(ctx context.Context, path, accept string, query url.Values) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "localhost", Path: path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", accept)
	res, err := p.client.Do(r)
	if of := new(url.Error); errors.As(err, &of) {
		err = of.Err // the rest is the socket's
	}
	return res, err
}
