package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"
)

// refusedPort is a port of 127.0.0.1 on which nothing listens.
func refusedPort(t testing.TB) int { return refusedPorts(t, 1)[0] }

// refusedPorts are n of them, no two the same.
func refusedPorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // all at the end, so that none is given twice
		ports = append(ports, int(portOf(t, l.Addr())))
	}
	return ports
}

// BenchmarkTry is what one try costs; a refused one is made 100 times a second
// while an app starts.
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
