//go:build cluster

package cluster

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// podLogs holds the logs of all containers of a namespace. It opens each as soon as it
// is there and reads it at the end: the kubelet removes the files with the pod, and an
// open file stays.
type podLogs struct {
	space string
	end   chan struct{}
	done  chan struct{}

	mu    sync.Mutex // protects all below
	files map[string]*os.File
}

// A containerLog is what a container has printed.
type containerLog struct {
	pod, container string
	lines          []string
}

func followLogs(space string) *podLogs {
	l := &podLogs{space: space, end: make(chan struct{}), done: make(chan struct{}), files: map[string]*os.File{}}
	go func() {
		defer close(l.done)
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			l.look()
			select {
			case <-l.end:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	return l
}

// look opens the logs that are new. A container that was started again has another one.
func (l *podLogs) look() {
	found, _ := filepath.Glob("/var/log/pods/" + l.space + "_*/*/*.log")
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range found {
		if l.files[name] == nil {
			if f, err := os.Open(name); err == nil {
				l.files[name] = f
			}
		}
	}
}

func (l *podLogs) stop() {
	close(l.end)
	<-l.done
	for _, f := range l.files {
		f.Close()
	}
}

// all returns what every container has printed until now, in the order of their starts.
func (l *podLogs) all() []containerLog {
	l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for name := range l.files {
		names = append(names, name)
	}
	slices.Sort(names)
	var logs []containerLog
	for _, name := range names {
		f := l.files[name]
		text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
		if err != nil {
			continue
		}
		parts := strings.Split(strings.TrimPrefix(name, "/var/log/pods/"), "/") // space_pod_uid, container, 0.log
		logs = append(logs, containerLog{strings.Split(parts[0], "_")[1], parts[1], linesOf(string(text))})
	}
	return logs
}

// lines returns what the containers of a name have printed in all pods.
func (l *podLogs) lines(container string) []string {
	var all []string
	for _, c := range l.all() {
		if c.container == container {
			all = append(all, c.lines...)
		}
	}
	return all
}

// linesOf takes apart the format of a container runtime's logs: time, stream, F or P for
// a part of a line that goes on, and the text.
func linesOf(text string) []string {
	var lines []string
	parts := map[string]string{} // of each stream
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(f) < 4 {
			continue
		}
		parts[f[1]] += f[3]
		if f[2] == "F" {
			lines, parts[f[1]] = append(lines, parts[f[1]]), ""
		}
	}
	return lines
}
