//go:build linux

package main

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The first byte of a WebSocket frame (RFC 6455, section 5.2).
const (
	final byte = 0x80
	rsv1  byte = 0x40 // the message is compressed (RFC 7692, section 7.2.3)
	rsv2  byte = 0x20
	rsv3  byte = 0x10

	continuation byte = 0x0
	text         byte = 0x1
	binaryData   byte = 0x2
	closing      byte = 0x8
	ping         byte = 0x9
	pong         byte = 0xa
)

// opcodes contains the names of the opcodes in transcripts.
var opcodes = map[byte]string{
	continuation: "continuation", text: "text", binaryData: "binary", closing: "close", ping: "ping", pong: "pong",
}

// maskKey is the mask of all frames that a client sends.
var maskKey = [4]byte{0x11, 0xa2, 0x3c, 0xf5}

// frame returns an encoded frame. A client masks its frames; a server does not.
func frame(first byte, payload []byte, masked bool) []byte {
	b := []byte{first}
	var mask byte
	if masked {
		mask = 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, mask|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, mask|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, mask|127), uint64(n))
	}
	if !masked {
		return append(b, payload...)
	}
	b = append(b, maskKey[:]...)
	for i, c := range payload {
		b = append(b, c^maskKey[i%4])
	}
	return b
}

// closeBody returns the payload of a close frame.
func closeBody(code uint16, reason string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, code), reason...)
}

// event describes a frame in a transcript.
func event(first byte, payload []byte) string {
	name := opcodes[first&0xf]
	if name == "" {
		name = fmt.Sprintf("opcode %d", first&0xf)
	}
	if first&final == 0 {
		name += "+"
	}
	for i, bit := range []byte{rsv1, rsv2, rsv3} {
		if first&bit != 0 {
			name += fmt.Sprintf(" rsv%d", i+1)
		}
	}
	switch {
	case first&0xf == closing && len(payload) >= 2:
		return fmt.Sprintf("%s %d %q", name, binary.BigEndian.Uint16(payload), payload[2:])
	case len(payload) > 40:
		return fmt.Sprintf("%s %d bytes, CRC %08x", name, len(payload), crc32.ChecksumIEEE(payload))
	}
	return fmt.Sprintf("%s %q", name, payload)
}

// A connection is one end of a WebSocket connection after the handshake.
type connection interface {
	io.ReadWriteCloser
	CloseWrite() error // sends FIN
	Reset() error      // sends RST
}

// caseTime bounds the duration of a case.
const caseTime = 10 * time.Second

// A peer runs the steps of one end of a WebSocket connection and records a transcript of
// the frames that it receives.
type peer struct {
	connection
	client  bool   // the peer sends masked frames
	context bool   // the other end compresses with context takeover
	window  []byte // decompressed bytes, for context takeover

	mu       sync.Mutex
	events   []string
	received chan struct{} // contains an element after a new event
}

// A step is one action of a peer.
type step func(p *peer) error

// send sends encoded bytes.
func send(b []byte) step {
	return func(p *peer) error {
		_, err := p.Write(b)
		return err
	}
}

// frames sends frames. parts contains the first byte and the payload of each frame.
func frames(parts ...any) step {
	return func(p *peer) error {
		var b []byte
		for i := 0; i < len(parts); i += 2 {
			var payload []byte
			switch v := parts[i+1].(type) {
			case string:
				payload = []byte(v)
			case []byte:
				payload = v
			}
			b = append(b, frame(parts[i].(byte), payload, p.client)...)
		}
		return send(b)(p)
	}
}

// receive waits until the transcript contains n frames.
func receive(n int) step {
	return func(p *peer) error {
		deadline := time.After(caseTime)
		for {
			p.mu.Lock()
			have := len(p.events)
			p.mu.Unlock()
			if have >= n {
				return nil
			}
			select {
			case <-p.received:
			case <-deadline:
				return fmt.Errorf("got %d frames after %v, want %d", have, caseTime, n)
			}
		}
	}
}

