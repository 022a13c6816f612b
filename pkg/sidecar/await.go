package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/proxy/knative"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

const (
	// probeInterval is the delay after a failed probe.
	probeInterval = 25 * time.Millisecond
	// probeAgent is the user agent of the exec probe in Knative 0.10 and later.
	probeAgent = "Knative-Queue-Proxy-Probe"

	// maxProbeBody is the maximum number of bytes that are read from a response body.
	// [netconn.LoopbackClient] limits the header section.
	maxProbeBody = 4 << 10
)

// AwaitReady sends queue probes to the sidecar on the given local port until the sidecar is ready.
// It returns an error if ctx is done first or if the sidecar is shutting down. The error describes
// the last failed probe.
func AwaitReady(ctx context.Context, port int) error {
	client := netconn.LoopbackClient()
	url := "http://" + net.JoinHostPort(netconn.LoopbackIPv4, strconv.Itoa(port))
	last := errors.New("no response")
	for {
		answer, err := sendProbe(ctx, client, url)
		switch {
		case err == nil && answer == knative.QueueValue:
			return nil
		case err == nil:
			last = fmt.Errorf("probe returned not ready: %s", strings.TrimSpace(answer))
		case ctx.Err() == nil:
			last = fmt.Errorf("failed to probe: %w", err)
		}
		if strings.HasPrefix(answer, "shutting down") {
			return last
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(probeInterval):
		}
	}
}

// sendProbe sends one probe and returns at most maxProbeBody bytes of the response body.
func sendProbe(ctx context.Context, client *http.Client, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set(knative.Probe, knative.QueueValue)
	r.Header.Set(transport.UserAgent, probeAgent)
	res, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxProbeBody))
	return string(body), err
}
