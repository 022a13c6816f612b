// Package conformance holds a queue-proxy to docs/promises.md from the outside:
// the binary runs as a process with an environment, and all that is known of it
// is what passes through its sockets, its exit code and its output.
//
//	go test -count=1 ./test/conformance/...                        builds and tests ./cmd/queue-proxy
//	QUEUE_PROXY_RACE=1 go test ...                                 builds it with the race detector
//	QUEUE_PROXY=/path/to/binary go test ...                        tests that binary
//	go test ./test/conformance -backends nginx,node,lenient-node   tells of smuggling before other servers than net/http
//	QUEUE_PROXY=... QUEUE_PROXY_FIXED_PORTS=1 go test ...          one test at a time, for a binary that knows
//	                                                               only Knative's ports 8022, 9090, 9091 and 8008
//
// The real clients curl and h2load must be there; the script setup installs them.
//
// # Tests and vectors
//
// A test has three actors, client, sidecar and user container, and real sockets
// between them. Where an actor must misbehave, it is a bare connection whose bytes
// the test chooses.
//
// A vector is a block of a text file under testdata: a sentence after "==", then
// lines. Lines that start with # say why. In all of them \r, \n, \t, \0, \\ and
// \xHH are bytes, and \{N*TEXT} is TEXT N times.
//
// The files classify.txt (which request is what) and probes.txt (the readiness
// probe in the environment) explain their lines at their top. All others play
// one request through the sidecar over HTTP/1.1:
//
//	> LINE                   the client sends LINE and CRLF; a last \ means: without CRLF
//	| LINE                   the user container answers so, likewise (default: 200, "ok")
//	app then closes          ... and ends its connection
//
//	app sees LINE            the request line, or one field; all lines of that name, in their order
//	app sees body "TEXT"
//	app sees trailer LINE
//	app lacks NAME           no field of that name
//	app sees no request      so many requests in all; otherwise it must be exactly one
//	app sees N requests
//	app sees at most 1 request
//	client sees 404          the final status; 400|501: one of them
//	client sees LINE         as for the app
//	client sees body "TEXT"
//	client sees trailer LINE
//	client sees interim 103
//	client sees a cut body   the end of the body never came
//	client lacks NAME
//	connection stays         a second request on it is answered
//	connection ends          nothing more comes on it
package conformance
