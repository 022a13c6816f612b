// Package forward contains the parts of forwarding that all engines share: the header section of
// the request to the user container, the fields of the response to the client, the reason why a
// request failed, and the settings of the engines.
//
// The package does not read from or write to a connection. The packages upstream and h2client make
// a [Call]. A Call and the [Settings] only refer to the memory account and to the limits of the
// connections of clients. Strings and fields are not copied, and can refer to the buffers of an
// engine.
package forward

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// AnswerTimeout bounds the writing of an answer of our own: the clock that has run out
// must not take its own answer with it.
const AnswerTimeout = 5 * time.Second

// ContinueTimeout is how long a body waits for "100 Continue". RFC 9110 section 10.1.1
// allows any time; servers that know nothing of it never say it.
const ContinueTimeout = time.Second

// An Encoder takes the fields of a head in their order. A name has the case in which it
// came. Both strings are valid during the call.
type Encoder interface {
	Field(name, value string)
}

// Lines is an Encoder that appends field lines of HTTP/1.1.
type Lines []byte

// Field implements Encoder.
func (l *Lines) Field(name, value string) { *l = wire.AppendField(*l, name, value) }

// names are the fields that the Connection lines of a message name: they are for the next
// hop alone (RFC 9110 section 7.6.1).
type names []string

// namesRoom is how many names are collected without an allocation. Most messages have none.
const namesRoom = 8

// add adds the names in one Connection line. "keep-alive" and "close" tell what becomes of
// the connection.
func (n names) add(line string) names {
	for name := range wire.Members(line) {
		if name != "" && !header.EqualFold(name, "keep-alive") && !header.EqualFold(name, "close") {
			n = append(n, name)
		}
	}
	return n
}

func (n names) has(name string) bool {
	for _, named := range n {
		if header.EqualFold(named, name) {
			return true
		}
	}
	return false
}
