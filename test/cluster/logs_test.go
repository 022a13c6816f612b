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

// podLogs stores the logs of all containers in a namespace. The kubelet deletes the log files
// with the pod. Therefore each log file is opened when it is created, and it is read at the
// end.
type podLogs struct {
	space string
	end   chan struct{}
	done  chan struct{}

	mu    sync.Mutex // protects files
	files map[string]*os.File
}

// A containerLog is the output of a container.
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

// look opens new log files. A restarted container has a new log file.
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

// all returns the current output of all containers in the order in which they started.
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
		parts := strings.Split(strings.TrimPrefix(name, "/var/log/pods/"), "/") // the path contains space_pod_uid, container and 0.log
		logs = append(logs, containerLog{strings.Split(parts[0], "_")[1], parts[1], linesOf(string(text))})
	}
	return logs
}

// lines returns the output of all containers with a name.
func (l *podLogs) lines(container string) []string {
	var all []string
	for _, c := range l.all() {
		if c.container == container {
			all = append(all, c.lines...)
		}
	}
	return all
}

// linesOf parses the log format of container runtimes: time, stream, F or P (P for a partial
// line), and the text.
func linesOf(text string) []string {
	var lines []string
	parts := map[string]string{} // partial line of each stream
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
