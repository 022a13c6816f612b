package export

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Limits for the attempts of one export.
const (
	firstWait = time.Second / 2 // delay before the second attempt; each following delay is twice as long
	maxWait   = 8 * time.Second // maximum delay
	giveUp    = 30 * time.Second
)

// Retry sends body until an attempt succeeds or fails permanently, ctx is done, or 30 s have
// passed. It returns the result of the last attempt.
func (s Sender) Retry(ctx context.Context, body []byte) (rejected int, err error) {
	end := time.Now().Add(giveUp)
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		rejected, err = s(ctx, body)
		r, refused := errors.AsType[*Refusal](err)
		if err == nil || ctx.Err() != nil || refused && !r.Again {
			return rejected, err
		}
		pause := wait/2 + rand.N(wait/2) // random, so that many sidecars do not retry at the same time after an outage of the collector
		if refused {
			pause = max(pause, r.After)
		}
		if time.Now().Add(pause).After(end) {
			return rejected, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return rejected, err
		}
	}
}
