//go:build linux

package main

import (
	"fmt"
	"strings"
)

// python runs a Python script in the directory peers.
func python(script string, args ...string) program {
	return append(program{"/usr/bin/python3", "{{.Peers}}/" + script}, args...)
}

// nodeLoad runs a client script in the directory peers with Node.js.
func nodeLoad(script string, args ...string) program {
	return node(script, append([]string{"--target={{.Target}}", "--seconds={{.Seconds}}", "--requests={{.Requests}}"}, args...)...)
}

// grpcJava runs the grpc-java client. Java compiles the file when it starts.
func grpcJava(args ...string) program {
	var jars []string
	for _, name := range []string{
		"grpc-api", "grpc-context", "grpc-core", "grpc-netty", "guava", "perfmark-api", "netty-buffer", "netty-codec",
		"netty-codec-http", "netty-codec-http2", "netty-codec-socks", "netty-common", "netty-handler", "netty-handler-proxy",
		"netty-resolver", "netty-transport",
	} {
		jars = append(jars, "/usr/share/java/"+name+".jar")
	}
	return append(program{"java", "-Xmx1g", "-cp", strings.Join(jars, ":"), "{{.Peers}}/GrpcClient.java",
		"--target={{.Target}}", "--seconds={{.Seconds}}", "--requests={{.Requests}}"}, args...)
}

// messageRows returns the rows for grpc-go clients, with all types of calls and different sizes
// of messages.
func messageRows() []row {
	app := goApp("grpc")
	return []row{
		{name: "grpc-go unary, 1 x 4", app: app, h2: true, requests: manyRequests,
			loads: []program{goLoad("grpc-unary", "-streams=4")}},
		{name: "grpc-go messages of 16 KB", app: app, h2: true, requests: manyRequests,
			loads: []program{goLoad("grpc-unary", "-conns=4", "-streams=8", "-size=16000", "-reply=16000")}},
		{name: "grpc-go messages of 4 MB", app: app, h2: true,
			loads: []program{goLoad("grpc-unary", "-conns=2", "-streams=4", "-size=4000000", "-reply=4000000")}},
		{name: "grpc-go uploads of 10 MB, checksums", app: app, h2: true,
			loads: []program{goLoad("grpc-upload", "-conns=2", "-streams=4", "-count=100", "-size=100000")}},
		{name: "grpc-go downloads of 10 MB, checksums", app: app, h2: true,
			loads: []program{goLoad("grpc-download", "-conns=2", "-streams=4", "-count=100", "-reply=100000")}},
		{name: "grpc-go gzip", app: app, h2: true, requests: manyRequests,
			loads: []program{goLoad("grpc-unary", "-conns=4", "-streams=8", "-size=1000", "-reply=1000", "-gzip")}},
		{name: "grpc-go binary metadata up to 8 KB", app: app, h2: true, requests: manyRequests,
			loads: []program{goLoad("grpc-metadata", "-conns=4", "-streams=8", "-count=8000")}},
		{name: "grpc-go all status codes", app: app, h2: true, requests: manyRequests, quick: true,
			loads: []program{goLoad("grpc-codes", "-conns=4", "-streams=8")}},
		{name: "grpc-go slow readers next to fast readers", app: app, h2: true,
			loads: []program{goLoad("grpc-slow", "-streams=8", "-count=50", "-reply=100000")}},
	}
}

// limitRows returns the rows for grpc-go with server limits and server restarts.
func limitRows() []row {
	all := []row{
		{name: "grpc-go keepalive of 10 s", app: goApp("grpc", "-permit=5s"), h2: true, seconds: 35,
			loads: []program{goLoad("grpc-subscribe", "-streams=5", "-path=keepalive")}},
		{name: "grpc-go MaxConnectionAge of 2 s", app: goApp("grpc", "-age=2s"), h2: true,
			loads: []program{goLoad("grpc-unary", "-conns=4", "-streams=8", "-delay=1ms")}},
		{name: "grpc-go MaxConnectionAge of 2 s, downloads", app: goApp("grpc", "-age=2s"), h2: true,
			loads: []program{goLoad("grpc-download", "-conns=2", "-streams=4", "-count=100", "-reply=100000")}},
		{name: "grpc-go graceful restarts every 3 s", app: goApp("grpc", "-restart=3s"), h2: true,
			loads: []program{goLoad("grpc-unary", "-conns=4", "-streams=8", "-delay=1ms")}},
	}
	for _, streams := range []int{1, 10, 100} {
		all = append(all, row{name: fmt.Sprintf("grpc-go server with %d streams per connection", streams), h2: true,
			app:   goApp("grpc", fmt.Sprintf("-streams=%d", streams)),
			loads: []program{goLoad("grpc-unary", "-conns=4", "-streams=32")}})
	}
	return all
}

