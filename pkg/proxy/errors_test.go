package proxy

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestEachErrorHasReason(t *testing.T) {
	for _, c := range []struct {
		err  error
		want observation.Reason
	}{
		{nil, observation.OK},
		{reasonError(observation.RequestTimeout), observation.RequestTimeout},
		{io.EOF, observation.AppReset},
		{&transport.Error{Fault: transport.FaultReset, Err: io.EOF}, observation.AppReset},
		{&transport.Error{Fault: transport.FaultAborted}, observation.AppReset},
		{fmt.Errorf("dial: %w", &transport.Error{Fault: transport.FaultUnreachable}), observation.AppUnreachable},
		{&transport.Error{Fault: transport.FaultLocal}, observation.Local},
		{&transport.Error{Fault: transport.FaultGarbage}, observation.AppGarbage},
		{&transport.Error{Fault: transport.FaultOverloaded}, observation.Overload},
		{&transport.Error{Fault: transport.FaultHeadLimit}, observation.HeadTooLarge},
		{transport.BodyError(io.ErrUnexpectedEOF), observation.ClientGone},
		{transport.FaultClientGone, observation.ClientGone},
		{transport.FaultBadRequest, observation.BadRequest},
		{transport.FaultTooLarge, observation.TooLarge},
		{transport.FaultBodyStall, observation.ClientSlow},
		{transport.FaultClientReadStall, observation.ClientSlow},
	} {
		harness.Equal(t, reasonOf(c.err), c.want, c.err)
	}
}

func TestEachFaultHasReason(t *testing.T) {
	for fault := transport.Fault(1); fault < transport.NumFaults; fault++ {
		if reasonOf(fault) == observation.OK {
			t.Errorf("%v: got the reason ok, want a failure", fault)
		}
	}
}

func TestErrorWithoutDetailIsNotLogged(t *testing.T) {
	detailed := &transport.Error{Fault: transport.FaultReset, Err: io.EOF}
	for err, want := range map[error]error{
		nil:                                   nil,
		transport.FaultClientGone:             nil,
		reasonError(observation.QueueTimeout): nil,
		io.EOF:                                io.EOF,
		detailed:                              detailed,
	} {
		if got := detailOf(err); !errors.Is(got, want) {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
}

func TestReasonErrorDoesNotAllocate(t *testing.T) {
	state := &RequestState{}
	state.begin(&Clocks{}, state.start)
	state.end(observation.Draining)
	harness.Equal(t, testing.AllocsPerRun(100, func() {
		if reasonOf(state.Expiry()) != observation.Draining {
			t.Fatal("got another reason, want draining")
		}
	}), 0, "allocations")
}
