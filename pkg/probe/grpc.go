package probe

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// Constants of the gRPC health protocol (grpc/doc/health-checking.md).
const (
	healthMethod = "/grpc.health.v1.Health/Check"
	healthField  = 1 // number of the only field in the request and in the response
	serving      = 1 // value of SERVING, the only status that passes
)

// gRPC status codes with a special meaning for a probe.
const (
	grpcOK               = 0
	grpcDeadlineExceeded = 4
	grpcUnimplemented    = 12
)

// newGRPCAttempt returns an attempt that passes if grpc.health.v1.Health/Check returns SERVING. It encodes the
// protobuf messages itself, because the gRPC module would increase the size of the binary by half.
func newGRPCAttempt(a *GRPCAction) (try attemptFunc, where string) {
	host, d := hostOf("")
	target := &url.URL{Scheme: "http", Host: net.JoinHostPort(host, strconv.Itoa(int(a.Port))), Path: healthMethod}
	var protocols http.Protocols
	if a.Mode != nil && *a.Mode == "TLS" {
		target.Scheme = "https"
		protocols.SetHTTP2(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	service := ""
	if a.Service != nil {
		service = *a.Service
	}
	message := healthRequest(service)
	via := newOneShot(d.dial, protocols)
	return func(ctx context.Context) error {
		req := &http.Request{
			Method:        http.MethodPost,
			URL:           target,
			ContentLength: int64(len(message)),
			Body:          io.NopCloser(bytes.NewReader(message)),
			Header: http.Header{
				transport.UserAgent:   {agent},
				transport.ContentType: {transport.GRPC},
				transport.TE:          {"trailers"},
			},
		}
		if deadline, ok := ctx.Deadline(); ok {
			req.Header.Set(transport.GRPCTimeout, grpcTimeout(time.Until(deadline)))
		}
		resp, err := via.RoundTrip(req.WithContext(ctx))
		if err != nil {
			return givenUp(ctx, err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
		if err != nil {
			return givenUp(ctx, err)
		}
		return healthVerdict(resp, body)
	}, target.String()
}

// givenUp returns an error that wraps context.DeadlineExceeded if the timeout of the server caused err. Otherwise
// it returns err. The server has the same timeout and may reset the stream before ctx is done.
func givenUp(ctx context.Context, err error) error {
	const apart = 10 * time.Millisecond // maximum difference between the two deadlines, caused by rounding and the network delay
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < apart && wordOf(err) == observation.WordGarbage {
		return fmt.Errorf("%w: %v", context.DeadlineExceeded, err) //nolint:errorlint // the cause is the timeout
	}
	return err
}

// healthRequest returns the body of a request that contains a HealthCheckRequest message. The field service has the
// number healthField.
func healthRequest(service string) []byte {
	var message []byte
	if service != "" {
		message = protowire.AppendTag(nil, healthField, protowire.BytesType)
		message = protowire.AppendString(message, service)
	}
	return transport.GRPCFrame(message)
}

// healthVerdict returns nil if a response reports SERVING, and a failure otherwise. The caller must read the response
// body first, because the trailers are only available afterwards.
func healthVerdict(resp *http.Response, body []byte) error {
	status, message := transport.GRPCResult(resp)
	if resp.StatusCode != http.StatusOK && status == "" {
		return &failure{word: observation.WordStatus, code: resp.StatusCode, err: fmt.Errorf("HTTP status %d instead of a gRPC response", resp.StatusCode)}
	}
	if !strings.HasPrefix(resp.Header.Get(transport.ContentType), transport.GRPC) && status == "" {
		return &failure{word: observation.WordGarbage, err: errors.New("the response is not gRPC")}
	}
	code, err := strconv.Atoi(status)
	switch {
	case err != nil:
		return &failure{word: observation.WordGarbage, err: fmt.Errorf("invalid grpc-status %q", status)}
	case code == grpcUnimplemented:
		return &failure{word: observation.WordUnimplemented, err: fmt.Errorf("the server does not implement grpc.health.v1.Health: %q", message)}
	case code == grpcDeadlineExceeded:
		return &failure{word: observation.WordTimeout, err: fmt.Errorf("the deadline of the server expired: %q", message)}
	case code != grpcOK:
		return &failure{word: observation.WordRPC, code: code, err: fmt.Errorf("grpc-status %d: %q", code, message)}
	}
	answer, err := servingStatus(body)
	if err != nil {
		return &failure{word: observation.WordGarbage, err: err}
	}
	if answer != serving {
		return &failure{word: observation.WordNotServing, code: answer, err: fmt.Errorf("the health status is %s", servingName(answer))}
	}
	return nil
}

func servingName(status int) string {
	name := map[int]string{0: "UNKNOWN", serving: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}[status]
	return cmp.Or(name, strconv.Itoa(status))
}

var errMessage = errors.New("the response is not a HealthCheckResponse")

// servingStatus decodes the HealthCheckResponse message in body and returns its status field, which has the number
// healthField. Unknown fields are ignored. If the status is missing, servingStatus returns 0, which is UNKNOWN.
func servingStatus(body []byte) (int, error) {
	m, ok := transport.GRPCMessage(body)
	if !ok {
		return 0, errMessage
	}
	status := 0
	for len(m) > 0 {
		field, kind, n := protowire.ConsumeTag(m)
		if n < 0 || field > protowire.MaxValidNumber {
			return 0, errMessage
		}
		m = m[n:]
		if n = protowire.ConsumeFieldValue(field, kind, m); n < 0 {
			return 0, errMessage
		}
		if field == healthField && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(m)
			status = int(int32(v))
		}
		m = m[n:]
	}
	return status, nil
}

// grpcTimeout returns d as the value of a grpc-timeout field, which consists of at most eight digits and a unit. It
// rounds the value up.
func grpcTimeout(d time.Duration) string {
	const limit = 99999999
	d = max(d, 1) - 1 // so that the divisions below round up
	if ms := d/time.Millisecond + 1; ms <= limit {
		return strconv.FormatInt(int64(ms), 10) + "m"
	}
	return strconv.FormatInt(min(int64(d/time.Second+1), limit), 10) + "S"
}