// languageRows returns the rows for gRPC in other languages and libraries.
func languageRows() []row {
	goServer := goApp("grpc")
	nodeServer := node("grpc-server.js", "{{.AppPort}}")
	pythonServer := python("grpc_server.py", "{{.AppPort}}")
	nodeClient := nodeLoad("grpc-client.js", "--workers=32", "--size=1000")
	pythonClient := func(deadline string) []program {
		return []program{python("grpc_client.py", "{{.Target}}", "{{.Seconds}}", "16", "1000", deadline, "{{.Requests}}")}
	}
	connectApp := goApp("connect")
	connect := func(protocol string) []program {
		return []program{goLoad("connect", "-path="+protocol, "-conns=4", "-streams=8", "-count=5")}
	}
	return []row{
		{name: "grpc-js client and server", app: nodeServer, h2: true, requests: manyRequests, loads: []program{nodeClient}},
		{name: "grpc-js client, grpc-go server", app: goServer, h2: true, requests: manyRequests, loads: []program{nodeClient}},
		{name: "grpc-go client, grpc-js server", app: nodeServer, h2: true, requests: manyRequests,
			loads: []program{goLoad("grpc-unary", "-conns=4", "-streams=8", "-size=1000", "-reply=-1")}},
		{name: "grpc-js messages of 1 MB", app: nodeServer, h2: true,
			loads: []program{nodeLoad("grpc-client.js", "--workers=4", "--size=1000000")}},
		{name: "Python grpcio client and server", app: pythonServer, h2: true, requests: manyRequests, loads: pythonClient("30")},
		{name: "Python grpcio client, grpc-go server", app: goServer, h2: true, requests: manyRequests, loads: pythonClient("30")},
		// If the deadline of a call expires before the client sends HEADERS, grpcio 1.51 sends
		// RST_STREAM for the idle stream. This is a connection error (RFC 9113 section 5.1), which
		// grpc-go ignores and HAProxy does not.
		{name: "Python grpcio deadlines of 2 ms", app: goServer, h2: true, loads: pythonClient("0.002")},
		{name: "grpc-go client, Python grpcio server", app: pythonServer, h2: true, requests: manyRequests,
			loads: []program{goLoad("grpc-unary", "-conns=4", "-streams=8", "-size=1000", "-reply=-1")}},
		{name: "grpc-java client, grpc-go server", app: goServer, h2: true, requests: manyRequests,
			loads: []program{grpcJava("--workers=32", "--size=1000")}},
		{name: "grpc-java client, messages of 1 MB", app: goServer, h2: true,
			loads: []program{grpcJava("--workers=4", "--size=1000000")}},
		{name: "connect-go, gRPC", app: connectApp, h2: true, requests: manyRequests, loads: connect("grpc")},
		{name: "connect-go, gRPC-Web", app: connectApp, h2: true, requests: manyRequests, loads: connect("grpcweb")},
		{name: "connect-go, Connect", app: connectApp, h2: true, requests: manyRequests, loads: connect("connect")},
		{name: "connect-go, gRPC over TLS", h2: true, tls: true, requests: manyRequests, loads: connect("grpc"),
			app: goApp("connect", "-tls={{.AppTLS}}", "-cert={{.Cert}}", "-key={{.Key}}")},
		{name: "connect-go canceled calls", app: connectApp, h2: true,
			loads: []program{goLoad("connect", "-path=grpc", "-rate=300", "-cancel=5ms", "-delay=50ms", "-requests=0"), connect("grpc")[0]}},
	}
}

