package upstream

// standing is what a backend's checks have made of it.
type standing uint32

// The standings. Until the first check has ended nothing is known, and that
// keeps nobody away.
const (
	unknown standing = iota
	healthy
	unhealthy
	unchecked // it is not to be checked
	removed   // no configuration has it
)

func (s standing) String() string {
	return [...]string{"unknown", "healthy", "unhealthy", "unchecked", "removed"}[s]
}

// eligible reports whether requests may go there.
func (s standing) eligible() bool { return s != unhealthy && s != removed }

// health is a standing and how far it is from the next.
type health struct {
	standing standing
	against  int // results in a row that speak against it
}

// after is the health after a check. The first check decides: a backend that has
// never passed one gets no requests on the hope of further ones. From then on it
// takes fall failures in a row, or rise passes in a row, to change.
func (h health) after(pass bool, fall, rise int) health {
	to, needed := unhealthy, fall
	if pass {
		to, needed = healthy, rise
	}
	switch {
	case h.standing == to:
		return health{standing: to}
	case h.standing == unknown || h.against+1 >= needed:
		return health{standing: to}
	default:
		return health{h.standing, h.against + 1}
	}
}
