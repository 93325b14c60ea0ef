package follow

import (
	"math/rand/v2"
	"time"
)

const (
	firstBound = 200 * time.Millisecond
	lastBound  = 30 * time.Second
	healthy    = 10 * time.Second // a stream that lasted so long makes everything begin anew
)

// backoff is how long to wait before the next stream: anything up to a bound that
// doubles, so that nodes which lost one control plane at once do not come back at once.
// The zero value is ready to use.
type backoff struct{ bound time.Duration }

// next is the wait after a stream that was healthy for so long.
func (b *backoff) next(lasted time.Duration) time.Duration {
	if b.bound == 0 || lasted >= healthy {
		b.bound = firstBound
	}
	wait := rand.N(b.bound) // #nosec G404 -- no secret
	b.bound = min(2*b.bound, lastBound)
	return wait
}
