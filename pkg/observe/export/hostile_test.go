package export

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// silent neither reads nor writes for longer than the timeout of an export, and then waits until
// the connection is closed.
func silent(c *harness.AppConn) {
	time.Sleep(5 * shortTimeout)
	c.Hang()
}

// says returns a function that sends text.
func says(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// h1 reads HTTP/1 requests and calls write for each response.
func h1(write func(io.Writer) error) func(*harness.AppConn) {
	return func(c *harness.AppConn) { answerEach(c.In, c, write) }
}

func answerEach(in *bufio.Reader, out io.Writer, write func(io.Writer) error) {
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if _, err = io.Copy(io.Discard, req.Body); err != nil || write(out) != nil {
			return
		}
	}
}

// pieces returns a function that writes the given strings and then repeats the last one endlessly.
func pieces(all ...string) func(io.Writer) error {
	last := bytes.Repeat([]byte(all[len(all)-1]), 1+(64<<10)/len(all[len(all)-1]))
	return func(w io.Writer) error {
		for _, s := range all[:len(all)-1] {
			if _, err := io.WriteString(w, s); err != nil {
				return err
			}
		}
		for {
			if _, err := w.Write(last); err != nil {
				return err
			}
		}
	}
}

// h2 serves HTTP/2 and calls write for each response. Its flow-control window is larger than any request.
func h2(write func(f *harness.Frames, stream uint32) error) func(*harness.AppConn) {
	return func(c *harness.AppConn) {
		if _, err := io.ReadFull(c.In, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := c.Frames()
		f.SetReuseFrames()
		const window = 1 << 30
		if f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}) != nil || f.WriteWindowUpdate(0, window) != nil {
			return
		}
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if !frame.IsAck() && f.WriteSettingsAck() != nil {
					return
				}
			case *http2.DataFrame:
				if frame.StreamEnded() && write(f, frame.StreamID) != nil {
					return
				}
			}
		}
	}
}

// forever returns a function that calls write until it fails.
func forever(write func(f *harness.Frames, stream uint32) error) func(*harness.Frames, uint32) error {
	return func(f *harness.Frames, stream uint32) error {
		for {
			if err := write(f, stream); err != nil {
				return err
			}
		}
	}
}

// block encodes header fields from alternating names and values.
func block(fields ...string) []byte { return harness.NewFrames(nil).Block(fields...) }

// shortTimeout is the timeout for exports to servers that never respond.
const shortTimeout = 50 * time.Millisecond

// A hostile describes a malicious collector.
type hostile struct {
	name     string
	exporter Protocol
	tls      bool
	mute     bool // the response never starts or never ends
	serve    func(*harness.AppConn)
}

