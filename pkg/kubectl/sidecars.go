package kubectl

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

	"github.com/queue-proxy/queue-proxy/pkg/top"
)

// Bounds of what is asked of a cluster.
const (
	Parallel = 16   // sidecars that are asked at once
	Most     = 1000 // sidecars that are asked at all

	pageOfPods = 250              // pods in an answer
	mostPods   = 64 << 20         // bytes of an answer: a pod is 5 to 50 KB
	mostPage   = 1 << 20          // bytes that are read of a sidecar's metrics; 31 KB are usual
	mostStatus = 16 << 10         // bytes that are read of an error
	listTime   = 30 * time.Second // for a page of pods
	scrapeTime = 3 * time.Second  // for one sidecar
	roundTime  = 20 * time.Second // for all of them
)

// errNotInTime is what becomes of a sidecar that no time was left for.
var errNotInTime = fmt.Errorf("not asked: others took %v", roundTime)

// A Selection says which sidecars are looked for.
type Selection struct {
	Namespace string // "" is all of them
	Labels    string // a selector of labels; "" selects all pods
	Container string // the name of the container
}

// Sidecars lists those that a selection finds, and says whether there are more than [Most].
func (p *Proxy) Sidecars(ctx context.Context, s Selection) (all []top.Sidecar, more bool, err error) {
	path := "/api/v1/pods"
	if s.Namespace != "" {
		path = "/api/v1/namespaces/" + s.Namespace + "/pods"
	}
	query := url.Values{"limit": {strconv.Itoa(pageOfPods)}, "fieldSelector": {"status.phase!=Succeeded,status.phase!=Failed"}}
	if s.Labels != "" {
		query.Set("labelSelector", s.Labels)
	}
	for {
		page, err := p.page(ctx, path, query, s.Container)
		if err != nil {
			return nil, false, err
		}
		all = append(all, page.Sidecars...)
		if len(all) > Most {
			return all[:Most], true, nil
		}
		if page.Continue == "" {
			return all, false, nil
		}
		query.Set("continue", page.Continue)
	}
}

func (p *Proxy) page(ctx context.Context, path string, query url.Values, container string) (top.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	res, err := p.get(ctx, path, "application/json", query)
	if err != nil {
		return top.Page{}, fmt.Errorf("list of pods: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return top.Page{}, fmt.Errorf("list of pods: %s", readStatus(res).Message)
	}
	return top.ReadPods(io.LimitReader(res.Body, mostPods), container)
}

// Scrape asks sidecars, [Parallel] of them at once, and calls add with what each has said, one
// call at a time.
func (p *Proxy) Scrape(ctx context.Context, all []top.Sidecar, add func(top.Sidecar, top.Sample, error)) {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	var adding sync.Mutex
	var asking sync.WaitGroup
	next := make(chan top.Sidecar)
	for range min(Parallel, len(all)) {
		asking.Go(func() {
			for s := range next {
				sample, err := p.scrape(ctx, s)
				adding.Lock()
				add(s, sample, err)
				adding.Unlock()
			}
		})
	}
	for _, s := range all {
		if s.Absent == "" {
			next <- s
		}
	}
	close(next)
	asking.Wait()
}

// scrape asks one sidecar: for its metrics, or, if it serves none, for its statistics.
func (p *Proxy) scrape(ctx context.Context, s top.Sidecar) (top.Sample, error) {
	if ctx.Err() != nil {
		return top.Sample{}, errNotInTime
	}
	ctx, cancel := context.WithTimeout(ctx, scrapeTime)
	defer cancel()
	res, err := p.ask(ctx, s, s.Metrics, "text/plain;version=0.0.4", nil)
	var without *portError
	if err == nil {
		defer res.Body.Close()
		sample, err := top.ReadMetrics(io.LimitReader(res.Body, mostPage), time.Now())
		if !errors.Is(err, top.ErrNoMetrics) {
			return sample, inTime(err)
		}
	} else if !errors.As(err, &without) || !without.silent {
		return top.Sample{}, inTime(err)
	}
	res, err = p.ask(ctx, s, s.Stats, "application/json", url.Values{"format": {"json"}})
	if err != nil {
		if without != nil {
			err = without // neither port answers: the first is the one that people look at
		}
		return top.Sample{}, inTime(err)
	}
	defer res.Body.Close()
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind == "application/protobuf" {
		return top.Sample{}, errors.New("another queue-proxy, without metrics")
	}
	sample, err := top.ReadStats(io.LimitReader(res.Body, mostStatus), time.Now())
	return sample, inTime(err)
}

// inTime replaces the error of a deadline by words.
func inTime(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v", scrapeTime)
	}
	return err
}

// A portError is the error of a port that did not answer with 200.
type portError struct {
	error
	silent bool // the pod answers, and has nothing there: the sidecar may have no metrics
}

// ask asks a port of a pod through the API server. The body of the answer must be closed.
func (p *Proxy) ask(ctx context.Context, s top.Sidecar, port int, accept string, query url.Values) (*http.Response, error) {
	res, err := p.get(ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", s.Namespace, s.Pod, port), accept, query)
	if err != nil || res.StatusCode == http.StatusOK {
		return res, err
	}
	defer res.Body.Close()
	status := readStatus(res)
	_, last, _ := strings.Cut(status.Message, "dial tcp ") // "10.0.0.1:9091: connect: connection refused"
	switch {
	case status.Kind == "": // the sidecar's own
		return nil, &portError{fmt.Errorf("port %d answered %s", port, res.Status), res.StatusCode == http.StatusNotFound}
	case res.StatusCode == http.StatusForbidden:
		return nil, errors.New("forbidden: get of pods/proxy is needed")
	case last != "":
		parts := strings.Split(last, ": ")
		reason := parts[len(parts)-1]
		return nil, &portError{fmt.Errorf("port %d: %s", port, reason), reason == "connection refused"}
	}
	return nil, fmt.Errorf("port %d: %s", port, status.Message)
}

// A status is the error of an API server.
type status struct{ Kind, Message string }

// readStatus reads the error of an API server; the kind is "" of what is another's.
func readStatus(res *http.Response) status {
	var s status
	body, _ := io.ReadAll(io.LimitReader(res.Body, mostStatus))
	if json.Unmarshal(body, &s) != nil || s.Kind != "Status" {
		return status{Message: res.Status}
	}
	return s
}
