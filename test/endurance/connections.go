//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// sampleTime is the time between two counts of connections.
const sampleTime = 50 * time.Millisecond

// countConnections counts the established connections to a port every sampleTime until
// stop is called. The stop function returns the maximum.
func countConnections(address string) (stop func() int) {
	quit, most := make(chan struct{}), make(chan int)
	go func() {
		ticker := time.NewTicker(sampleTime)
		defer ticker.Stop()
		for highest := 0; ; {
			highest = max(highest, connections(port(address)))
			select {
			case <-ticker.C:
			case <-quit:
				most <- highest
				return
			}
		}
	}()
	return func() int {
		close(quit)
		return <-most
	}
}

// connections returns the number of established connections to a listening port, from the
// tables of the kernel. Each line contains the local address, the remote address and the
// state in hexadecimal digits (proc_pid_net(5)).
func connections(listener string) int {
	number, err := strconv.Atoi(listener)
	if err != nil {
		return 0
	}
	suffix := fmt.Sprintf(":%04X", number)
	n := 0
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue // the kernel does not support IPv6
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			const established = "01"
			if len(fields) > 3 && strings.HasSuffix(fields[1], suffix) && fields[3] == established {
				n++
			}
		}
	}
	return n
}
