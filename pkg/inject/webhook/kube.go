package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// serviceAccount is where a kubelet puts what a pod needs to speak with the API server.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Kube speaks with the API server about the three objects that we need: plain requests,
// no caches. It may be used concurrently.
type Kube struct {
	base      string // https://host:port
	tokenFile string // read for each request, because it is renewed
	client    *http.Client
}

// InCluster is the Kube of the pod that we run in. host and port are what its environment
// says, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
func InCluster(host, port string) (*Kube, error) {
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: not in a cluster")
	}
	return newKube("https://"+net.JoinHostPort(host, port), serviceAccount)
}

// newKube speaks with a given API server. dir holds ca.crt and token.
func newKube(base, dir string) (*Kube, error) {
	name := filepath.Join(dir, "ca.crt")
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	authorities, err := ParseAuthorities(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Kube{base: base, tokenFile: filepath.Join(dir, "token"), client: &http.Client{
		Timeout: 15 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:        &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2:      true,
			IdleConnTimeout:        30 * time.Second,
			TLSHandshakeTimeout:    10 * time.Second, // a transport goes on with it when the request has been given up
			MaxResponseHeaderBytes: 64 << 10,
		},
		// The token is for the API server alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// A statusError is an answer of the API server that is no success.
type statusError struct {
	Code int // of HTTP
	Text string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the API server says %d: %s", e.Code, e.Text)
}

func isStatus(err error, code int) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && s.Code == code
}

// do sends one request and decodes the answer. body and into may be nil. The error is a
// *[statusError] where the API server answered.
func (k *Kube) do(ctx context.Context, method, path, contentType string, body, into any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, k.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	token, err := os.ReadFile(k.tokenFile)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "queue-proxy-injector")
	if body != nil {
		r.Header.Set("Content-Type", contentType)
	}
	answer, err := k.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(io.LimitReader(answer.Body, mostBytes))
	if err != nil {
		return err
	}
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		var status struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(got, &status) // an answer without one has none
		return &statusError{answer.StatusCode, status.Message}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(got, into)
}
