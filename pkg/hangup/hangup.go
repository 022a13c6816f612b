// Package hangup notices that a client has gone: it has closed its side of the
// connection or reset it. Nothing is read and nothing is spent per request: one
// epoll set for the process, one registration per connection.
//
// Systems other than Linux have no such set; there [Watcher.Add] returns nil and
// an engine has to find out in its own way.
package hangup

// A Watch is one connection under watch. The nil Watch watches nothing.
type Watch struct {
	id   uint64
	from *Watcher
}

// Stop ends the watch. The callback may still be running.
func (w *Watch) Stop() {
	if w != nil {
		w.from.remove(w.id)
	}
}
