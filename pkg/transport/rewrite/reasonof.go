package rewrite

import (
	"errors"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// reasonOf returns the reason why a request failed with err. The user container is the cause of an
// error that is not an *Error. If the request body could not be read, the client is the cause.
func reasonOf(err error) observation.Reason {
	switch transport.FaultOf(err) {
	case transport.FaultUnreachable:
		return observation.AppUnreachable
	case transport.FaultLocal:
		return observation.Local
	case transport.FaultGarbage:
		return observation.AppGarbage
	case transport.FaultOverloaded:
		return observation.Overload
	case transport.FaultHeadLimit:
		return observation.HeadTooLarge
	case transport.FaultBody:
		return bodyReason(err)
	}
	return observation.AppReset
}

// Fail records in result why a request failed. If killed is not OK, the request was aborted for
// that reason, and err is only a consequence. Otherwise the reason depends on err. body is the
// error of reading the request body, or nil. It is used if err is not an *Error.
func Fail(result *observation.Result, killed observation.Reason, err, body error) {
	if result.Reason = killed; killed != observation.OK {
		return
	}
	if body != nil && transport.FaultOf(err) == 0 {
		err = &transport.Error{Fault: transport.FaultBody, Err: body}
	}
	result.Reason, result.Err = reasonOf(err), err
	if status, ok := errors.AsType[grpcStatus](err); ok {
		result.GRPC = status.GRPCStatus()
	}
}

// grpcStatus is an error of the user container for which gRPC specifies a status.
type grpcStatus interface {
	error
	GRPCStatus() int
}

// bodyReason returns the reason why a request body could not be read.
func bodyReason(err error) observation.Reason {
	if errors.Is(err, transport.ErrTooLarge) {
		return observation.TooLarge
	}
	if _, ok := errors.AsType[*wire.BadChunk](err); ok {
		return observation.BadRequest
	}
	return observation.ClientGone
}
