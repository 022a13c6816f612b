package tracing

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/export"
)

// Neither a collector that keeps an export waiting nor one that makes it fail delays the
// end of the process. What else a collector can do ends within its export's time
// (package export).
func TestCloseIsOnTimeWhateverTheCollectorDoes(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"no answer": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"a reset":   func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) },
	} {
		for _, protocol := range []export.Protocol{export.Zipkin, export.OTLP, export.OTLPJSON, export.OTLPGRPC} {
			t.Run(string(protocol)+", "+name, func(t *testing.T) {
				closeOnTime(t, protocol, "http://"+serving(t, serve))
			})
		}
	}
}

func closeOnTime(t *testing.T, protocol export.Protocol, endpoint string) {
	t.Helper()
	tracer, err := New(Options{Target: export.Target{Protocol: protocol, Endpoint: endpoint}, Sampling: always})
	if err != nil {
		t.Fatal(err)
	}
	for range maxQueued / 2 {
		finish(tracer.Begin(carrying(http.Header{})), get("/"))
	}
	const patience, most = 100 * time.Millisecond, 5 * time.Second // half of an export's
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	_ = tracer.Close(ctx) // the spans may be lost
	if took := time.Since(began); took > most {
		t.Errorf("Close: got %v, want %v", took, patience)
	}
	if got := tracer.export.sent.Load() + tracer.Dropped(); got != maxQueued {
		t.Errorf("got %d spans sent or dropped, want %d", got, maxQueued)
	}
}

// serving serves each connection to an address, and closes it then.
func serving(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c) // the exporter makes one at a time
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}
