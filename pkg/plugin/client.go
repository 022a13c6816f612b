// This file finds the sidecars in a cluster, reads their metrics through the API server, and runs a command in the
// container of a sidecar. The work for each pod is bounded, because the application in a pod controls its responses.

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Limits for requests to the API server.
const (
	MaxParallel = 16   // maximum number of concurrent requests
	MaxSidecars = 1000 // maximum number of sidecars

	podsPerPage    = 250              // maximum number of pods in a response
	maxPods        = 64 << 20         // maximum size of a pod list in bytes; a pod takes 5 to 50 KB
	maxMetrics     = 1 << 20          // maximum size of a sidecar's metrics in bytes; the usual size is 31 KB
	maxStatus      = 16 << 10         // maximum size of an error response in bytes
	listTimeout    = 30 * time.Second // time limit for reading a page of pods
	sidecarTimeout = 3 * time.Second  // time limit for reading the metrics of one sidecar
	roundTimeout   = 20 * time.Second // time limit for reading the metrics of all sidecars
)

// errNoTime is the error for a sidecar to which no request was sent before roundTimeout expired.
var errNoTime = fmt.Errorf("no request was sent within %v", roundTimeout)

// Client reads from an API server. Its methods may be called concurrently.
type Client struct {
	config *rest.Config
	http   http.Client
	base   *url.URL
}

// New returns a client for the API server that config specifies.
func New(config *rest.Config) (*Client, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	c := &Client{config: config, base: base}
	c.http.Transport, c.http.Timeout = transport, config.Timeout
	// Redirects are not followed, because the transport adds the credentials of the user to each request, and a pod
	// can redirect to any server.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// Selection selects sidecars.
type Selection struct {
	Namespace string // empty for all namespaces
	Labels    string // label selector of the pods; empty for all pods
	Container string // name of the container
}

// Sidecars returns the selected sidecars, and whether there are more than [MaxSidecars].
func (c *Client) Sidecars(ctx context.Context, s Selection) (all []Sidecar, more bool, err error) {
	path := []string{"api/v1/pods"}
	if s.Namespace != "" {
		path = []string{"api/v1/namespaces", s.Namespace, "pods"}
	}
	query := url.Values{"limit": {strconv.Itoa(podsPerPage)}, "fieldSelector": {"status.phase!=Succeeded,status.phase!=Failed"}}
	if s.Labels != "" {
		query.Set("labelSelector", s.Labels)
	}
	for {
		pods, err := c.pods(ctx, query, path...)
		if err != nil {
			return nil, false, fmt.Errorf("list of pods: %w", err)
		}
		for i := range pods.Items {
			if sidecar, ok := SidecarOf(&pods.Items[i], s.Container); ok {
				all = append(all, sidecar)
			}
		}
		if len(all) > MaxSidecars {
			return all[:MaxSidecars], true, nil
		}
		if pods.Continue == "" {
			return all, false, nil
		}
		query.Set("continue", pods.Continue)
	}
}

// pods returns one page of the pod list at path.
func (c *Client) pods(ctx context.Context, query url.Values, path ...string) (*corev1.PodList, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	res, err := c.get(ctx, "application/json", query, path...)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, responseError(res)
	}
	if isHTML(res) {
		return nil, errNotKubernetes
	}
	pods := new(corev1.PodList)
	return pods, json.NewDecoder(io.LimitReader(res.Body, maxPods)).Decode(pods)
}

// Scrape reads the metrics of sidecars, at most [MaxParallel] at the same time. It calls add with each result, but not
// concurrently.
func (c *Client) Scrape(ctx context.Context, sidecars []Sidecar, add func(Sidecar, Sample, error)) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	var mu sync.Mutex
	var requests sync.WaitGroup
	slots := make(chan struct{}, MaxParallel)
	for _, s := range sidecars {
		if s.Absent != "" {
			continue
		}
		slots <- struct{}{}
		requests.Go(func() {
			sample, err := c.scrape(ctx, s)
			mu.Lock()
			add(s, sample, err)
			mu.Unlock()
			<-slots
		})
	}
	requests.Wait()
}

