//go:build !linux

package netconn

import "syscall"

// Watcher does nothing on this platform.
type Watcher struct{}

// NewWatcher returns a watcher that does nothing.
func NewWatcher() (*Watcher, error) { return &Watcher{}, nil }

// Close does nothing.
func (*Watcher) Close() error { return nil }

// Add returns nil, because connections cannot be watched on this platform.
func (*Watcher) Add(syscall.Conn, func()) *Watch { return nil }

func (*Watcher) remove(uint64) {}
