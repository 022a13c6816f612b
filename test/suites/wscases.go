//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/coder/websocket"
)

// acceptKey returns the value of Sec-WebSocket-Accept (RFC 6455, section 4.2.2).
func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// A wsCase is one WebSocket case. It consists of the handshake, the steps of the client, and
// the expected transcripts.
type wsCase struct {
	name      string
	only      transport                                   // transport that the case requires; "" means any transport
	library   bool                                        // the case requires the handshake of HTTP/1.1
	query     string                                      // query of the echo server
	protocols string                                      // Sec-WebSocket-Protocol of the request
	offer     string                                      // Sec-WebSocket-Extensions of the request
	change    func(*http.Request)                         // modifies the handshake request; may be nil
	client    []step                                      // steps of the client
	app       []step                                      // steps of the application; nil means the echo server
	want      []string                                    // transcript of the client
	wantApp   []string                                    // transcript of the application with steps
	custom    func(ctx context.Context, t wsTarget) error // runs the case instead of the other fields; may be nil
}

// wsCases returns all WebSocket cases.
func wsCases() []wsCase {
	var all []wsCase
	for _, group := range [][]wsCase{
		handshakeCases(), echoCases(), fragmentCases(), controlCases(), closeCases(), errorCases(), endCases(), compressionCases(), libraryCases(),
	} {
		all = append(all, group...)
	}
	return all
}

// content returns n bytes of text that repeats after a prime number of bytes.
func content(n int) []byte {
	return bytes.Repeat([]byte("The quick brown fox jumps over the lazy dog, and 0123456789"), n/59+1)[:n]
}

// closed contains the last events that a client records after a closing handshake with the echo
// server.
var closed = []string{event(final|closing, closeBody(1000, "")), "end"}

// transcript returns the given events followed by the events in closed.
func transcript(events ...string) []string { return append(events, closed...) }

func handshakeCases() []wsCase {
	leave := []step{frames(final|closing, closeBody(1000, ""))}
	return []wsCase{
		{name: "handshake", client: leave, want: transcript("open")},
		{name: "subprotocol that the server prefers", protocols: "superchat, chat", client: leave, want: transcript("open, chat")},
		{name: "known subprotocol after unknown subprotocols", protocols: "mqtt, v2.chat, chat", client: leave, want: transcript("open, chat")},
		{name: "unknown subprotocol", protocols: "mqtt", client: leave, want: transcript("open")},
		{name: "handshake that the application rejects with 403", query: "status=403", want: []string{"403"}},
		{name: "handshake without a key", library: true, want: []string{"400"},
			change: func(r *http.Request) { r.Header.Del("Sec-WebSocket-Key") }},
		{name: "handshake of version 8", library: true, want: []string{"400"},
			change: func(r *http.Request) { r.Header.Set("Sec-WebSocket-Version", "8") }},
		{name: "handshake with names in lower case", library: true, client: leave, want: transcript("open"),
			change: func(r *http.Request) {
				r.Header["connection"], r.Header["Connection"] = []string{"keep-alive, upgrade"}, nil
			}},
		{name: "GET without Upgrade", library: true, want: []string{"426"},
			change: func(r *http.Request) { r.Header.Del("Upgrade"); r.Header.Del("Connection") }},
		{name: "frames in the same segment as the 101 response",
			app:     []step{frames(final|text, "early", final|closing, closeBody(1000, "")), receive(1), finish},
			client:  []step{receive(2), frames(final|closing, closeBody(1000, ""))},
			want:    []string{"open", `text "early"`, `close 1000 ""`, "end"},
			wantApp: []string{`close 1000 ""`, "end"}},
	}
}

func echoCases() []wsCase {
	var all []wsCase
	for _, kind := range []byte{text, binaryData} {
		for _, n := range []int{0, 1, 125, 126, 127, 128, 65535, 65536, 1 << 20} {
			all = append(all, wsCase{
				name:   fmt.Sprintf("echo of %s, %d bytes", opcodes[kind], n),
				client: []step{frames(final|kind, content(n), final|closing, closeBody(1000, ""))},
				want:   transcript("open", event(final|kind, content(n))),
			})
		}
	}
	many := wsCase{name: "echo of 500 messages without waiting", want: []string{"open"}}
	for i := range 500 {
		message := fmt.Appendf(nil, "message %d", i)
		many.client = append(many.client, frames(final|text, message))
		many.want = append(many.want, event(final|text, message))
	}
	many.client = append(many.client, frames(final|closing, closeBody(1000, "")))
	many.want = append(many.want, closed...)

	octets := wsCase{name: "echo of a message that is sent in segments of one byte", want: transcript("open", `text "octets"`)}
	for _, b := range append(frame(final|text, []byte("octets"), true), frame(final|closing, closeBody(1000, ""), true)...) {
		octets.client = append(octets.client, send([]byte{b}))
	}
	return append(all, many, octets)
}

