package export

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// tries calls Retry and returns the time of each attempt, measured from the start of Retry. answer returns
// the result of each attempt.
func tries(t *testing.T, answer func(try int) error) (at []time.Duration) {
	t.Helper()
	began := time.Now()
	_, _ = Sender(func(context.Context, []byte) (int, error) {
		at = append(at, time.Since(began))
		return 0, answer(len(at))
	}).Retry(t.Context(), nil)
	return at
}

func TestRetryUsesExponentialBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := tries(t, func(int) error { return &Refusal{Err: errors.New("busy"), Again: true} })
		if n := len(at); n < 6 || n > 11 {
			t.Errorf("tries: got %d, want 6 to 11 in %v", n, giveUp)
		}
		pause := firstWait
		for i := 1; i < len(at); i++ {
			if got := at[i] - at[i-1]; got < pause/2 || got > pause {
				t.Errorf("pause %d: got %v, want %v to %v", i, got, pause/2, pause)
			}
			pause = min(2*pause, maxWait)
		}
		if last := at[len(at)-1]; last > giveUp {
			t.Errorf("the last try: got %v after the first, want at most %v", last, giveUp)
		}
	})
}

func TestRetryWaitsForRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := tries(t, func(try int) error {
			if try == 1 {
				return &Refusal{Err: errors.New("busy"), Again: true, After: 7 * time.Second}
			}
			return nil
		})
		harness.Equal(t, at, []time.Duration{0, 7 * time.Second}, "tries")
	})
}

func TestRetryStopsAfterPermanentError(t *testing.T) {
	at := tries(t, func(int) error { return &Refusal{Err: errors.New("bad request")} })
	harness.Equal(t, len(at), 1, "tries")
}
