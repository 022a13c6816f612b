// File hangup.go detects that a client has closed its side of a connection or reset it. It does not
// read from the connection and has no cost per request. All connections are registered in one epoll
// set of the process.
//
// On systems other than Linux, [Watcher.Add] returns nil, and the engine must detect the close itself.

package netconn

// A Watch is the registration of one connection. A nil Watch has no effect.
type Watch struct {
	id   uint64
	from *Watcher
}

// Stop removes the registration. The callback may still be running when Stop returns.
func (w *Watch) Stop() {
	if w != nil {
		w.from.remove(w.id)
	}
}