func fragmentCases() []wsCase {
	leave := closeBody(1000, "")
	relay := func(name string, parts ...any) wsCase {
		c := wsCase{name: name, want: []string{"open", `close 1000 ""`, "end"}}
		for i := 0; i < len(parts); i += 2 {
			payload, _ := parts[i+1].([]byte)
			c.wantApp = append(c.wantApp, event(parts[i].(byte), payload))
		}
		c.app = []step{receive(len(parts)/2 + 1), frames(final|closing, leave), finish}
		c.client = []step{frames(append(parts, final|closing, leave)...)}
		c.wantApp = append(c.wantApp, `close 1000 ""`, "end")
		return c
	}
	return []wsCase{
		{name: "echo of three fragments", want: transcript("open", `text "one two three"`),
			client: []step{frames(text, "one ", continuation, "two ", final|continuation, "three", final|closing, leave)}},
		{name: "echo of fragments with empty fragments", want: transcript("open", `text "ab"`),
			client: []step{frames(text, "", continuation, "a", continuation, "", continuation, "b", final|continuation, "", final|closing, leave)}},
		{name: "echo of fragments and a ping", want: transcript("open", `pong "alive"`, `text "one two"`),
			client: []step{frames(text, "one ", final|ping, "alive", final|continuation, "two", final|closing, leave)}},
		{name: "echo of a character that is split into two fragments", want: transcript("open", `text "é"`),
			client: []step{frames(text, "\xc3", final|continuation, "\xa9", final|closing, leave)}},
		relay("fragment boundaries are preserved", binaryData, content(10), continuation, content(70000), continuation, content(0), final|continuation, content(1)),
		relay("fragment boundaries are preserved with a ping and a pong", text, content(3), final|ping, content(4), final|pong, content(5), final|continuation, content(6)),
	}
}

func controlCases() []wsCase {
	leave := closeBody(1000, "")
	return []wsCase{
		{name: "ping without payload", want: transcript("open", `pong ""`), client: []step{frames(final|ping, "", final|closing, leave)}},
		{name: "ping with 125 bytes", want: transcript("open", event(final|pong, content(125))),
			client: []step{frames(final|ping, content(125), final|closing, leave)}},
		{name: "ten pings", client: []step{
			frames(final|ping, "0", final|ping, "1", final|ping, "2", final|ping, "3", final|ping, "4"),
			frames(final|ping, "5", final|ping, "6", final|ping, "7", final|ping, "8", final|ping, "9"), receive(10), frames(final|closing, leave)},
			want: transcript("open", `pong "0"`, `pong "1"`, `pong "2"`, `pong "3"`, `pong "4"`, `pong "5"`, `pong "6"`, `pong "7"`, `pong "8"`, `pong "9"`)},
		{name: "pong without a ping", want: transcript("open"), client: []step{frames(final|pong, "unexpected", final|closing, leave)}},
		{name: "ping of the application",
			app:    []step{frames(final|ping, "alive"), receive(1), frames(final|closing, leave), receive(2), finish},
			client: []step{receive(1), frames(final|pong, "alive"), receive(2), frames(final|closing, leave)},
			want:   []string{"open", `ping "alive"`, `close 1000 ""`, "end"}, wantApp: []string{`pong "alive"`, `close 1000 ""`, "end"}},
	}
}

func closeCases() []wsCase {
	var all []wsCase
	add := func(name string, body []byte) {
		e := event(final|closing, body)
		all = append(all,
			wsCase{name: name + ", from the client", app: []step{receive(1), frames(final|closing, body), finish},
				client: []step{frames(final|closing, body)}, want: []string{"open", e, "end"}, wantApp: []string{e, "end"}},
			wsCase{name: name + ", from the application", app: []step{frames(final|closing, body), receive(1), finish},
				client: []step{receive(1), frames(final|closing, body)}, want: []string{"open", e, "end"}, wantApp: []string{e, "end"}})
	}
	for _, code := range []uint16{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999} {
		add(fmt.Sprintf("close with code %d", code), closeBody(code, ""))
	}
	add("close with a reason of 123 bytes", closeBody(1000, string(content(123))))
	add("close without a code", nil)
	add("close with the reserved code 1005", closeBody(1005, ""))
	add("close with the unknown code 65535", closeBody(65535, ""))
	add("close with a payload that contains only one byte", []byte{3})
	return all
}

