package upstream

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// speech is what the user container has been heard to speak. It is learnt on
// connections of its own or from an answer, never by sending a request twice,
// and forgotten when a dial fails: the next app may be another one.
type speech struct {
	mu     sync.Mutex
	h1, h2 answer
	asking *asking // whether it speaks HTTP/2; nil: nobody is
}

// asking is a question to the user container, which all share who want to know: an app
// that knows no HTTP/2 may take it for a request, and work on it.
type asking struct {
	done   chan struct{} // closed when speaks and err are set
	speaks bool
	err    error
}

type answer uint8

const (
	unknown answer = iota
	yes
	no
)

func (s *speech) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.h1, s.h2 = unknown, unknown
}

// Forget forgets what the user container speaks: it may be another one by now.
func (a *App) Forget() { a.speech.forget() }

// learnH1 notes that the user container speaks HTTP/1.1, or HTTP/2 instead.
func (s *speech) learnH1(speaks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h1 = yes; !speaks {
		s.h1, s.h2 = no, yes
	}
}

func (s *speech) learnH2(speaks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h2 = no; speaks {
		s.h2 = yes
	}
}

func (s *speech) heard() (h1, h2 answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.h1, s.h2
}

// OnlyH2 reports whether the user container has been heard to speak HTTP/2 and
// not HTTP/1.1.
func (a *App) OnlyH2() bool {
	h1, _ := a.speech.heard()
	return h1 == no
}

// SpeaksH2 reports whether the user container speaks HTTP/2. When that is not
// known it is asked, on a connection of its own, until the request is broken off whose
// alarm this is. Its silence for a second means no, and is remembered only of one that
// has been heard to speak HTTP/1.1. The error is a *forward.Error where nothing could be
// dialled, or context.Canceled.
func (a *App) SpeaksH2(alarm *queue.Alarm) (bool, error) {
	if _, h2 := a.speech.heard(); h2 != unknown {
		return h2 == yes, nil
	}
	ctx, cancel := alarm.Context()
	defer cancel()
	return a.speaksH2(ctx)
}

// speaksH2 is SpeaksH2 until a context ends, whose cause is then the error.
func (a *App) speaksH2(ctx context.Context) (bool, error) {
	s := &a.speech
	s.mu.Lock()
	if h2 := s.h2; h2 != unknown {
		s.mu.Unlock()
		return h2 == yes, nil
	}
	if ctx.Err() != nil {
		s.mu.Unlock()
		return false, context.Cause(ctx)
	}
	q := s.asking
	if q == nil {
		q = &asking{done: make(chan struct{})}
		s.asking = q
		go func() {
			q.speaks, q.err = a.askH2(context.WithoutCancel(ctx))
			s.mu.Lock()
			s.asking = nil
			s.mu.Unlock()
			close(q.done)
		}()
	}
	s.mu.Unlock()
	select {
	case <-q.done:
		return q.speaks, q.err
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// askH2 is speaksH2 where nobody knows yet.
func (a *App) askH2(ctx context.Context) (bool, error) {
	speaks, silent, err := a.question(ctx, answersPreface)
	if err != nil {
		return false, err
	}
	if h1, _ := a.speech.heard(); silent && h1 != yes {
		return false, nil // it may be too busy to speak at all: ask again
	}
	a.speech.learnH2(speaks)
	return speaks, nil
}

// speaksOnlyH2 reports whether the user container speaks HTTP/2 and not HTTP/1.1:
// then it can't have acted on what it has heard in HTTP/1.1 and swallowed. Where
// that is not known it is asked, in both, on connections of its own: in HTTP/1.1
// while one in HTTP/2 is open and lives on, and before another one is opened, since
// one that dies or takes no more connections swallows the question as well. The
// error is a *forward.Error where nothing could be dialled, or the context's cause.
func (a *App) speaksOnlyH2(ctx context.Context) (bool, error) {
	if h2, err := a.speaksH2(ctx); err != nil || !h2 {
		return false, err
	}
	if h1, _ := a.speech.heard(); h1 != unknown {
		return h1 == no, nil
	}
	var h1 bool
	sure, _, err := a.question(ctx, func(witness net.Conn) bool {
		if !answersPreface(witness) {
			return false
		}
		var silent bool
		var err error
		h1, silent, err = a.question(ctx, answersH1)
		if err != nil || silent || h1 {
			return h1
		}
		h2, _, err := a.question(ctx, answersPreface) // the user container does accept
		return err == nil && h2 && livesOn(witness)
	})
	if err != nil || !sure {
		return false, err
	}
	a.speech.learnH1(h1)
	return !h1, nil
}

// question puts one to the user container on a connection of its own, and says
// whether the answer is yes. silent: it is no because there was none in time.
func (a *App) question(ctx context.Context, answers func(net.Conn) bool) (is, silent bool, err error) {
	c, err := a.Dial(ctx)
	if err != nil {
		return false, false, err
	}
	defer c.Close()
	patience, cancel := context.WithTimeout(ctx, prefaceTimeout)
	defer cancel()
	stop := context.AfterFunc(patience, func() { c.SetDeadline(past) })
	defer stop()
	is = answers(c)
	if ctx.Err() != nil {
		return false, false, context.Cause(ctx)
	}
	return is, !is && patience.Err() != nil, nil
}

// prefaceTimeout bounds how long a question may take. A server that speaks
// HTTP/2 answers at once; one that does not may wait for more of the request.
const prefaceTimeout = time.Second

// answersH1 asks what a server can do (RFC 9110 section 9.3.7) and reports whether
// it answers in HTTP/1.
func answersH1(c net.Conn) bool {
	if _, err := io.WriteString(c, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		return false
	}
	const version = "HTTP/1."
	var start [len(version)]byte
	_, err := io.ReadFull(c, start[:])
	return err == nil && string(start[:]) == version
}

// answersPreface sends what opens an HTTP/2 connection and reports whether the
// server's own preface, a SETTINGS frame, comes back (RFC 9113 section 3.4).
func answersPreface(c net.Conn) bool {
	if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return false
	}
	var head [9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return false
	}
	return isSettings(head[:]) && skipPayload(c, head)
}

// skipPayload reads what belongs to the head of a frame (RFC 9113 section 4.1).
func skipPayload(r io.Reader, head [9]byte) bool {
	_, err := io.CopyN(io.Discard, r, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
	return err == nil
}

// livesOn reports whether a server that has answered a preface still answers after a
// while in which one that is ending would have ended: a PING by its ACK (RFC 9113
// section 6.7).
func livesOn(c net.Conn) bool {
	const while = 20 * time.Millisecond
	time.Sleep(while)
	const ping, ack = 6, 1
	if _, err := io.WriteString(c, "\x00\x00\x08\x06\x00\x00\x00\x00\x00alive???"); err != nil {
		return false
	}
	for {
		var head [9]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return false
		}
		if head[3] == ping && head[4]&ack != 0 {
			return true
		}
		if !skipPayload(c, head) {
			return false
		}
	}
}

// isSettings reports whether b begins with the head of a SETTINGS frame that
// could open a connection: type 4, no ACK, stream 0 (RFC 9113 section 6.5).
func isSettings(b []byte) bool {
	return len(b) >= 9 && b[0] == 0 && b[3] == 4 && b[4] == 0 && b[5]|b[6]|b[7]|b[8] == 0
}

// couldBeSettings reports whether what has been read of b is too short to tell.
func couldBeSettings(b []byte) bool {
	head := [9]byte{3: 4}
	copy(head[:], b)
	return len(b) < len(head) && isSettings(head[:])
}