// gridRows returns the rows for h2load, with different numbers of connections and streams.
func gridRows() []row {
	var all []row
	for _, c := range [][2]int{{1, 1}, {1, 10}, {1, 100}, {10, 10}, {100, 10}, {500, 2}} {
		args := []string{fmt.Sprintf("-c%d", c[0]), fmt.Sprintf("-m%d", c[1])}
		nginxArgs, nginxRequests := args, manyRequests
		if c == [2]int{1, 1} {
			// nginx sends the header and the body in two segments. If the connection is
			// otherwise idle, Nagle's algorithm and the delayed acknowledgment hold back
			// the second segment for 40 ms.
			nginxArgs, nginxRequests = append(nginxArgs, "-n100"), fewRequests
		}
		all = append(all,
			row{name: fmt.Sprintf("h2load %d x %d, net/http with HTTP/2", c[0], c[1]), app: httpApp(), h2: true, requests: manyRequests,
				loads: []program{h2load("/?size=100", args...)}},
			row{name: fmt.Sprintf("h2load %d x %d, nginx with HTTP/1.1", c[0], c[1]), app: nginxApp(), second: true, requests: nginxRequests,
				loads: []program{h2load("/small", nginxArgs...)}})
	}
	return append(all,
		row{name: "h2load 4 x 16, nginx with HTTP/1.1, 1 MB", app: nginxApp(), second: true,
			loads: []program{h2load("/large", "-n2000", "-c4", "-m16")}})
}

// nginxApp is nginx with static files. The first address serves HTTP/2 if the row has h2, and
// HTTP/1.1 otherwise.
func nginxApp() program {
	return program{"nginx", "-p", "{{.Dir}}", "-e", "stderr", "-c", `{{.Configure "nginx-app.conf"}}`}
}

// bodyRows returns the rows for net/http with large content.
func bodyRows() []row {
	var all []row
	for _, http1 := range []bool{true, false} {
		name, prefix := "HTTP/2", ""
		app := httpApp()
		if http1 {
			name, prefix, app = "HTTP/1.1", "http1:", httpApp("-http1")
		}
		all = append(all,
			row{name: "net/http downloads of 100 MB, " + name, app: app, h2: !http1, requests: hugeRequests,
				loads: []program{goLoad("http-get", "-streams=4", "-path="+prefix+"/?size=1000000&copies=100&seed=SEED")}},
			row{name: "net/http uploads of 100 MB, " + name, app: app, h2: !http1, requests: hugeRequests,
				loads: []program{goLoad("http-post", "-streams=4", "-size=1000000", "-count=100", "-path="+prefix+"/post")}},
			row{name: "net/http trailers, " + name, app: app, h2: !http1, requests: manyRequests,
				loads: []program{goLoad("http-get", "-conns=4", "-streams=8", "-path="+prefix+"/?size=1000&seed=SEED&trailer")}})
	}
	return all
}

// serverRows returns the rows for other servers.
func serverRows() []row {
	apache := program{"apache2", "-DFOREGROUND", "-f", `{{.Configure "apache.conf"}}`}
	nghttpd := program{"nghttpd", "--no-tls", "-a", "127.0.0.1", "-d", "{{.Files}}", "{{.AppPort}}"}
	hypercorn := program{"/usr/bin/python3", "-m", "hypercorn", "-b", "{{.App}}", "hypercorn_app:app"}
	static := h2load("/small", "-c8", "-m16")
	return []row{
		{name: "nginx with HTTP/2", app: nginxApp(), h2: true, requests: manyRequests, loads: []program{static}},
		{name: "nginx with HTTP/2, files of 1 MB", app: nginxApp(), h2: true,
			loads: []program{goLoad("http-get", "-conns=2", "-streams=8", "-path=/large")}},
		{name: "nghttpd", app: nghttpd, h2: true, requests: manyRequests, loads: []program{static}},
		{name: "nghttpd, files of 1 MB", app: nghttpd, h2: true,
			loads: []program{goLoad("http-get", "-conns=2", "-streams=8", "-path=/large")}},
		{name: "Apache with HTTP/2", app: apache, h2: true, requests: manyRequests, loads: []program{static}},
		{name: "Apache with HTTP/1.1", app: apache, requests: manyRequests,
			loads: []program{goLoad("http-get", "-streams=32", "-path=http1:/small")}},
		{name: "hypercorn with HTTP/2", app: hypercorn, h2: true, requests: manyRequests,
			loads: []program{goLoad("http-get", "-conns=4", "-streams=8", "-path=/?size=1000")}},
		{name: "hypercorn with HTTP/1.1", app: hypercorn, requests: manyRequests,
			loads: []program{goLoad("http-get", "-streams=32", "-path=http1:/?size=1000")}},
	}
}

