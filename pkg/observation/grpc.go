package observation

import "strconv"

// A GRPCStatus is the status of the response to a gRPC call. The zero value means that the response does not use
// gRPC.
type GRPCStatus uint8

// NumGRPCStatuses is the number of values of GRPCStatus, including the zero value.
const NumGRPCStatuses = int(GRPCMissing) + 1

// Values of GRPCStatus. The value for a status code is the code plus 1.
const (
	grpcOK      GRPCStatus = 1                         // the status code 0; the other codes follow
	GRPCOther   GRPCStatus = numGRPCCodes + grpcOK     // the grpc-status is not one of the status codes
	GRPCMissing GRPCStatus = numGRPCCodes + grpcOK + 1 // the response has the media type of gRPC, but no grpc-status
)

// numGRPCCodes is the number of gRPC status codes.
const numGRPCCodes = 17

// grpcStatuses contains the status codes of gRPC (https://grpc.io/docs/guides/status-codes/) and the other values of
// GRPCStatus. failed is true for the codes that report a failure or an overload of the user container, and for responses
// without a valid code, which clients treat as UNKNOWN.
var grpcStatuses = [NumGRPCStatuses]struct {
	name   string
	failed bool
}{
	grpcOK: {"OK", false},
	{"CANCELLED", false},
	{"UNKNOWN", true},
	{"INVALID_ARGUMENT", false},
	{"DEADLINE_EXCEEDED", true},
	{"NOT_FOUND", false},
	{"ALREADY_EXISTS", false},
	{"PERMISSION_DENIED", false},
	{"RESOURCE_EXHAUSTED", true},
	{"FAILED_PRECONDITION", false},
	{"ABORTED", false},
	{"OUT_OF_RANGE", false},
	{"UNIMPLEMENTED", false},
	{"INTERNAL", true},
	{"UNAVAILABLE", true},
	{"DATA_LOSS", true},
	{"UNAUTHENTICATED", false},
	GRPCOther:   {"other", true},
	GRPCMissing: {"none", true},
}

// ParseGRPCStatus returns the status for the value of a grpc-status field.
func ParseGRPCStatus(value string) GRPCStatus {
	code, err := strconv.ParseUint(value, 10, 8)
	if err != nil || len(value) > 1 && value[0] == '0' {
		return GRPCOther
	}
	return GRPCStatusOf(int(code))
}

// GRPCStatusOf returns the status for a status code. A negative code means that the response does not use gRPC.
func GRPCStatusOf(code int) GRPCStatus {
	switch {
	case code < 0:
		return 0
	case code >= numGRPCCodes:
		return GRPCOther
	}
	return grpcOK + GRPCStatus(code)
}

// Code returns the gRPC status code. It returns false for the zero value, GRPCOther and GRPCMissing.
func (s GRPCStatus) Code() (int, bool) {
	code := int(s) - int(grpcOK)
	return code, code >= 0 && code < numGRPCCodes
}

// String returns the name of the status code, or "other" or "none". It returns "" for the zero value.
func (s GRPCStatus) String() string { return grpcStatuses[s].name }

// Failed reports whether the status indicates a failure or an overload of the user container.
func (s GRPCStatus) Failed() bool { return grpcStatuses[s].failed }
