// Package lua holds the one Redis script that makes Sentinel's decisions. Its
// arithmetic is two pure functions in files of their own, which the tests run
// on Redis's interpreter with any time they like; the script that production
// runs is joined from the same text.
package lua

import _ "embed"

var (
	// TokenBucket defines the pure local function token_bucket.
	//
	//go:embed token_bucket.lua
	TokenBucket string

	// SlidingWindow defines the pure local function sliding_window.
	//
	//go:embed sliding_window.lua
	SlidingWindow string

	//go:embed decide.lua
	decide string

	// Decide is the whole script. See decide.lua for its arguments and reply.
	Decide = TokenBucket + SlidingWindow + decide
)