func hostileHTTP1() []hostile {
	const head = "HTTP/1.1 200 OK\r\n"
	const chunked = head + "Transfer-Encoding: chunked\r\n\r\n"
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(make([]byte, 32<<20)) // compresses into memory
	_ = z.Close()
	return []hostile{
		{"a header of one long field", OTLP, false, false, h1(pieces(head, "X: ", "x"))},
		{"a header of long fields", OTLP, false, false, h1(pieces(head, "X: "+strings.Repeat("x", 8000)+"\r\n"))},
		{"a header of short fields", Zipkin, false, false, h1(pieces(head, "X:x\r\n"))},
		{"a header of blank lines", OTLPJSON, false, false, h1(pieces(head, "X: x\r\n", " \r\n"))},
		{"endless 1xx responses", OTLP, false, false, h1(pieces("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"))},
		{"endless body data", OTLP, false, false, h1(pieces(head+"\r\n", "x"))},
		{"endless chunk data", OTLPJSON, false, false, h1(pieces(chunked, "1\r\nx\r\n"))},
		{"endless body of an error response", Zipkin, false, false, h1(pieces("HTTP/1.1 503 Service Unavailable\r\n\r\n", "x"))},
		{"a compressed body of 32 MiB", OTLPJSON, false, false, h1(func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%sContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", head, packed.Len(), packed.Bytes())
			return err
		})},
		{"an endless trailer", OTLP, false, false, h1(pieces(chunked+"0\r\n", "X: x\r\n"))},
		{"an endless chunk extension", OTLP, false, false, h1(pieces(chunked+"1;", "x"))},
		{"endless responses", OTLP, false, false, h1(pieces("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))},
		{"redirects to itself", OTLP, false, false, h1(func(w io.Writer) error {
			_ = says("HTTP/1.1 307 Temporary Redirect\r\nLocation: /\r\nContent-Length: 0\r\n\r\n")(w)
			return io.EOF
		})},
		{"a reset", OTLP, false, false, func(c *harness.AppConn) { c.Reset() }},
		{"silence", OTLP, false, true, silent},
		{"no answer", Zipkin, false, true, (*harness.AppConn).Hang},
		{"silence instead of TLS", OTLP, true, true, silent},
	}
}

// fieldsOf returns n fields with the same value.
func fieldsOf(n int, value string) (fields []string) {
	for i := range n {
		fields = append(fields, fmt.Sprint("x", i), value)
	}
	return fields
}

func hostileHTTP2() []hostile {
	ok := block(":status", "200", "content-type", "application/grpc")
	long, short := fieldsOf(1300, strings.Repeat("v", 8000)), fieldsOf(200_000, "v")
	repeated := slices.Repeat([]string{"x", strings.Repeat("v", 4000)}, 50_000) // one byte for each field except the first
	blocks := func(end bool, all ...[]byte) func(*harness.AppConn) {
		return h2(func(f *harness.Frames, stream uint32) error {
			for i, b := range all {
				if err := f.WriteBlock(stream, end && i == len(all)-1, b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	withStatus := func(fields []string) []byte { return block(append([]string{":status", "200"}, fields...)...) }
	early, longBlock, piece := block(":status", "103", "link", strings.Repeat("v", 8000)), block(long...), make([]byte, 16<<10)
	ping := func(f *harness.Frames, _ uint32) error { return f.WritePing(false, [8]byte{}) }
	return []hostile{
		{"a header of long fields", OTLPGRPC, false, false, blocks(true, withStatus(long))},
		{"a header of short fields", OTLPGRPC, false, false, blocks(true, withStatus(short))},
		{"a header that is large after decoding", OTLPGRPC, false, false, blocks(true, withStatus(repeated))},
		{"trailers of long fields", OTLPGRPC, false, false, blocks(true, ok, longBlock)},
		{"endless 1xx responses", OTLPGRPC, false, false, h2(forever(func(f *harness.Frames, stream uint32) error { return f.WriteBlock(stream, false, early) }))},
		{"endless body data", OTLPGRPC, false, false, h2(func(f *harness.Frames, stream uint32) error {
			_ = f.WriteBlock(stream, false, ok)
			return forever(func(f *harness.Frames, stream uint32) error { return f.WriteData(stream, false, piece) })(f, stream)
		})},
		{"endless empty frames", OTLPGRPC, false, true, h2(func(f *harness.Frames, stream uint32) error {
			_ = f.WriteBlock(stream, false, ok)
			return forever(func(f *harness.Frames, stream uint32) error { return f.WriteData(stream, false, nil) })(f, stream)
		})},
		{"endless pings without a response", OTLPGRPC, false, true, h2(forever(ping))},
		{"response, then endless pings", OTLPGRPC, false, false, h2(func(f *harness.Frames, stream uint32) error {
			_ = fineHTTP2(f, stream)
			return forever(ping)(f, stream)
		})},
		{"endless SETTINGS", OTLPGRPC, false, true, h2(forever(func(f *harness.Frames, _ uint32) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		}))},
		{"immediate GOAWAY", OTLPGRPC, false, false, h2(func(f *harness.Frames, _ uint32) error {
			_ = f.WriteGoAway(0, http2.ErrCodeNo, nil)
			return io.EOF
		})},
		{"streams that are refused", OTLPGRPC, false, false, h2(func(f *harness.Frames, stream uint32) error {
			return f.WriteRSTStream(stream, http2.ErrCodeRefusedStream)
		})},
		{"silence", OTLPGRPC, false, true, silent},
		{"no answer", OTLPGRPC, false, true, (*harness.AppConn).Hang},
		{"silence instead of TLS", OTLPGRPC, true, true, silent},
		{"endless pings without reading", OTLPGRPC, false, true, func(c *harness.AppConn) {
			f := c.Frames()
			_ = f.WriteSettings()
			_ = forever(ping)(f, 0)
		}},
	}
}

// An export to a hostile collector uses little memory and retains none. The limit is as high as 4 MiB
// because parsing 64 KiB of short fields needs much more than 64 KiB.
func TestHostileCollectorMemoryIsBounded(t *testing.T) {
	const exports, mostMemory = 4, 4 << 20
	for version, all := range map[string][]hostile{"HTTP/1.1": hostileHTTP1(), "HTTP/2": hostileHTTP2()} {
		for _, h := range all {
			t.Run(version+", "+h.name, func(t *testing.T) {
				var open atomic.Int32 // connections that the exporter has not closed
				s := harness.NewApp(t, func(c *harness.AppConn) {
					open.Add(1)
					defer open.Add(-1)
					h.serve(c)
				})
				o := Target{Protocol: h.exporter, Endpoint: "http://" + s.Address(), Signal: Traces}
				if h.tls {
					o.Endpoint = "https://" + s.Address()
				}
				if h.mute {
					o.Timeout = shortTimeout
				}
				send, release, err := New(o)
				harness.NoError(t, err)
				defer release()
				body := make([]byte, 100<<10)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for range exports {
					_, err = send(context.Background(), body)
				}
				runtime.ReadMemStats(&after)
				each := (after.TotalAlloc - before.TotalAlloc) / exports
				t.Logf("%d KiB for an export: %v", each>>10, err)
				if each > mostMemory {
					t.Errorf("memory: got %d KiB for an export, want %d at most", each>>10, mostMemory>>10)
				}
				if h.mute && err == nil {
					t.Error("got no error from a collector that never responds, want one")
				}
				harness.Until(t, "all connections except one are closed", func() bool { return open.Load() <= 1 })
				release()
				harness.Until(t, "the last connection is closed", func() bool { return open.Load() == 0 })
			})
		}
	}
}

func TestExportErrorsAreTruncated(t *testing.T) {
	long := strings.Repeat("\x01", maxHead/2)
	for name, c := range map[string]hostile{
		"line without a status":  {exporter: OTLP, serve: h1(says(long + "\r\n\r\n"))},
		"a field without a name": {exporter: Zipkin, serve: h1(says("HTTP/1.1 200 OK\r\n:" + long + "\r\n\r\n"))},
		"a message of gRPC": {exporter: OTLPGRPC, serve: h2(func(f *harness.Frames, stream uint32) error {
			return f.WriteHead(stream, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "3", "grpc-message", strings.Repeat("x", maxHead/2))
		})},
	} {
		_, err := senderTo(t, c.exporter, harness.NewApp(t, c.serve))(t.Context(), nil)
		if err == nil || len(err.Error()) > MaxText+64 {
			t.Errorf("%s: got %.100q... of %d bytes, want an error of about %d at most", name, fmt.Sprint(err), len(fmt.Sprint(err)), MaxText)
		}
	}
}
