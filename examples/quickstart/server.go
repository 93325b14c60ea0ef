package main

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// notConfigured is guarded although no policy has this id, to show what a
// forgotten policy looks like.
const notConfigured = "not.configured"

// app is what every framework serves.
type app struct {
	limiter  *sentinel.Limiter
	ids      []string // the configured endpoints
	registry *prometheus.Registry
	minter   *minter
}

// guarded returns the ids to guard: the configured ones and notConfigured.
func (a app) guarded() []string {
	ids := slices.Clone(a.ids)
	if !slices.Contains(ids, notConfigured) {
		ids = append(ids, notConfigured)
	}
	return ids
}

// unguarded returns the other routes, all for GET, by their path.
func (a app) unguarded() map[string]http.Handler {
	return map[string]http.Handler{
		"/metrics": promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}),
		"/healthz": http.HandlerFunc(healthz),
		"/readyz":  http.HandlerFunc(a.readyz),
		"/token":   a.minter,
	}
}

// handle is the guarded handler. It runs only when the limiter said yes, and
// shows what the limiter knows.
func handle(w http.ResponseWriter, r *http.Request) {
	d, _ := sentinel.FromContext(r.Context())
	type identity struct {
		Mode sentinel.IdentityMode `json:"mode"`
		Hash string                `json:"hash"`
	}
	body := struct {
		EndpointID string          `json:"endpoint_id"`
		Allowed    bool            `json:"allowed"`
		Reason     sentinel.Reason `json:"reason"`
		Remaining  *int64          `json:"remaining"` // null: the store did not answer
		Identity   identity        `json:"identity"`
	}{d.EndpointID, d.Allowed, d.Reason, nil, identity{d.IdentityMode, d.IdentityHash}}
	if d.FromStore {
		body.Remaining = &d.Remaining
	}
	writeJSON(w, http.StatusOK, body)
}

// healthz says that the process lives. It asks nobody.
func healthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readyz says whether decisions come from the store. While they do not, every
// endpoint still follows its fail mode: a service whose endpoints fail open
// would rather stay in the load balancer and answer 200 here.
func (a app) readyz(w http.ResponseWriter, _ *http.Request) {
	s := a.limiter.Status()
	status := http.StatusOK
	reason := ""
	if s.Degraded || !s.Ready {
		status = http.StatusServiceUnavailable
		reason = s.Detail
		if reason == "" {
			reason = "the circuit breaker is " + s.Breaker
		}
	}
	writeJSON(w, status, struct {
		Ready     bool   `json:"ready"`
		Reason    string `json:"reason,omitempty"`
		Store     string `json:"store"`
		Breaker   string `json:"breaker,omitempty"`
		Degraded  bool   `json:"degraded"`
		LastError string `json:"last_error,omitempty"`
	}{status == http.StatusOK, reason, s.Store, s.Breaker, s.Degraded, s.LastError})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that is gone needs no answer
}
