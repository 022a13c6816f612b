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

// BenchmarkTry measures one attempt. While an app starts, up to 100 attempts per second are refused.
func BenchmarkTry(b *testing.B) {
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer app.Close()
	_, portText, _ := net.SplitHostPort(app.Listener.Addr().String())
	port, _ := strconv.Atoi(portText)
	none := refusedPort(b)

	attempts := map[string]attemptFunc{}
	attempts["tcp refused"], _ = newTCPAttempt(&TCPSocketAction{Port: Port{Number: int32(none)}, Host: "127.0.0.1"})
	attempts["tcp refused twice"], _ = newTCPAttempt(&TCPSocketAction{Port: Port{Number: int32(none)}})
	attempts["http refused twice"], _ = newHTTPAttempt(&HTTPGetAction{Port: Port{Number: int32(none)}}, false)
	attempts["grpc refused twice"], _ = newGRPCAttempt(&GRPCAction{Port: int32(none)})
	attempts["tcp passes"], _ = newTCPAttempt(&TCPSocketAction{Port: Port{Number: int32(port)}})
	attempts["http passes"], _ = newHTTPAttempt(&HTTPGetAction{Port: Port{Number: int32(port)}}, false)
	for name, attempt := range attempts {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				_ = attempt(ctx)
				cancel()
			}
		})
	}
}

// BenchmarkAppStartDetection measures the time between the start of an app and the first successful probe. The app
// starts at a random time within 5 s. The caller has a timeout of 300 ms, which is the timeout of the activator.
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

// noticed starts an app and returns the time until the first successful probe.
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
