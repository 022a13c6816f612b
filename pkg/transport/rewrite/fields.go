// Package rewrite contains the parts of forwarding that all engines share: the header section of
// the request to the user container, the fields of the response to the client, the bounds on both, and
// the settings of the engines.
//
// The package does not read from or write to a connection. The packages http1client and http2client make a [Call].
// Call and [ServerSettings] use the memory accounts and limits of package netconn. Therefore Call and
// ServerSettings are not part of package transport, whose importers must not depend on sockets.
//
// Strings and fields are not copied, and may refer to the buffers of an engine.
package rewrite

import (
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// An Encoder receives the fields of a header section in order. name has the same case as in the received message.
// Both strings are valid only during the call.
type Encoder interface {
	Field(name, value string)
}

// Lines is an Encoder that appends field lines in the format of HTTP/1.1.
type Lines []byte

// Field implements Encoder.
func (l *Lines) Field(name, value string) { *l = wire.AppendField(*l, name, value) }

// names contains the field names in the Connection fields of a message. The named fields are only for the next hop (RFC
// 9110 section 7.6.1).
type names []string

// namesRoom is the number of names that can be stored without an allocation. Most messages contain no such names.
const namesRoom = 8

// add adds the names in one Connection field, except for "keep-alive" and "close", which are
// connection options.
func (n names) add(line string) names {
	for name := range wire.Members(line) {
		if name != "" && !transport.EqualFold(name, "keep-alive") && !transport.EqualFold(name, "close") {
			n = append(n, name)
		}
	}
	return n
}

func (n names) has(name string) bool {
	for _, named := range n {
		if transport.EqualFold(named, name) {
			return true
		}
	}
	return false
}
