package netconn_test

import (
	"crypto/tls"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// alertRecord is the record type of alerts (RFC 8446 section 5.1).
const alertRecord = 21

// The reader has no deadline, and incomplete input holds up to 16 KiB of memory.
func TestIncompleteRecordTimesOut(t *testing.T) {
	unfinished := append([]byte{keyUpdate, 0, 0xff, 0}, make([]byte, 1000)...)
	for name, input := range map[string]func(f *forger) []byte{
		"header":  func(f *forger) []byte { return f.record(contentRecord, []byte("hello"))[:3] },
		"content": func(f *forger) []byte { return f.record(contentRecord, []byte("hello"))[:10] },
		"second record": func(f *forger) []byte {
			return append(f.record(contentRecord, []byte("x")), f.record(contentRecord, []byte("hello"))[:10]...)
		},
		"alert":   func(f *forger) []byte { return f.record(alertRecord, []byte{1, 0})[:8] },
		"message": func(f *forger) []byte { return f.record(handshakeRecord, unfinished) },
	} {
		t.Run(name, func(t *testing.T) {
			bounds := bound.NewRecorder()
			server := recordingServer(0, bounds)
			server.SetRecordTime(soon)
			p, f := forgedOf(t, server)
			harness.NoError(t, p.link.SetReadDeadline(time.Time{}))
			_, err := p.wire.Write(input(f))
			harness.NoError(t, err)
			closed := make(chan struct{})
			go func() { defer close(closed); _, _ = io.Copy(io.Discard, p.link) }()
			harness.Receive(t, closed, "end of the connection")
			wantBounds(t, bounds, bound.TLSRecordTimeout)
		})
	}
}

func TestInvalidRecordIsRecorded(t *testing.T) {
	for name, test := range map[string]struct {
		sent []byte // bytes that the client sends after the handshake
		want string // error of the event; "" if no event is recorded
	}{
		"invalid MAC":       {append([]byte{23, 3, 3, 0, 30}, make([]byte, 30)...), "bad record MAC"},
		"plain HTTP":        {[]byte("GET / HTTP/1.1\r\n\r\n"), "received record with version"},
		"length":            {[]byte{23, 3, 3, 0xff, 0xff}, "oversized record"},
		"incomplete record": {[]byte{23, 3, 3, 0, 30, 1}, ""},
		"no data":           {nil, ""},
	} {
		for _, kind := range []string{"TLS 1.2", "TLS 1.3"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				bounds := bound.NewRecorder()
				p := newPairOf(t, kinds[kind], recordingServer(0, bounds))
				_, err := p.wire.Write(test.sent)
				harness.NoError(t, err)
				p.wire.Close()
				for range 2 {
					if _, err := p.link.Read(make([]byte, 10)); err == nil {
						t.Error("got no error, want an error of the read")
					}
				}
				states := bounds.States(time.Now())
				if test.want == "" {
					harness.Equal(t, len(states), 0, "recorded events")
					return
				}
				wantEvent(t, states, bound.TLSRecord, test.want)
			})
		}
	}
}

// An alert from the client ends the connection and is not recorded as a client error.
func TestAlertAfterHandshakeIsNotRecorded(t *testing.T) {
	bounds := bound.NewRecorder()
	p := newPairOf(t, kinds["TLS 1.3"], recordingServer(0, bounds))
	p.client.Close()
	if _, err := p.link.Read(make([]byte, 10)); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
	harness.Equal(t, len(bounds.States(time.Now())), 0, "recorded events")
}

// Each byte of the records arrives separately, as on a network with small packets.
func TestSlowRecordsSucceed(t *testing.T) {
	for name, config := range kinds {
		if config == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			bounds := bound.NewRecorder()
			p := newPairOf(t, config, recordingServer(0, bounds))
			p.wire.Conn = slow{p.wire.Conn}
			p.link.SetReadDeadline(time.Now().Add(harness.Patience))
			go p.client.Write(make([]byte, 4<<10))
			_, err := io.ReadFull(p.link, make([]byte, 4<<10))
			harness.NoError(t, err)
			wantBounds(t, bounds)
		})
	}
}

// After complete records, a connection has no timer and can be idle for any time.
func TestIdleConnectionHasNoRecordTimer(t *testing.T) {
	p, f, _ := recordingForger(t)
	replied := make(chan struct{})
	go func() {
		defer close(replied)
		_, _ = p.wire.Read(make([]byte, 1))
	}()
	_, err := p.wire.Write(f.record(contentRecord, []byte("x")))
	harness.NoError(t, err)
	harness.Until(t, "the content is read", func() bool {
		text, _ := tryRead(t, p.link)
		return text == "x"
	})
	_, err = p.wire.Write(f.record(handshakeRecord, []byte{keyUpdate, 0, 0, 1, updateRequested}))
	harness.NoError(t, err)
	f.update()
	harness.Until(t, "the reply to KeyUpdate", func() bool {
		if _, err := tryRead(t, p.link); !errors.Is(err, netconn.ErrAgain) {
			t.Fatalf("got %v, want ErrAgain", err)
		}
		select {
		case <-replied:
			return true
		default:
			return false
		}
	})
	if p.link.HasTimer() || p.link.Stalled() {
		t.Error("got a timer on an idle connection, want none")
	}
}

// The engine does not read while the application is slow. The timeout applies to the client only.
func TestRecordTimeoutIgnoresTimeWithoutRead(t *testing.T) {
	bounds := bound.NewRecorder()
	server := recordingServer(0, bounds)
	server.SetRecordTime(soon)
	p := newPairOf(t, &tls.Config{MinVersion: tls.VersionTLS13}, server)
	p.wire.holdBack()
	p.client.Write([]byte("hello"))
	p.wire.release(t, 10)
	harness.Until(t, "a part of the record is read", func() bool {
		_, _ = tryRead(t, p.link)
		return p.link.Stalled()
	})
	harness.Until(t, "the timer has expired", func() bool { return !p.link.HasTimer() })
	p.wire.release(t, len(p.wire.held))
	p.link.SetReadDeadline(time.Now().Add(harness.Patience))
	buf := make([]byte, 10)
	if n, err := p.link.Read(buf); string(buf[:n]) != "hello" || err != nil {
		t.Errorf("got %q, %v, want hello", buf[:n], err)
	}
	wantBounds(t, bounds)
}

func TestCloseStopsRecordTimer(t *testing.T) {
	for name, end := range map[string]func(*netconn.Conn) error{
		"Close": (*netconn.Conn).Close, "Cut": (*netconn.Conn).Cut, "Reset": (*netconn.Conn).Reset,
	} {
		t.Run(name, func(t *testing.T) {
			p, f, _ := recordingForger(t)
			_, err := p.wire.Write(f.record(contentRecord, []byte("hello"))[:10])
			harness.NoError(t, err)
			harness.Until(t, "a timer", func() bool {
				_, _ = tryRead(t, p.link)
				return p.link.HasTimer()
			})
			harness.NoError(t, end(p.link))
			if p.link.HasTimer() {
				t.Error("got a timer after the end, want none")
			}
		})
	}
}