func finish(p *peer) error { return p.CloseWrite() }
func reset(p *peer) error  { return p.Reset() }

// play runs the steps, waits up to caseTime for the other side to end the connection, and then
// closes the connection. It returns the transcript, which ends with the event for the end of
// the connection.
func (p *peer) play(r io.Reader, steps []step) []string {
	p.received = make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.read(r)
	}()
	failure := ""
	for _, s := range steps {
		if err := s(p); err != nil {
			failure = "step: " + err.Error()
			break
		}
	}
	select {
	case <-ended:
	case <-time.After(caseTime):
		p.Close()
		<-ended
		p.events = append(p.events, "no end")
	}
	p.Close()
	if failure != "" {
		p.events = append(p.events, failure)
	}
	return p.events
}

// record appends an event to the transcript.
func (p *peer) record(e string) {
	p.mu.Lock()
	p.events = append(p.events, e)
	p.mu.Unlock()
	select {
	case p.received <- struct{}{}:
	default:
	}
}

// read records frames until the connection ends.
func (p *peer) read(r io.Reader) {
	for {
		first, payload, masked, err := readFrame(r)
		if err != nil {
			p.record(describeEnd(err))
			return
		}
		if first&rsv1 != 0 && first&0xf != closing {
			payload = p.inflate(payload)
		}
		e := event(first, payload)
		if masked == p.client {
			e += map[bool]string{true: ", masked", false: ", not masked"}[masked]
		}
		p.record(e)
	}
}

// describeEnd returns the event for the end of a connection.
func describeEnd(err error) string {
	switch {
	case errors.Is(err, io.EOF):
		return "end"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, net.ErrClosed):
		return "closed"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "end inside a frame"
	}
	return "error: " + err.Error()
}

// maxFrame is the maximum length of a payload in bytes.
const maxFrame = 16 << 20

// readFrame reads one frame. The payload is not masked.
func readFrame(r io.Reader) (first byte, payload []byte, masked bool, err error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, false, err
	}
	size := uint64(head[1] & 0x7f)
	if size >= 126 {
		long := make([]byte, map[uint64]int{126: 2, 127: 8}[size])
		if _, err := io.ReadFull(r, long); err != nil {
			return 0, nil, false, cut(err)
		}
		size = 0
		for _, b := range long {
			size = size<<8 | uint64(b)
		}
	}
	if size > maxFrame {
		return 0, nil, false, fmt.Errorf("frame of %d bytes", size)
	}
	masked = head[1]&0x80 != 0
	var key [4]byte
	if masked {
		if _, err := io.ReadFull(r, key[:]); err != nil {
			return 0, nil, false, cut(err)
		}
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, false, cut(err)
	}
	for i := range payload {
		payload[i] ^= key[i%4]
	}
	return head[0], payload, masked, nil
}

// cut returns the error for input that ends inside a frame.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// flateTail is the end of a flushed block that a compressed message does not contain
// (RFC 7692, section 7.2.1). flateEnd is an empty final block.
const (
	flateTail = "\x00\x00\xff\xff"
	flateEnd  = "\x01\x00\x00\xff\xff"
)

// deflater returns a function that compresses messages with context takeover.
func deflater() func(message []byte) []byte {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.DefaultCompression) // ignore the error, because the level is valid
	return func(message []byte) []byte {
		b.Reset()
		w.Write(message) // a bytes.Buffer returns no error
		w.Flush()
		return []byte(strings.TrimSuffix(b.String(), flateTail))
	}
}

// inflate returns the content of a compressed message of one frame.
func (p *peer) inflate(payload []byte) []byte {
	r := flate.NewReaderDict(io.MultiReader(bytes.NewReader(payload), strings.NewReader(flateTail+flateEnd)), p.window)
	message, err := io.ReadAll(r)
	if err != nil {
		return []byte("inflate: " + err.Error())
	}
	if p.context {
		p.window = append(p.window, message...)
		p.window = p.window[max(0, len(p.window)-32<<10):]
	}
	return message
}