// errorCases returns the cases with violations of the protocol. A proxy forwards the
// frames, and the application rejects them.
func errorCases() []wsCase {
	rejected := func(name, reason string, b []byte) wsCase {
		return wsCase{name: name + " is rejected by the application", client: []step{send(b)}, want: []string{"open", reason, "end"}}
	}
	forwarded := func(name string, first byte, payload string) wsCase {
		e := event(first, []byte(payload))
		return wsCase{name: name + " is forwarded in both directions",
			app:    []step{receive(1), frames(first, payload), receive(2), finish},
			client: []step{frames(first, payload), receive(1), frames(final|closing, closeBody(1002, ""))},
			want:   []string{"open", e, "end"}, wantApp: []string{e, `close 1002 ""`, "end"}}
	}
	return []wsCase{
		{name: "unmasked frame is rejected by the application", client: []step{send(frame(final|text, []byte("no mask"), false))}, want: []string{"open", "end"}},
		rejected("reserved bit 2", `close 1002 "received header with unexpected rsv bits set: false:true:false"`, frame(final|rsv2|text, []byte("x"), true)),
		rejected("reserved opcode", `close 1002 "received unknown opcode opcode(3)"`, frame(final|3, []byte("x"), true)),
		rejected("ping of 126 bytes", `close 1002 "received control frame payload with invalid length: 126"`, frame(final|ping, content(126), true)),
		rejected("fragmented ping", `close 1002 "received fragmented control frame"`, frame(ping, []byte("x"), true)),
		rejected("continuation frame without a preceding fragment", `close 1002 "received continuation frame without text or binary frame"`, frame(final|continuation, []byte("x"), true)),
		forwarded("invalid UTF-8", final|text, "\xc3\x28\xff"),
		forwarded("surrogate in UTF-8", final|text, "\xed\xa0\x80"),
		forwarded("reserved bits 2 and 3", final|rsv2|rsv3|text, "reserved"),
		forwarded("reserved opcode 11", final|0xb, "reserved"),
		{name: "masked frame of the application", app: []step{send(frame(final|text, []byte("mask"), true)), receive(1), finish},
			client: []step{receive(1), frames(final|closing, closeBody(1002, ""))},
			want:   []string{"open", `text "mask", masked`, "end"}, wantApp: []string{`close 1002 ""`, "end"}},
		{name: "unmasked frame of the client", app: []step{receive(1), finish}, client: []step{send(frame(final|text, []byte("no mask"), false))},
			want: []string{"open", "end"}, wantApp: []string{`text "no mask", not masked`, "end"}},
	}
}

// endCases returns the cases that end a connection without a closing handshake.
func endCases() []wsCase {
	return []wsCase{
		{name: "application ends the connection without a close frame", app: []step{frames(final|text, "last"), finish},
			want: []string{"open", `text "last"`, "end"}, wantApp: []string{"end"}},
		{name: "application ends the connection inside a frame", app: []step{send(frame(final|text, []byte("incomplete"), false)[:5]), finish},
			want: []string{"open", "end inside a frame"}, wantApp: []string{"end"}},
		{name: "client ends the connection inside a frame", app: []step{receive(1), finish}, client: []step{send(frame(final|text, []byte("incomplete"), true)[:9]), finish},
			want: []string{"open", "end"}, wantApp: []string{"end inside a frame"}},
		{name: "client closes its side and receives a response", only: overTCP,
			app: []step{receive(2), frames(final|text, "response", final|closing, closeBody(1001, "")), finish}, client: []step{frames(final|text, "request"), finish},
			want: []string{"open", `text "response"`, `close 1001 ""`, "end"}, wantApp: []string{`text "request"`, "end"}},
		{name: "application closes its side and receives a response", only: overTCP,
			app: []step{frames(final|text, "request"), finish}, client: []step{receive(2), frames(final|text, "response")},
			want: []string{"open", `text "request"`, "end"}, wantApp: []string{`text "response"`, "end"}},
		{name: "RST of the application reaches the client", only: overTCP,
			app: []step{frames(final|text, "before"), receive(1), reset}, client: []step{receive(1), frames(final|text, "received")},
			want: []string{"open", `text "before"`, "reset"}, wantApp: []string{`text "received"`, "closed"}},
		{name: "RST of the client ends the connection to the application", only: overTCP,
			app: []step{receive(1), frames(final|text, "response")}, client: []step{frames(final|text, "received"), receive(1), reset},
			want: []string{"open", `text "response"`, "closed"}, wantApp: []string{`text "received"`, "reset"}},
	}
}