// clientRows returns the rows for other HTTP clients, and for WebSockets.
func clientRows() []row {
	http1Server := func(keepAlive int) program { return node("http1-server.js", "{{.AppPort}}", fmt.Sprint(keepAlive)) }
	http2Server := node("http2-server.js", "{{.AppPort}}")
	curl := func(version string) program {
		return toolLoad("curl", "-s", "-k", "-Z", "--parallel-max", "100", version, "-m", "30", "-o", "/dev/null",
			"-w", `transfer %{http_code} %{size_download} %{exitcode}\n`, "{{.Scheme}}://{{.Target}}/?size=1000&n=[1-5000]")
	}
	all := []row{
		{name: "Node http client and server", app: http1Server(5000), requests: manyRequests,
			loads: []program{nodeLoad("http-client.js", "--workers=32", "--size=10000")}},
		{name: "Node http2 client and server", app: http2Server, h2: true, requests: manyRequests,
			loads: []program{nodeLoad("http2-client.js", "--workers=32", "--size=10000")}},
		{name: "Node http2 client that cancels, net/http server", app: httpApp(), h2: true,
			loads: []program{nodeLoad("http2-client.js", "--workers=16", "--size=100000", "--cancel=4")}},
		{name: "curl -Z, HTTP/1.1", app: httpApp("-http1"), requests: manyRequests, loads: []program{curl("--http1.1")}},
		{name: "curl -Z, HTTP/2 over TLS", app: httpApp(), h2: true, tls: true, requests: manyRequests, loads: []program{curl("--http2")}},
		{name: "Python httpx, HTTP/2 over TLS, net/http with HTTP/1.1", app: httpApp("-plain-http1"), tls: true,
			loads: []program{python("httpx_client.py", "{{.Scheme}}://{{.Target}}", "{{.Seconds}}", "32", "{{.Requests}}")}},
		{name: "Python httpx, HTTP/2 over TLS, net/http with HTTP/2", app: httpApp(), h2: true, tls: true,
			loads: []program{python("httpx_client.py", "{{.Scheme}}://{{.Target}}", "{{.Seconds}}", "32", "{{.Requests}}")}},
		{name: "wrk, 64 connections, net/http", app: httpApp("-http1"), requests: manyRequests,
			loads: []program{{"wrk", "-t1", "-c64", "-d{{.Seconds}}s", "--timeout", "30s", "http://{{.Target}}/?size=1000"}}},
		{name: "wrk, 64 connections, nginx", app: nginxApp(), requests: manyRequests,
			loads: []program{{"wrk", "-t1", "-c64", "-d{{.Seconds}}s", "--timeout", "30s", "http://{{.Target}}/medium"}}},
		{name: "WebSockets of the package ws", app: node("websocket-server.js", "{{.AppPort}}"),
			loads: []program{nodeLoad("websocket-client.js", "--workers=16")}},
	}
	for _, seconds := range []int{1, 5} {
		for _, load := range []string{"http-get", "http-post"} {
			all = append(all, row{name: fmt.Sprintf("%s, Node closes idle connections after %d s", load, seconds), app: http1Server(1000 * seconds),
				loads: []program{goLoad(load, "-streams=200", fmt.Sprintf("-pause=%ds", seconds), "-path=http1:/?size=100")}})
		}
	}
	return all
}

// chromiumRows returns the rows for Chromium with HTTP/2 over TLS. A proxy connects to the
// application with HTTP/1.1.
func chromiumRows() []row {
	app := node("chromium-server.js", "{{.AppPort}}", "{{.AppTLSPort}}", "{{.Cert}}", "{{.Key}}")
	load := func(mode string) []program {
		return []program{nodeLoad("chromium-client.js", "--ca={{.CA}}", "--mode="+mode)}
	}
	return []row{
		{name: "Chromium, pages with 200 files", app: app, tls: true, loads: load("files")},
		{name: "Chromium, server-sent events", app: app, tls: true, loads: load("events")},
		{name: "Chromium, WebSockets over HTTP/2", app: app, tls: true, loads: load("websocket")},
	}
}

// hourRows returns the row that the flag -hour selects. It makes 2000 calls per second, and cancels
// a quarter of them.
func hourRows() []row {
	return []row{{name: "an hour of grpc-go with cancellations", app: goApp("grpc"), h2: true, hour: true,
		loads: []program{
			goLoad("grpc-unary", "-conns=4", "-rate=1500"),
			goLoad("grpc-unary", "-conns=4", "-rate=500", "-cancel=5ms", "-delay=50ms", "-requests=0"),
		}}}
}
