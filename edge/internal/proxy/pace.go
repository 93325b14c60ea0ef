package proxy

import "time"

const (
	copySize = 32 << 10 // bytes that are copied at once
	slowSize = 512      // of a peer whose speed is not known or low
)

// pace is how many bytes to ask of a peer at once, so that one that is slow but
// never stands still gets through with each piece before its deadline. net/http
// tells of progress only between pieces: within a chunk of a request's body it
// reads until the buffer is full, and it writes until all is written. The zero
// value asks for little.
type pace struct{ size int }

// of is the part of p to go on with.
func (c *pace) of(p []byte) []byte {
	c.size = min(max(c.size, slowSize), copySize)
	return p[:min(len(p), c.size)]
}

// took tells how long a piece took. Four times as much is asked for only if that
// would not take longer than a quarter of the time there is.
func (c *pace) took(d, limit time.Duration) {
	switch {
	case d > limit/4:
		c.size /= 4
	case d < limit/16:
		c.size *= 4
	}
}