func compressionCases() []wsCase {
	leave := closeBody(1000, "")
	const (
		offer       = "permessage-deflate"
		noContext   = "permessage-deflate; client_no_context_takeover; server_no_context_takeover"
		withoutBoth = "open, " + noContext
	)
	compressed := func(message string) []byte { return deflater()([]byte(message)) }
	shared := deflater()
	first, second := shared(content(200)), shared(content(200))
	long := content(1 << 20)
	return []wsCase{
		{name: "compression with context takeover", query: "compression=context", offer: offer,
			client: []step{frames(final|rsv1|text, first, final|rsv1|text, second, final|closing, leave)},
			want:   transcript("open, "+offer, event(final|rsv1|text, content(200)), event(final|rsv1|text, content(200)))},
		{name: "compression without context takeover", query: "compression=nocontext", offer: noContext,
			client: []step{frames(final|rsv1|text, compressed("one"), final|rsv1|text, compressed("one"), final|closing, leave)},
			want:   transcript(withoutBoth, `text rsv1 "one"`, `text rsv1 "one"`)},
		{name: "compression that the server declines", offer: offer, client: []step{frames(final|text, "plain", final|closing, leave)},
			want: transcript("open", `text "plain"`)},
		{name: "compression of 1 MB", query: "compression=nocontext", offer: noContext,
			client: []step{frames(final|rsv1|binaryData, deflater()(long)), receive(1), frames(final|closing, leave)},
			want:   transcript(withoutBoth, event(final|rsv1|binaryData, long))},
		{name: "compressed fragments and a ping", query: "compression=nocontext", offer: noContext,
			client: []step{frames(rsv1|text, compressed("fragments")[:4], final|ping, "alive", final|continuation, compressed("fragments")[4:], final|closing, leave)},
			want:   transcript(withoutBoth, `pong "alive"`, `text rsv1 "fragments"`)},
		{name: "uncompressed message after a compressed message", query: "compression=nocontext", offer: noContext,
			client: []step{frames(final|rsv1|text, compressed("one"), final|text, "two", final|closing, leave)},
			want:   transcript(withoutBoth, `text rsv1 "one"`, `text rsv1 "two"`)},
		{name: "compressed bytes are preserved",
			app: []step{receive(2), frames(final|rsv1|binaryData, compressed("down"), final|closing, leave), finish}, offer: offer,
			client: []step{frames(final|rsv1|binaryData, compressed("up"), final|closing, leave)},
			want:   []string{"open", `binary rsv1 "down"`, `close 1000 ""`, "end"}, wantApp: []string{`binary rsv1 "up"`, `close 1000 ""`, "end"}},
	}
}

// libraryCases returns the cases that use the library on both sides.
func libraryCases() []wsCase {
	var all []wsCase
	for name, mode := range compressionModes {
		if name == "" {
			name = "none"
		}
		all = append(all, wsCase{name: "library client, compression " + name, library: true,
			custom: func(ctx context.Context, t wsTarget) error { return t.talk(ctx, "compression="+name, mode, 100) }})
	}
	return append(all, wsCase{name: "40 library clients at the same time", library: true, custom: func(ctx context.Context, t wsTarget) error {
		errs := make([]error, 40)
		var clients sync.WaitGroup
		for i := range errs {
			clients.Go(func() { errs[i] = t.talk(ctx, "compression=nocontext", websocket.CompressionNoContextTakeover, 50) })
		}
		clients.Wait()
		return errors.Join(errs...)
	}})
}

// talk sends n messages of increasing size with the library, and checks the echo.
func (t wsTarget) talk(ctx context.Context, query string, mode websocket.CompressionMode, n int) error {
	scheme := "ws://"
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: t.config}}
	if t.config != nil {
		scheme = "wss://"
	}
	defer client.CloseIdleConnections()
	c, w, err := websocket.Dial(ctx, scheme+t.address+"/echo?"+query, &websocket.DialOptions{HTTPClient: client, CompressionMode: mode, CompressionThreshold: 1})
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer c.CloseNow()
	if compresses := w.Header.Get("Sec-WebSocket-Extensions") != ""; compresses != (mode != websocket.CompressionDisabled) {
		return fmt.Errorf("got compression %v, want %v", compresses, !compresses)
	}
	c.SetReadLimit(maxFrame)
	for i := range n {
		want := content(i * i * 10)
		if err := c.Write(ctx, websocket.MessageText, want); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		_, got, err := c.Read(ctx)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("message %d: the echo of %d bytes is different from the message of %d bytes", i, len(got), len(want))
		}
	}
	return c.Close(websocket.StatusNormalClosure, "")
}
