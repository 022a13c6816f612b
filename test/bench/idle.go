//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// An idle pod serves no requests of clients. Its sidecar answers the probes of the kubelet, the scrapes of Prometheus and
// the scrapes of Knative's autoscaler, at the rates of a cluster.
const (
	probeInterval      = 10 * time.Second // default periodSeconds of a readiness probe in Kubernetes
	scrapeInterval     = 15 * time.Second // scrape_interval in most configurations of Prometheus
	statisticsInterval = time.Second      // interval at which Knative's autoscaler scrapes each pod

	// idlePods is the number of pods of each sidecar. On a node, the processes share the pages of the binary, which are
	// therefore not part of the private memory. This requires at least two pods.
	idlePods = 4

	// Ports of a sidecar in a pod. In Knative's queue-proxy, statisticsPort is fixed.
	statisticsPort = "9090"
	metricsPort    = "9091"
)

const (
	// acceptMetrics is the Accept header of Prometheus 3. Prometheus also sends Accept-Encoding: gzip, which
	// http.Transport adds by default.
	acceptMetrics = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6," +
		"application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4," +
		"text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
	// acceptStatistics is the Accept header of Knative's autoscaler.
	acceptStatistics = "application/protobuf"
)

// A poll is a request that a client of an idle pod repeats.
type poll struct {
	interval time.Duration
	send     func() error
}

// repeat sends the polls for the duration d, and returns the first error of each poll. The first request of a poll is
// sent after half of the interval, so that the number of requests in a minute is exact: 6, 4 and 60. A poll is not
// repeated after an error.
func repeat(ctx context.Context, d time.Duration, polls []poll) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var clients sync.WaitGroup
	failed := make([]error, len(polls))
	for i, p := range polls {
		clients.Go(func() {
			next := time.NewTimer(p.interval / 2)
			defer next.Stop()
			for failed[i] == nil {
				select {
				case <-ctx.Done():
					return
				case <-next.C:
					next.Reset(p.interval)
					failed[i] = p.send()
				}
			}
		})
	}
	clients.Wait()
	return errors.Join(failed...)
}

// An idlePod is a sidecar in the network of its pod.
type idlePod struct {
	*running
	stop   func()
	client *http.Client // client that opens its connections in the network of the pod
	scrape []byte       // the last response with metrics, uncompressed
}

// startIdlePod starts a pod and sends the first polls, which create the connections.
func (b *bench) startIdlePod(p *peer) (*idlePod, error) {
	r, stop, err := b.startPod(p)
	if err != nil {
		return nil, err
	}
	pod := &idlePod{running: r, stop: stop}
	dial := func(_ context.Context, network, address string) (c net.Conn, err error) {
		err = insideNetwork(r.pid(), func() error {
			c, err = net.DialTimeout(network, address, patience)
			return err
		})
		return c, err
	}
	pod.client = &http.Client{Timeout: patience, Transport: &http.Transport{DialContext: dial}}
	for _, poll := range pod.polls() {
		if err := poll.send(); err != nil {
			stop()
			return nil, err
		}
	}
	return pod, nil
}

// polls returns the polls of the kubelet, Prometheus and the autoscaler. The kubelet opens a connection for each probe.
// The other two keep their connections.
func (p *idlePod) polls() []poll {
	return []poll{
		{probeInterval, func() error {
			return insideNetwork(p.pid(), func() error {
				_, err := askOnce(p.at.Address, probe)
				return err
			})
		}},
		{scrapeInterval, func() (err error) {
			p.scrape, err = p.get(metricsPort, acceptMetrics)
			return err
		}},
		{statisticsInterval, func() error {
			_, err := p.get(statisticsPort, acceptStatistics)
			return err
		}},
	}
}

// get returns the body of /metrics on a port of the pod.
func (p *idlePod) get(port, accept string) ([]byte, error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+net.JoinHostPort("127.0.0.1", port)+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scrape %s: status %s", request.URL, response.Status)
	}
	return io.ReadAll(response.Body)
}

// countSeries returns the number of series in a scrape, which is in the text format of Prometheus or OpenMetrics.
func countSeries(scrape []byte) (n int) {
	for line := range bytes.Lines(scrape) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			n++
		}
	}
	return n
}

// idlePeers returns the peers that are measured in idle pods: queue-proxy with the
// metrics that it exports on Knative, queue-proxy with the metrics that it exports in
// other pods, and Knative's queue-proxy.
func idlePeers(all []*peer) []*peer {
	var sidecars []*peer
	for _, p := range all {
		switch p.name {
		case ours:
			elsewhere := *p
			elsewhere.name, elsewhere.command = withDefaultNames, queueProxy(withDefaultNames)
			sidecars = append(sidecars, p, &elsewhere)
		case knative:
			sidecars = append(sidecars, p)
		}
	}
	return sidecars
}

// idle measures the cost of a pod that serves no requests. The pods of all sidecars run at the same time.
func (b *bench) idle(ctx context.Context, app *runningApp, n int) error {
	sidecars := idlePeers(b.peers)
	if err := b.startsOf(ctx, app, rotate(sidecars, n), "idle/start", nil); err != nil {
		return err
	}
	if b.shared != nil {
		b.results.note("idle/cpu", ours, "not measured: "+b.shared.Error())
		return nil
	}
	var pods []*idlePod
	defer func() {
		for _, pod := range pods {
			pod.stop()
		}
	}()
	for i := range idlePods {
		for _, p := range rotate(sidecars, n+i) {
			pod, err := b.startIdlePod(p)
			if err := b.failed(ctx, "idle/cpu", p.name, err); err != nil {
				return err
			}
			if err == nil {
				pods = append(pods, pod)
			}
		}
	}
	time.Sleep(settle)
	return b.measureIdle(ctx, pods)
}

// measureIdle polls all pods. For each sidecar, it adds the medians of its pods to the results.
func (b *bench) measureIdle(ctx context.Context, pods []*idlePod) error {
	var measuring sync.WaitGroup
	costs, failed := make([]idleCost, len(pods)), make([]error, len(pods))
	for i, pod := range pods {
		measuring.Go(func() {
			costs[i], failed[i] = pod.cost(ctx, time.Duration(b.results.Settings.Idle)*time.Second)
		})
	}
	measuring.Wait()
	of := map[string][]idleCost{}
	for i, pod := range pods {
		if err := b.failed(ctx, "idle/cpu", pod.name(), failed[i]); err != nil {
			return err
		}
		if failed[i] == nil {
			of[pod.name()] = append(of[pod.name()], costs[i])
		}
	}
	for name, all := range of {
		for id := range all[0] {
			var values []float64
			for _, cost := range all {
				values = append(values, cost[id])
			}
			b.results.add(id, name, median(values))
		}
	}
	return nil
}

// An idleCost holds the cost of an idle pod by row.
type idleCost map[string]float64

// cost polls a pod for a duration and returns the cost of the pod.
func (p *idlePod) cost(ctx context.Context, d time.Duration) (idleCost, error) {
	before, err := p.cpu()
	if err != nil {
		return nil, err
	}
	if err := repeat(ctx, d, p.polls()); err != nil {
		return nil, err
	}
	after, err := p.cpu()
	if err != nil {
		return nil, err
	}
	private, _, err := p.memoryShare()
	return idleCost{
		"idle/series":  float64(countSeries(p.scrape)),
		"idle/bytes":   float64(len(p.scrape)) / 1e3,
		"idle/cpu":     milliseconds(after-before) * float64(time.Minute) / float64(d),
		"idle/private": private / 1e6,
	}, err
}
