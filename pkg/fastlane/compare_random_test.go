//go:build compare

// The random part of the comparison still finds differences that are neither
// permitted nor mended. It is run by hand until it does not:
//
//	go test -tags compare -run Random -count=1 ./pkg/fastlane
package fastlane_test

import (
	"math/rand/v2"
	"testing"
	"time"
)

// randomTime bounds the random part of the comparison.
const randomTime = 2 * time.Second

func TestBothLanesSayTheSameOfRandomRequests(t *testing.T) {
	c := newComparison(t)
	from := uint64(time.Now().UnixNano())
	t.Logf("seed %d", from)
	g := &generator{rand.New(rand.NewPCG(from, 0))}
	n := 0
	for end := time.Now().Add(randomTime); time.Now().Before(end) && !t.Failed(); n++ {
		client, answers := g.talk()
		if s, worth := newScript([]byte(client), []byte(answers), g.IntN(len(client)+1)); worth {
			c.compare(t, s)
		}
	}
	served, lent, given := c.fast.fast.Counts()
	t.Logf("%d scripts; %d requests were served here, %d lent, %d connections handed over", n, served, lent, given)
}
