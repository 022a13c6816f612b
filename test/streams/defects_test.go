package streams_test

import "flag"

// strict makes the tests report the known defects.
var strict = flag.Bool("strict", false, "report known defects as failures")

// A defect is a known defect of the proxy, which the model tolerates.
type defect string

const (
	// secondReset: the proxy sends RST_STREAM(STREAM_CLOSED) for DATA and HEADERS that arrive
	// after it has reset the stream. RFC 9113 section 5.1, "closed": an endpoint discards these
	// frames and must not send frames other than PRIORITY.
	secondReset defect = "second reset"

	// translatedReset: the proxy translates a reset by the application before the response
	// headers to status 502. docs/promises.md section 3.12: it forwards the code.
	translatedReset defect = "translated reset"

	// malformedCode: in rare cases the proxy reports malformed trailers of a request by
	// INTERNAL_ERROR or by a response, because the goroutine of the request is notified before
	// the stream is reset. RFC 9113 section 8.1.1: the stream error is PROTOCOL_ERROR.
	malformedCode defect = "malformed code"
)
