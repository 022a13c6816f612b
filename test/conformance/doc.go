// Package conformance tests docs/promises.md from the outside. It runs the binary as a process
// and observes only its sockets, its exit code and its output.
//
//	go test -count=1 ./test/conformance/...                        builds and tests ./cmd/queue-proxy
//	QUEUE_PROXY_RACE=1 go test ...                                 builds it with the race detector
//	QUEUE_PROXY=/path/to/binary go test ...                        tests that binary
//	go test ./test/conformance -backends nginx,node,lenient-node   tests request smuggling with servers other than net/http
//	QUEUE_PROXY=... QUEUE_PROXY_FIXED_PORTS=1 go test ...          runs one test at a time, for a binary with Knative's
//	                                                               fixed ports 8022, 9090, 9091 and 8008
//
// The tests require curl and h2load. The script setup installs them.
//
// # Tests and vectors
//
// A test has a client, a sidecar and a user container, connected by real sockets. Misbehaving
// clients and user containers are raw connections whose bytes the test chooses.
//
// A vector is a block in a text file below testdata: a title after "==", then lines. Lines
// that start with # are comments. In all lines, \r, \n, \t, \0, \\ and \xHH are bytes, and
// \{N*TEXT} repeats TEXT N times.
//
// The files classify.txt (classification of requests) and probes.txt (readiness probes in the
// environment) describe their lines in their header. All other files describe one request over
// HTTP/1.1:
//
//	> LINE                   the client sends LINE and CRLF, or without CRLF if LINE ends with \
//	| LINE                   the user container sends LINE in the same way (default: 200, "ok")
//	app then closes          the user container then closes its connection
//
//	app sees LINE            the request line, or one field: all lines of that name, in order
//	app sees body "TEXT"
//	app sees trailer LINE
//	app lacks NAME           no field of that name
//	app sees no request      total number of requests; exactly one by default
//	app sees N requests
//	app sees at most 1 request
//	client sees 404          the final status; 400|501 means one of them
//	client sees LINE         like app sees LINE
//	client sees body "TEXT"
//	client sees trailer LINE
//	client sees interim 103
//	client sees a cut body   the body is truncated
//	client lacks NAME
//	connection stays         the connection accepts a second request
//	connection ends          the connection ends without more data
package conformance
