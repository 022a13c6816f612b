//go:build linux

package main

import "fmt"

// A program is a path or a name with arguments. Each element is a template that can contain fields
// of parameters.
type program []string

// A row is one line of the table.
type row struct {
	name     string
	app      program
	loads    []program // clients that run at the same time
	h2       bool      // the application supports only HTTP/2
	tls      bool      // the clients use TLS
	second   bool      // without a proxy, the clients use the second address of the application
	nginx    bool      // compare with nginx instead of HAProxy
	requests int       // minimum number of requests, unless -seconds is given; 0 means fewRequests
	seconds  int       // fixed duration; 0 means the duration that -seconds sets
	settings []string  // settings of the sidecar, as NAME=value
	quick    bool      // the row is part of -quick
	hour     bool      // the row is used only with -hour
}

// The minimum number of requests of a row without a fixed duration: manyRequests for small
// messages, hugeRequests for messages of 100 MB (2 GB in total), and fewRequests for all other
// rows.
const (
	manyRequests = 100_000
	fewRequests  = 200
	hugeRequests = 20
)

// goApp is an application of this program.
func goApp(name string, args ...string) program {
	return append(program{"{{.Self}}", "app", name, "-listen={{.App}}"}, args...)
}

// goLoad is a client load of this program.
func goLoad(name string, args ...string) program {
	return append(program{"{{.Self}}", "client", name, "-target={{.Target}}", "-ca={{.CA}}",
		"-seconds={{.Seconds}}", "-requests={{.Requests}}"}, args...)
}

// toolLoad runs a load generator repeatedly. The generator sends a fixed number of requests in each
// run.
func toolLoad(command ...string) program {
	return append(append(goLoad("repeat"), "--"), command...)
}

// h2load runs h2load, which sends HTTP/2 requests to a path.
func h2load(path string, args ...string) program {
	c := append([]string{"h2load", "-t1", "-n{{.Count}}"}, args...)
	return toolLoad(append(c, "{{.Scheme}}://{{.Target}}"+path)...)
}

// node runs a script in the directory peers with Node.js.
func node(script string, args ...string) program {
	return append(program{"node", "{{.Peers}}/" + script}, args...)
}

// httpApp is the net/http application, for plain text and TLS.
func httpApp(args ...string) program {
	return goApp("http", append([]string{"-tls={{.AppTLS}}", "-cert={{.Cert}}", "-key={{.Key}}"}, args...)...)
}

// rows returns the table.
func rows() []row {
	var all []row
	for _, part := range [][]row{grpcRows(), boundaryRows(), cancellationRows(),
		messageRows(), limitRows(), languageRows(), gridRows(), bodyRows(), serverRows(), clientRows(), chromiumRows(), hourRows()} {
		all = append(all, part...)
	}
	return all
}

// grpcRows returns the rows with grpc-go on both sides.
func grpcRows() []row {
	app := goApp("grpc")
	return []row{
		{name: "grpc-go unary, 32 x 4", app: app, h2: true, requests: manyRequests, quick: true,
			loads: []program{goLoad("grpc-unary", "-conns=32", "-streams=4")}},
		{name: "grpc-go bidirectional, 8 streams", app: app, h2: true, requests: manyRequests, quick: true,
			loads: []program{goLoad("grpc-chat", "-streams=8")}},
		{name: "grpc-go server ends streams first", app: app, h2: true, requests: manyRequests, quick: true,
			loads: []program{goLoad("grpc-early", "-conns=2", "-streams=16", "-count=5")}},
		{name: "grpc-go unary, 1 x 500", app: app, h2: true, requests: manyRequests, quick: true,
			loads: []program{goLoad("grpc-unary", "-streams=500")}},
		{name: "grpc-go deadlines of 5 ms", app: app, h2: true, requests: manyRequests, quick: true,
			loads: []program{goLoad("grpc-unary", "-conns=4", "-streams=16", "-deadline=5ms", "-share=3", "-delay=100ms")}},
		{name: "grpc-go deadlines of 20 ms, handlers of 20 ms", app: app, h2: true, quick: true,
			loads: []program{goLoad("grpc-unary", "-conns=4", "-streams=16", "-deadline=20ms", "-delay=20ms", "-path=ignore")}},
		{name: "grpc-go idle streams, a call every 11 s", app: app, h2: true, seconds: 50,
			loads: []program{goLoad("grpc-subscribe", "-streams=5")}},
		{name: "grpc-go idle streams, a new stream every 11 s", app: app, h2: true, seconds: 50,
			loads: []program{goLoad("grpc-subscribe", "-streams=5", "-path=silent")}},
		{name: "grpc-go client, net/http handler panics", app: httpApp(), h2: true,
			loads: []program{goLoad("grpc-panic", "-streams=4", "-path=retry")}},
	}
}

// boundaryRows returns the rows at the limits of the protocol.
func boundaryRows() []row {
	return []row{
		// The client reads a response after the last frame arrives, so it sends WINDOW_UPDATE for
		// streams that are already closed.
		{name: "net/http client, 1 MB responses on one connection", app: httpApp(), h2: true, quick: true,
			loads: []program{goLoad("http-get", "-streams=64", "-late=300ms", "-path=/?size=1000000&seed=SEED")}},
		{name: "h2load 1 x 250", app: httpApp(), h2: true, requests: manyRequests, quick: true,
			loads: []program{h2load("/?size=100", "-c1", "-m250")}},
		{name: "h2load 1 x 250, TLS", app: httpApp(), h2: true, tls: true, requests: manyRequests, quick: true,
			loads: []program{h2load("/?size=100", "-c1", "-m250")}},
	}
}

// cancellationRows returns the rows with clients that cancel.
func cancellationRows() []row {
	app := goApp("grpc")
	canceled := func(rate int, cancel string) program {
		return goLoad("grpc-unary", "-conns=2", fmt.Sprintf("-rate=%d", rate), "-cancel="+cancel, "-delay=50ms", "-requests=0")
	}
	normal := goLoad("grpc-unary", "-conns=2", "-streams=4")
	all := []row{
		{name: "grpc-go, 10 streams per connection, 1000 cancellations/s", app: goApp("grpc", "-streams=10"), h2: true, quick: true,
			loads: []program{canceled(1000, "5ms"), goLoad("grpc-unary", "-conns=4", "-streams=4", "-delay=2ms")}},
		{name: "grpc-go, 1000 calls/s, all canceled", app: app, h2: true, loads: []program{canceled(1000, "5ms")}},
		{name: "net/http handlers ignore 200 cancellations/s", app: httpApp(), h2: true, seconds: 25,
			loads: []program{
				goLoad("http-get", "-conns=8", "-rate=200", "-cancel=5ms", "-path=/?size=10&ignore&delay=10s", "-requests=0"),
				goLoad("http-get", "-streams=4", "-path=/?size=1000&seed=SEED"),
			}},
		{name: "Node http2 server, 100 cancellations/s", app: node("http2-server.js", "{{.AppPort}}"), h2: true, seconds: 30,
			loads: []program{
				goLoad("http-get", "-conns=8", "-rate=100", "-cancel=5ms", "-path=/?size=10&delay=50", "-requests=0"),
				goLoad("http-get", "-streams=4", "-path=/?size=1000&delay=1"),
			}},
	}
	for _, rate := range []int{200, 1000, 4000} {
		all = append(all, row{name: fmt.Sprintf("grpc-go, %d cancellations/s", rate), app: app, h2: true,
			loads: []program{canceled(rate, "5ms"), normal}})
	}
	return all
}
