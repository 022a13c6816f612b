// This file implements the detection of clients that have closed their side of a connection or
// reset the connection. The detection does not read from the connection and has no cost per
// request. All connections are registered in a single epoll instance.
//
// On systems other than Linux, [Watcher.Add] returns nil, and the engine must detect the close itself.

package netconn

// A Watch is the registration of one connection. Stop does nothing on a nil Watch.
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
