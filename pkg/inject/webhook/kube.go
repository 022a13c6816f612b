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

// serviceAccount is the directory in which a kubelet mounts the credentials for the API server.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Kube is a client for the API server. It sends plain requests without a cache, and is safe for
// concurrent use.
type Kube struct {
	base      string // URL of the API server without a path, such as https://10.0.0.1:443
	tokenFile string // path of the token, which is read for each request because the kubelet renews it
	client    *http.Client
}

// InCluster returns a Kube for the cluster in which the process runs. host and port are the values
// of KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
func InCluster(host, port string) (*Kube, error) {
	if host == "" || port == "" {
		return nil, errors.New("not running in a cluster: KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set")
	}
	return newKube("https://"+net.JoinHostPort(host, port), serviceAccount)
}

// newKube returns a Kube for an API server. dir is a directory with the files ca.crt and token.
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
			TLSHandshakeTimeout:    10 * time.Second, // the transport does not cancel a handshake when its request is canceled
			MaxResponseHeaderBytes: 64 << 10,
		},
		// Do not send the token to other hosts.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// A statusError is a response from the API server with a status other than 2xx.
type statusError struct {
	Code int // HTTP status
	Text string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("API server returned status %d: %s", e.Code, e.Text)
}

func isStatus(err error, code int) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && s.Code == code
}

// do sends a request and decodes the JSON response into result. body and result may be nil. The error is a
// *[statusError] if the status of the response is not 2xx.
func (k *Kube) do(ctx context.Context, method, path, contentType string, body, result any) error {
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
	got, err := io.ReadAll(io.LimitReader(answer.Body, maxReviewBytes))
	if err != nil {
		return err
	}
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		var status struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(got, &status) // Message remains empty if the body is not a Status
		return &statusError{answer.StatusCode, status.Message}
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(got, result)
}
