package transport_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestFaultOfFindsFault(t *testing.T) {
	for _, c := range []struct {
		err  error
		want transport.Fault
	}{
		{nil, 0},
		{io.EOF, 0},
		{transport.FaultClientGone, transport.FaultClientGone},
		{&transport.Error{Fault: transport.FaultReset, Err: io.EOF}, transport.FaultReset},
		{fmt.Errorf("dial: %w", &transport.Error{Fault: transport.FaultUnreachable}), transport.FaultUnreachable},
	} {
		harness.Equal(t, transport.FaultOf(c.err), c.want, c.err)
	}
}

func TestErrorContainsCause(t *testing.T) {
	err := &transport.Error{Fault: transport.FaultReset, Err: io.EOF}
	harness.Equal(t, err.Error(), "user container: connection reset: EOF")
	if !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want an error that wraps io.EOF", err)
	}
}

func TestEachFaultHasText(t *testing.T) {
	for fault := transport.Fault(1); fault < transport.NumFaults; fault++ {
		if fault.Error() == "" {
			t.Errorf("fault %d: got no text, want one", fault)
		}
	}
}

func TestCausePrefersAbort(t *testing.T) {
	late, reset := errors.New("request timeout"), &transport.Error{Fault: transport.FaultReset}
	for _, c := range []struct {
		aborted, err, body error
		want               string
	}{
		{late, reset, io.EOF, "request timeout"},
		{nil, reset, io.EOF, "user container: connection reset"},
		{nil, errors.New("closed"), io.EOF, "client disconnected: EOF"},
		{nil, errors.New("closed"), transport.FaultTooLarge, "request body too large"},
		{nil, errors.New("closed"), nil, "closed"},
	} {
		harness.Equal(t, transport.Cause(c.aborted, c.err, c.body).Error(), c.want)
	}
}
