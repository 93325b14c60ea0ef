package follow

import (
	"math/rand/v2"
	"time"
)

const (
	// DefaultSpread is the first window of reconnects.
	DefaultSpread = 5 * time.Second
	// MostSpread is the last one.
	MostSpread = 30 * time.Second

	healthy = 10 * time.Second // a stream that lasted so long makes everything begin anew
)

// backoff is how long to wait before the next stream. From the end of a good one on, time
// is cut into windows, each twice as long as the one before, up to [MostSpread]. A node
// tries once in each, always at the same part of it, which it has drawn for itself. So the
// nodes that have lost one control plane come evenly over the window in which it is back,
// however long it was away. Waits that are drawn anew each time would not: those that were
// short would make a crowd at the beginning, and those that were long a straggle at the end.
type backoff struct {
	first  time.Duration // the first window
	place  float64       // where in a window this node tries, from 0 up to 1
	window time.Duration // of the last wait; 0: none yet
}

func newBackoff(first time.Duration) backoff {
	return backoff{first: first, place: rand.Float64()} // #nosec G404 -- no secret
}

// next is the wait after a stream that was healthy for so long: what is left of the window
// that is under way, and this node's part of the next one.
func (b *backoff) next(lasted time.Duration) time.Duration {
	if b.window == 0 || lasted >= healthy {
		b.window = b.first
		return b.part(b.window)
	}
	rest := b.window - b.part(b.window)
	b.window = min(2*b.window, MostSpread)
	return rest + b.part(b.window)
}

func (b *backoff) part(window time.Duration) time.Duration {
	return time.Duration(b.place * float64(window))
}
