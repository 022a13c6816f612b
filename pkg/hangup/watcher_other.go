//go:build !linux

package hangup

import "syscall"

// Watcher watches nothing on this system.
type Watcher struct{}

// New returns a watcher that watches nothing.
func New() (*Watcher, error) { return &Watcher{}, nil }

// Close does nothing.
func (*Watcher) Close() error { return nil }

// Add returns nil: connections can't be watched on this system.
func (*Watcher) Add(syscall.Conn, func()) *Watch { return nil }

func (*Watcher) remove(uint64) {}
