package proxy

import (
	"errors"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// reasonError is the error of an exchange that the lifecycle ended for a reason, such as a timeout. The
// conversion to an error does not allocate memory, because the value is a single byte.
type reasonError observation.Reason

func (e reasonError) Error() string { return observation.Reason(e).String() }

// reasons contains the failure reason of each fault. It is the only place that maps the errors of the
// engines to failure reasons.
var reasons = [transport.NumFaults]observation.Reason{
	transport.FaultUnreachable:     observation.AppUnreachable,
	transport.FaultLocal:           observation.Local,
	transport.FaultReset:           observation.AppReset,
	transport.FaultGarbage:         observation.AppGarbage,
	transport.FaultAborted:         observation.AppReset,
	transport.FaultOverloaded:      observation.Overload,
	transport.FaultHeadLimit:       observation.HeadTooLarge,
	transport.FaultClientGone:      observation.ClientGone,
	transport.FaultBadRequest:      observation.BadRequest,
	transport.FaultTooLarge:        observation.TooLarge,
	transport.FaultBodyStall:       observation.ClientSlow,
	transport.FaultClientReadStall: observation.ClientSlow,
}

// reasonOf returns the failure reason for an exchange that ended with err. If err contains no fault, the
// user container caused the failure.
func reasonOf(err error) observation.Reason {
	if err == nil {
		return observation.OK
	}
	if e, ok := errors.AsType[reasonError](err); ok {
		return observation.Reason(e)
	}
	if fault := transport.FaultOf(err); fault != 0 {
		return reasons[fault]
	}
	return observation.AppReset
}

// detailOf returns err for logs, or nil if the failure reason describes err completely.
func detailOf(err error) error {
	switch err.(type) { //nolint:errorlint // a wrapped error contains details
	case reasonError, transport.Fault:
		return nil
	}
	return err
}

// grpcStatus is an error of the user container for which gRPC specifies a status.
type grpcStatus interface {
	error
	GRPCStatus() int
}

// grpcStatusOf returns the gRPC status for err, or 0 if the failure reason determines the status.
func grpcStatusOf(err error) int {
	if e, ok := errors.AsType[grpcStatus](err); ok {
		return e.GRPCStatus()
	}
	return 0
}
