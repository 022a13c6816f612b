// Package http2conn implements HTTP/2 connections (RFC 9113) for clients and servers: frames, header compression,
// flow control and the writer. Package http2 serves requests on such a connection, and package http2client sends
// requests to the user container.
//
// The goroutine that runs [Conn.Run] reads from the connection and calls the owners of the streams, which must not
// block. Any goroutine can send on a stream. The frames are added to the output of the connection, and the next
// [Conn.Flush] writes the output of all streams without blocking.
package http2conn

import (
	"encoding/binary"
	"fmt"
)

// Frame types (RFC 9113 section 6).
const (
	frameData         = 0
	frameHeaders      = 1
	framePriority     = 2
	frameReset        = 3
	frameSettings     = 4
	framePushPromise  = 5
	framePing         = 6
	frameGoAway       = 7
	frameWindowUpdate = 8
	frameContinuation = 9
)

// Frame flags.
const (
	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// Settings (RFC 9113 section 6.5.2, RFC 8441 section 3).
const (
	settingEnablePush        = 2
	settingMaxStreams        = 3
	settingInitialWindow     = 4
	settingMaxFrameSize      = 5
	settingMaxHeaderListSize = 6
	settingConnectProtocol   = 8
)

const (
	frameHeadSize    = 9                 // length of a frame header in bytes
	resetSize        = frameHeadSize + 4 // length of an RST_STREAM frame in bytes
	windowUpdateSize = frameHeadSize + 4 // length of a WINDOW_UPDATE frame in bytes

	maxFrameSize  = 16384 // payload length in bytes that every peer must accept (RFC 9113 section 4.2)
	defaultWindow = 65535 // initial window of a connection, and of a stream until SETTINGS changes it, in bytes
	maxWindow     = 1<<31 - 1
	maxStreamID   = 1<<31 - 1
)

// Code is an error code (RFC 9113 section 7).
type Code uint32

// Error codes.
const (
	NoError            Code = 0
	ProtocolError      Code = 1
	InternalError      Code = 2
	FlowControlError   Code = 3
	StreamClosed       Code = 5
	FrameSizeError     Code = 6
	RefusedStream      Code = 7
	Cancel             Code = 8
	CompressionError   Code = 9
	EnhanceYourCalm    Code = 11
	InadequateSecurity Code = 12
)

// codeNames contains the names of the error codes in RFC 9113 section 7.
var codeNames = [...]string{
	"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR",
	"REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
}

// String returns the name of the code, or "unknown".
func (c Code) String() string {
	if c < Code(len(codeNames)) {
		return codeNames[c]
	}
	return "unknown"
}

// An Error reports that the peer violated the protocol or exceeded a bound. It is a connection error (RFC 9113 section
// 5.4.1), or the stream error (section 5.4.2) that [Owner].Failed receives. Code is sent to the peer.
type Error struct {
	Code  Code
	Text  string // description of the error
	Cause error  // wrapped error; may be nil
}

func (e *Error) Error() string { return fmt.Sprintf("http2: %s (code %d)", e.Text, e.Code) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

func fail(code Code, text string) error { return &Error{Code: code, Text: text} }

// A ResetError reports that the peer reset a stream with RST_STREAM.
type ResetError struct {
	Code   Code
	Ending bool // no more streams can be opened on the connection
}

func (e *ResetError) Error() string {
	return fmt.Sprintf("http2: the stream was reset with %v (code %d)", e.Code, e.Code)
}

// GRPCStatus returns the gRPC status code of a call whose stream was reset (gRPC over HTTP/2, section "Errors").
func (e *ResetError) GRPCStatus() int {
	switch e.Code {
	case RefusedStream:
		return 14 // UNAVAILABLE
	case Cancel:
		return 1 // CANCELLED
	case EnhanceYourCalm:
		return 8 // RESOURCE_EXHAUSTED
	case InadequateSecurity:
		return 7 // PERMISSION_DENIED
	}
	return 13 // INTERNAL
}

// appendFrameHead appends a frame header (RFC 9113 section 4.1). length is the payload length in bytes.
func appendFrameHead(b []byte, length int, kind, flags byte, id uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), kind, flags, byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

func appendReset(b []byte, id uint32, code Code) []byte {
	b = appendFrameHead(b, 4, frameReset, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

func appendWindowUpdate(b []byte, id uint32, n int) []byte {
	b = appendFrameHead(b, 4, frameWindowUpdate, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

func appendGoAway(b []byte, last uint32, code Code) []byte {
	b = appendFrameHead(b, 8, frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

func appendSetting(b []byte, id uint16, value int) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	return binary.BigEndian.AppendUint32(b, uint32(value))
}

// appendHeaders appends a header block as a HEADERS frame. If the block is longer than maxFrameSize, CONTINUATION frames
// follow.
func appendHeaders(b []byte, id uint32, block []byte, end bool) []byte {
	kind, flags := byte(frameHeaders), byte(0)
	if end {
		flags = flagEndStream
	}
	for {
		n := min(len(block), maxFrameSize)
		if n == len(block) {
			flags |= flagEndHeaders
		}
		b = append(appendFrameHead(b, n, kind, flags, id), block[:n]...)
		if block = block[n:]; flags&flagEndHeaders != 0 {
			return b
		}
		kind, flags = frameContinuation, 0
	}
}
