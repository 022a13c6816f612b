//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// The configurations for the connectrpc runner select its cases. They include the cases with TLS,
// except cases with client certificates or HTTP/3, which the sidecar does not support.
const (
	allProtocols = `features:
  versions: [HTTP_VERSION_1, HTTP_VERSION_2]
  protocols: [PROTOCOL_CONNECT, PROTOCOL_GRPC, PROTOCOL_GRPC_WEB]
  codecs: [CODEC_PROTO, CODEC_JSON]
  compressions: [COMPRESSION_IDENTITY, COMPRESSION_GZIP, COMPRESSION_BR, COMPRESSION_ZSTD, COMPRESSION_DEFLATE, COMPRESSION_SNAPPY]
  supportsHalfDuplexBidiOverHttp1: true
`
	// bothVersions excludes gRPC and full-duplex bidirectional streams, because they require HTTP/2
	// on both sides of the proxy.
	bothVersions = `features:
  versions: [HTTP_VERSION_1, HTTP_VERSION_2]
  protocols: [PROTOCOL_CONNECT, PROTOCOL_GRPC_WEB]
  codecs: [CODEC_PROTO, CODEC_JSON]
  compressions: [COMPRESSION_IDENTITY, COMPRESSION_GZIP, COMPRESSION_BR, COMPRESSION_ZSTD, COMPRESSION_DEFLATE, COMPRESSION_SNAPPY]
  streamTypes: [STREAM_TYPE_UNARY, STREAM_TYPE_CLIENT_STREAM, STREAM_TYPE_SERVER_STREAM, STREAM_TYPE_HALF_DUPLEX_BIDI_STREAM]
  supportsHalfDuplexBidiOverHttp1: true
`
	grpcOnly = `features:
  versions: [HTTP_VERSION_2]
  protocols: [PROTOCOL_GRPC]
`
)

// serverMode runs the server cases with the reference server, which is behind the proxy of the
// variant. If otherVersion is true, the proxy receives HTTP/1.1 instead of HTTP/2 requests, and
// vice versa. otherVersion has no effect on the direct variant.
func serverMode(configuration string, otherVersion bool) func(context.Context, *environment, variant) (*result, error) {
	return func(ctx context.Context, e *environment, v variant) (*result, error) {
		if v == direct {
			return runConnect(ctx, e, "server", configuration, filepath.Join(e.programs, "referenceserver"))
		}
		command, err := e.underTest("server", v)
		if err != nil {
			return nil, err
		}
		if otherVersion {
			command = append(command, "-other-version")
		}
		return runConnect(ctx, e, "server", configuration, command...)
	}
}

// clientMode runs the client cases with the reference client, which connects through the proxy of
// the variant.
func clientMode(configuration string) func(context.Context, *environment, variant) (*result, error) {
	return func(ctx context.Context, e *environment, v variant) (*result, error) {
		if v == direct {
			return runConnect(ctx, e, "client", configuration, filepath.Join(e.programs, "referenceclient"))
		}
		command, err := e.underTest("client", v)
		if err != nil {
			return nil, err
		}
		return runConnect(ctx, e, "client", configuration, command...)
	}
}

// underTest returns the command line for a subcommand of this program.
func (e *environment) underTest(subcommand string, v variant) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("program: %w", err)
	}
	return []string{self, subcommand, "-sidecar=" + e.sidecar, "-programs=" + e.programs, "-dir=" + e.dir, "-variant=" + string(v)}, nil
}

// runConnect runs the connectrpc conformance runner. command starts the server or the client under
// test.
func runConnect(ctx context.Context, e *environment, mode, configuration string, command ...string) (*result, error) {
	file := filepath.Join(e.dir, "connect.yaml")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		return nil, fmt.Errorf("runner configuration: %w", err)
	}
	argv := []string{filepath.Join(e.programs, "connectconformance"), "--mode", mode, "--conf", file, "--"}
	text, _, err := runProgram(ctx, append(argv, command...)...)
	if err != nil {
		return nil, err
	}
	return parseConnect(text)
}

// Patterns for the output of the connectrpc runner and of the subcommands of this program.
var (
	failedLine   = regexp.MustCompile(`(?m)^FAILED: (.*?)( was expected to fail.*|:)$`)
	defectLine   = regexp.MustCompile(`(?m)^` + defectPrefix + `(.*)$`)
	summaryLines = regexp.MustCompile(`(?m)^Total cases: \d+\n(\d+) passed, (\d+) failed$`)
	notRunLine   = regexp.MustCompile(`(?m)^Another (\d+) could not be run`)
)

// parseConnect returns the result that the connectrpc runner printed. Incomplete output is an
// error.
func parseConnect(text string) (*result, error) {
	summary := summaryLines.FindStringSubmatch(text)
	if summary == nil {
		return nil, fmt.Errorf("connectconformance: no summary in the output: %s", text[max(0, len(text)-2000):])
	}
	passed, _ := strconv.Atoi(summary[1])
	failed, _ := strconv.Atoi(summary[2])
	r := &result{cases: passed + failed}
	for _, m := range failedLine.FindAllStringSubmatchIndex(text, -1) {
		reason, _, _ := strings.Cut(text[m[1]:], "\nFAILED: ")
		reason, _, _ = strings.Cut(reason, "\n\nTotal cases: ")
		r.fail(text[m[2]:m[3]], errors.New(shorten(reason)))
	}
	if len(r.failed) != failed {
		return nil, fmt.Errorf("connectconformance: got names of %d failed cases, want %d", len(r.failed), failed)
	}
	if m := notRunLine.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1])
		r.cases += n
		for i := range n {
			r.fail(fmt.Sprintf("unknown case %d", i+1), errors.New("the client reported no result"))
		}
	}
	for _, m := range defectLine.FindAllStringSubmatch(text, -1) {
		r.cases++
		r.fail(m[1], errors.New("the runner reported the error after all cases"))
	}
	return r, nil
}

// shorten returns text on one line of at most 500 bytes.
func shorten(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), 500)]
}
