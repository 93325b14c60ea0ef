package proxy

import (
	"context"
	"net/http"
	"net/netip"
)

// contextOf is a request's context, to be cancelled.
func contextOf(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithCancel(r.Context())
}

// panics is a limiter with a mistake.
type panics struct{ value any }

func (p panics) Allow(http.ResponseWriter, *http.Request, netip.Addr) (bool, Reason) { panic(p.value) }
