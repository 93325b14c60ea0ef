package observe

import (
	"net/http"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinelgo/sentinel/edge/internal/proxy"
)

// decisionsHelp is the library's, which counts its own decisions by this name.
const decisionsHelp = "Decisions, by endpoint and reason."

func newDecisions() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sentinel_decisions_total", Help: decisionsHelp},
		[]string{"endpoint_id", "decision_reason"})
}

// localPrefix begins the endpoint_id of a limit that is counted in this process.
const localPrefix = "local:"

// Counted is a limiter whose decisions are counted as the library counts its own,
// with "local:" and its id for the endpoint: no policy has a colon in its name.
func (m *Metrics) Counted(id string, l proxy.Limiter) proxy.Limiter {
	of := func(reason string) prometheus.Counter { return m.decisions.WithLabelValues(localPrefix+id, reason) }
	return &counted{l, of("allowed"), of(string(proxy.RateLimited))}
}

type counted struct {
	limiter         proxy.Limiter
	allowed, denied prometheus.Counter
}

// Allow implements proxy.Limiter.
func (c *counted) Allow(w http.ResponseWriter, r *http.Request, client netip.Addr) (bool, proxy.Reason) {
	ok, reason := c.limiter.Allow(w, r, client)
	if ok {
		c.allowed.Inc()
	} else {
		c.denied.Inc()
	}
	return ok, reason
}
