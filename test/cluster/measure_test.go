//go:build cluster && clusterfull

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// podTimes stores when each pod of a namespace was created and became ready, as observed by the
// client, because the API server's timestamps have a resolution of one second.
type podTimes struct {
	mu          sync.Mutex // protects the following fields
	made, ready map[string]time.Time
}

// watchPods watches the pods in a namespace until the end of the test.
func (s *space) watchPods() *podTimes {
	w := &podTimes{made: map[string]time.Time{}, ready: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		for ctx.Err() == nil {
			_ = w.follow(ctx, s.name) // ignore errors, because the API server closes each watch after some time
		}
	})
	s.t.Cleanup(func() { cancel(); group.Wait() })
	return w
}

func (w *podTimes) follow(ctx context.Context, namespace string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, apiServer+"/api/v1/namespaces/"+namespace+"/pods?watch=1", nil)
	if err != nil {
		return err
	}
	a, err := it.api.client.Transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	for events := json.NewDecoder(a.Body); ; {
		var e struct {
			Type   string
			Object object
		}
		if err := events.Decode(&e); err != nil {
			return err
		}
		w.note(e.Object, time.Now())
	}
}

func (w *podTimes) note(pod object, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.made[pod.name()]; !known {
		w.made[pod.name()] = now
	}
	if _, known := w.ready[pod.name()]; !known && pod.condition("Ready") {
		w.ready[pod.name()] = now
	}
}

// took returns the time from when a pod was created until it was ready.
func (w *podTimes) took(t *testing.T, pod string) time.Duration {
	t.Helper()
	var took time.Duration
	eventually(t, "pod "+pod+" is ready", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ready[pod].IsZero() {
			return errors.New("not yet")
		}
		took = w.ready[pod].Sub(w.made[pod])
		return nil
	})
	return took
}

// A memory is the memory of a container's cgroup in MiB.
type memory struct{ anonymous, workingSet float64 }

// groupOfContainer returns the cgroup of a container with the given ID.
func groupOfContainer(id string) (string, error) {
	_, id, _ = strings.Cut(id, "://")
	roots, err := groupRoots()
	if err != nil {
		return "", err
	}
	for _, root := range roots {
		if len(roots) > 1 && filepath.Base(root) != "memory" {
			continue
		}
		found := ""
		_ = filepath.WalkDir(root+it.group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && d.Name() == id {
				found = path
				return filepath.SkipAll
			}
			return nil
		})
		if found != "" {
			return found, nil
		}
	}
	return "", fmt.Errorf("container %s: no cgroup found", id)
}

// memoryOf returns the memory of a container: its anonymous memory, and the working set, which
// the kubelet compares with the limit.
func memoryOf(pod object, container string) (memory, error) {
	group, err := groupOfContainer(pod.container(container).text("containerID"))
	if err != nil {
		return memory{}, err
	}
	stat, err := readStat(group + "/memory.stat")
	if err != nil {
		return memory{}, err
	}
	anonymous, usage, inactive := "anon", "memory.current", "inactive_file"
	if _, old := stat["total_rss"]; old { // cgroup version 1 uses these names
		anonymous, usage, inactive = "total_rss", "memory.usage_in_bytes", "total_inactive_file"
	}
	text, err := os.ReadFile(group + "/" + usage)
	if err != nil {
		return memory{}, err
	}
	used, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return memory{stat[anonymous] / (1 << 20), (used - stat[inactive]) / (1 << 20)}, err
}

func readStat(file string) (map[string]float64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	stat := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			stat[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return stat, nil
}

// load sends n requests over the given number of connections. The test fails if the status of a
// response is not 200.
func load(t *testing.T, url string, connections, n int) {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	tickets := make(chan struct{}, n)
	for range n {
		tickets <- struct{}{}
	}
	close(tickets)
	wrong := make(chan error, connections)
	var group sync.WaitGroup
	for range connections {
		group.Go(func() {
			for range tickets {
				if err := fetch(client, url); err != nil {
					wrong <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(wrong)
	if err := <-wrong; err != nil {
		t.Fatal(err)
	}
}

func fetch(client *http.Client, url string) error {
	a, err := client.Get(url)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if _, err := io.Copy(io.Discard, a.Body); err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: got status %d", url, a.StatusCode)
	}
	return nil
}

// moduleVersion returns the version of a module in a go.mod file of this package.
func moduleVersion(t *testing.T, in, module string) string {
	t.Helper()
	version, err := moduleField(in, module, "Version")
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// machineLine describes the machine of the measurement.
func machineLine() string {
	model := "unknown processor"
	text, _ := os.ReadFile("/proc/cpuinfo")
	cores := 0
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch strings.TrimSpace(name) {
		case "model name":
			model = strings.TrimSpace(value)
			cores++
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	version := append(strings.SplitN(string(kernel), ".", 3), "", "")
	return fmt.Sprintf("%s, %d cores, Linux %s.%s", model, cores, version[0], version[1])
}

// loadAverage returns the load average of the last minute.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
