package probe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// refusedPort returns an unused port of 127.0.0.1.
func refusedPort(t testing.TB) int {
	t.Helper()
	ln := harness.Listen(t)
	defer ln.Close()
	return int(portOf(ln.Addr()))
}

// BenchmarkTry measures one attempt. While an app starts, there are 100 refused attempts per second.
func BenchmarkTry(b *testing.B) {
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer app.Close()
	_, portText, _ := net.SplitHostPort(app.Listener.Addr().String())
	port, _ := strconv.Atoi(portText)
	none := refusedPort(b)

	asks := map[string]ask{}
	asks["tcp refused"], _ = askTCP(&TCPSocketAction{Port: Port{Number: int32(none)}, Host: "127.0.0.1"})
	asks["tcp refused twice"], _ = askTCP(&TCPSocketAction{Port: Port{Number: int32(none)}})
	asks["http refused twice"], _ = askHTTP(&HTTPGetAction{Port: Port{Number: int32(none)}}, false)
	asks["grpc refused twice"], _ = askGRPC(&GRPCAction{Port: int32(none)})
	asks["tcp passes"], _ = askTCP(&TCPSocketAction{Port: Port{Number: int32(port)}})
	asks["http passes"], _ = askHTTP(&HTTPGetAction{Port: Port{Number: int32(port)}}, false)
	for name, ask := range asks {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				_ = ask(ctx)
				cancel()
			}
		})
	}
}

// BenchmarkAppStartDetection measures the time between the start of an app and the first successful probe. The app
// starts at a random time within 5 s. The caller has a timeout of 300 ms, like the activator.
func BenchmarkAppStartDetection(b *testing.B) {
	for name, probe := range map[string]string{"tcpSocket": `{"tcpSocket":{"port":%d}}`, "httpGet": `{"httpGet":{"port":%d}}`} {
		b.Run(name, func(b *testing.B) {
			var total time.Duration
			for b.Loop() {
				total += noticed(b, probe)
			}
			b.ReportMetric(float64(total.Milliseconds())/float64(b.N), "ms/detection")
		})
	}
}

// noticed returns the time between the start of an app and the first successful probe.
func noticed(b *testing.B, probe string) time.Duration {
	port := refusedPort(b)
	probes, errs := Parse(fmt.Sprintf(probe, port), false)
	if errs != nil {
		b.Fatal(errs)
	}
	p := New(probes, Options{})
	defer p.Stop(context.Background())
	opened := make(chan time.Time, 1)
	timer := time.AfterFunc(rand.N(5*time.Second), func() {
		ln := harness.ListenOn(b, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		opened <- time.Now()
		app := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		b.Cleanup(func() { _ = app.Close() })
		_ = app.Serve(ln)
	})
	defer timer.Stop()
	for {
		ctx, cancel := context.WithTimeout(b.Context(), 300*time.Millisecond)
		err := p.Ready(ctx)
		now := time.Now()
		cancel()
		if err == nil {
			return now.Sub(<-opened)
		}
	}
}
