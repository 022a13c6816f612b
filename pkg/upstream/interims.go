package upstream

import (
	"net/http"
	"net/textproto"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
)

// Interims are the informational responses to one request. The transport tells of
// them on the goroutine that reads for all requests of a connection, which must not
// wait for one client, and also when the request is over: so another goroutine
// passes them on, and none behind end.
type Interims struct {
	Tell func(status int, fields http.Header)

	mu      sync.Mutex
	n       int
	waiting []interim
	telling chan struct{} // closed when the goroutine has ended; nil: there is none
	over    bool
}

type interim struct {
	status int
	fields http.Header
}

// Take takes an informational response; it is a Got1xxResponse. Any goroutine may call
// it.
func (i *Interims) Take(status int, fields textproto.MIMEHeader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over {
		return nil
	}
	if i.n++; i.n > maxInfos {
		return &forward.Error{Fault: forward.Garbage, Err: errTooManyInfos}
	}
	i.waiting = append(i.waiting, interim{status, http.Header(fields)})
	if i.telling == nil {
		i.telling = make(chan struct{})
		go i.run()
	}
	return nil
}

// run tells of those that wait.
func (i *Interims) run() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.waiting) > 0 {
		next := i.waiting[0]
		i.waiting = i.waiting[1:]
		i.mu.Unlock()
		i.Tell(next.status, next.fields)
		i.mu.Lock()
	}
	close(i.telling)
	i.telling = nil
}

// End returns when all have been told of, or when those that wait have been dropped.
func (i *Interims) End(drop bool) {
	i.mu.Lock()
	i.over = true
	if drop {
		i.waiting = nil
	}
	telling := i.telling
	i.mu.Unlock()
	if telling != nil {
		<-telling
	}
}