// scrape reads the metrics of a sidecar, or its statistics if it has no metrics.
func (c *Client) scrape(ctx context.Context, s Sidecar) (Sample, error) {
	if ctx.Err() != nil {
		return Sample{}, errNoTime
	}
	ctx, cancel := context.WithTimeout(ctx, sidecarTimeout)
	defer cancel()
	res, err := c.getPort(ctx, s, s.Metrics, "text/plain;version=0.0.4", nil)
	var portErr *portError
	if err == nil {
		defer res.Body.Close()
		sample, err := ReadMetrics(io.LimitReader(res.Body, maxMetrics), time.Now())
		if !errors.Is(err, ErrNoMetrics) {
			return sample, describe(err)
		}
	} else if !errors.As(err, &portErr) || !portErr.unused {
		return Sample{}, describe(err)
	}
	res, err = c.getPort(ctx, s, s.Stats, "application/json", url.Values{"format": {"json"}})
	if err != nil {
		if portErr != nil {
			err = portErr // both requests failed; return the error of the metrics port, which is more familiar to users
		}
		return Sample{}, describe(err)
	}
	defer res.Body.Close()
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind == "application/protobuf" {
		return Sample{}, errors.New("the queue-proxy does not serve metrics")
	}
	sample, err := ReadStats(io.LimitReader(res.Body, maxStatus), time.Now())
	return sample, describe(err)
}

// describe returns an error with the duration of the timeout if err is a timeout, and err otherwise.
func describe(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no response within %v", sidecarTimeout)
	}
	return err
}

// A portError reports that a port of a pod returned a status other than 200.
type portError struct {
	error
	unused bool // the pod is reachable, but serves nothing on the port
}

// getPort sends a request for /metrics to a port of a pod through the API server. The caller must close the response
// body.
func (c *Client) getPort(ctx context.Context, s Sidecar, port int, accept string, query url.Values) (*http.Response, error) {
	res, err := c.get(ctx, accept, query, "api/v1/namespaces", s.Namespace, "pods", fmt.Sprintf("%s:%d", s.Pod, port), "proxy/metrics")
	if err != nil || res.StatusCode == http.StatusOK {
		return res, err
	}
	defer res.Body.Close()
	status := readStatus(res)
	_, dialErr, _ := strings.Cut(status.Message, "dial tcp ") // such as "10.0.0.1:9091: connect: connection refused"
	switch {
	case status.Kind == "": // the response comes from the pod and not from an API server
		return nil, &portError{fmt.Errorf("port %d returned %s", port, res.Status), res.StatusCode == http.StatusNotFound}
	case res.StatusCode == http.StatusForbidden:
		return nil, errors.New("forbidden: the permission to get pods/proxy is missing")
	case dialErr != "":
		parts := strings.Split(dialErr, ": ")
		reason := parts[len(parts)-1]
		return nil, &portError{fmt.Errorf("port %d: %s", port, reason), reason == "connection refused"}
	}
	return nil, fmt.Errorf("port %d: %s", port, status.Message)
}

// get sends a request to the API server. The caller must close the response body.
func (c *Client) get(ctx context.Context, accept string, query url.Values, path ...string) (*http.Response, error) {
	u := c.base.JoinPath(path...)
	u.RawQuery = query.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", accept)
	res, err := c.http.Do(r)
	if urlErr := new(url.Error); errors.As(err, &urlErr) {
		err = fmt.Errorf("API server %s://%s: %w", c.base.Scheme, c.base.Host, urlErr.Err) // omit the path, because it is long
	}
	return res, err
}

// Errors that name the likely cause of a response.
var (
	errNotKubernetes = errors.New("the server returned an HTML page, so it is not a Kubernetes API server; check the address in the kubeconfig")
	errUnauthorized  = errors.New("the API server rejected the credentials (401 Unauthorized); check the credentials in the kubeconfig")
)

// responseError returns the error for a response of an API server with a status other than 200.
func responseError(res *http.Response) error {
	switch {
	case isHTML(res):
		return fmt.Errorf("%s: %w", res.Status, errNotKubernetes)
	case res.StatusCode == http.StatusUnauthorized:
		return errUnauthorized
	}
	return errors.New(readStatus(res).Message)
}

// isHTML reports whether the body of a response is an HTML page, for example the login page of a proxy.
func isHTML(res *http.Response) bool {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return kind == "text/html"
}

// readStatus reads the body of an error response. Kind is empty if the body is not from an API server.
func readStatus(res *http.Response) metav1.Status {
	var s metav1.Status
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxStatus))
	if json.Unmarshal(body, &s) != nil || s.Kind != "Status" {
		return metav1.Status{Message: res.Status}
	}
	return s
}
