package export

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Bounds of the tries of one export.
const (
	firstWait = time.Second / 2 // before a second try; each further wait is twice as long,
	maxWait   = 8 * time.Second // up to this
	giveUp    = 30 * time.Second
)

// Retry sends a body until that succeeds, fails for good, ctx ends, or 30 s have passed.
// Its results are those of the last try.
func (s Sender) Retry(ctx context.Context, body []byte) (rejected int, err error) {
	end := time.Now().Add(giveUp)
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		rejected, err = s(ctx, body)
		r, refused := errors.AsType[*Refusal](err)
		if err == nil || ctx.Err() != nil || refused && !r.Again {
			return rejected, err
		}
		pause := wait/2 + rand.N(wait/2) // sidecars that lose a collector together must not come back together
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
