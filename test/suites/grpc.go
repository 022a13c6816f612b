//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// interopCases are the cases that do not need an account of a cloud provider. The case
// pick_first_unary is omitted, because the grpc-go server does not return its identity.
var interopCases = []string{
	"empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream",
	"timeout_on_sleeping_server", "cancel_after_begin", "cancel_after_first_response", "status_code_and_message",
	"special_status_message", "custom_metadata", "unimplemented_method", "unimplemented_service",
	"rpc_soak", "channel_soak", "orca_per_rpc", "orca_oob",
}

// interopTime bounds the duration of a case.
const interopTime = 90 * time.Second

// interopArguments returns the arguments of the client for a case.
func interopArguments(name string) []string {
	balancer := "pick_first"
	if strings.HasPrefix(name, "orca") {
		balancer = "test_backend_metrics_load_balancer"
	}
	argv := []string{"--test_case=" + name, `--service_config_json={"loadBalancingConfig":[{"` + balancer + `":{}}]}`}
	// Do not limit the time of a single call, because only the total time of all calls matters.
	soak := []string{"--soak_per_iteration_max_acceptable_latency_ms=60000", "--soak_overall_timeout_seconds=80", "--soak_num_threads=8"}
	switch name {
	case "rpc_soak":
		argv = append(append(argv, soak...), "--soak_iterations=2000")
	case "channel_soak":
		argv = append(append(argv, soak...), "--soak_iterations=400")
	}
	return argv
}

// runInterop runs the interoperability client of grpc-go against its server.
func runInterop(ctx context.Context, e *environment, v variant) (*result, error) {
	ports, err := freePorts(e.dir, 2)
	if err != nil {
		return nil, err
	}
	cert := filepath.Join(e.dir, "tls.crt")
	server := filepath.Join(e.programs, "server")
	tlsServer := []string{"--use_tls", "--tls_cert_file=" + cert, "--tls_key_file=" + filepath.Join(e.dir, "tls.key")}
	for i, argv := range [][]string{nil, tlsServer} {
		s, err := startProcess(e.dir, nil, append([]string{server, "--port=" + port(ports[i])}, argv...)...)
		if err != nil {
			return nil, err
		}
		defer s.stop()
		if err := s.await(ports[i]); err != nil {
			return nil, err
		}
	}
	plain, secure := ports[0], ports[1]
	r := &result{}
	if v != direct {
		p, err := startProxy(e, v, ports[0], true)
		if err != nil {
			return nil, err
		}
		defer func() { r.fail(string(v), p.stop()) }()
		plain, secure = p.plain, p.tls
	}
	e.interopCases(ctx, r, "h2c", "--server_host=127.0.0.1", "--server_port="+port(plain))
	e.interopCases(ctx, r, "TLS", "--server_host=127.0.0.1", "--server_port="+port(secure),
		"--use_tls", "--use_test_ca", "--ca_file="+cert, "--server_host_override="+certificateName)
	return r, ctx.Err()
}

// interopCases runs all cases with the arguments of a target. The last case runs several
// concurrent clients that make more concurrent calls than the limit of the sidecar allows.
func (e *environment) interopCases(ctx context.Context, r *result, target string, argv ...string) {
	for _, name := range interopCases {
		r.cases++
		r.fail(target+", "+name, e.interopClient(ctx, append(interopArguments(name), argv...)))
	}
	const clients = 4
	// If an option is repeated, the last value is used. The number of iterations must be a
	// multiple of the number of threads.
	many := append(interopArguments("rpc_soak"), "--soak_iterations=480")
	errs := make([]error, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() { errs[i] = e.interopClient(ctx, slices.Concat(many, argv)) })
	}
	all.Wait()
	r.cases++
	r.fail(fmt.Sprintf("%s, rpc_soak with %d clients", target, clients), errors.Join(errs...))
}

// interopClient runs the client once.
func (e *environment) interopClient(ctx context.Context, argv []string) error {
	ctx, cancel := context.WithTimeout(ctx, interopTime)
	defer cancel()
	text, ok, err := runProgram(ctx, append([]string{filepath.Join(e.programs, "client")}, argv...)...)
	if err != nil || ok {
		return err
	}
	return fmt.Errorf("exit status: %s", shorten(text[max(0, len(text)-500):]))
}
