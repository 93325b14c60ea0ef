package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/store"
)

// problem is why a request is refused, in the form of RFC 9457.
type problem struct {
	Status int           `json:"status"`
	Title  string        `json:"title"`
	Detail string        `json:"detail,omitempty"`
	Faults config.Faults `json:"faults,omitempty"` // all of them
	Newest int64         `json:"version,omitempty"`
}

func (p *problem) Error() string { return p.Detail }

func faulty(f config.Faults) *problem {
	return &problem{Status: http.StatusUnprocessableEntity, Detail: f.Error(), Faults: f}
}

func stale(given, newest int64) *problem {
	return &problem{
		Status: http.StatusPreconditionFailed, Newest: newest,
		Detail: fmt.Sprintf("the edit is of version %d, and the newest is %d; look at what has changed, and try again", given, newest),
	}
}

func nothingYet() *problem {
	return &problem{Status: http.StatusConflict, Detail: "there is no configuration yet; begin with a whole one, by PUT /v1/config or sentinel-control apply"}
}

// problemOf is what an error is to a client.
func problemOf(err error) *problem {
	var p *problem
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, store.ErrNotFound):
		return &problem{Status: http.StatusNotFound, Detail: "there is no such version"}
	case errors.Is(err, store.ErrBusy):
		return &problem{Status: http.StatusServiceUnavailable, Detail: "another process has the store locked; nothing is changed, and nodes have what they had"}
	case errors.Is(err, store.ErrFull):
		return &problem{Status: http.StatusInsufficientStorage, Detail: "the disk of the store is full; nothing is changed, and nodes have what they had"}
	default:
		return &problem{Status: http.StatusServiceUnavailable, Detail: "the store fails; nothing is changed, and nodes have what they had: " + err.Error()}
	}
}

func (p *problem) write(w http.ResponseWriter) {
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	said := *p
	said.Title = http.StatusText(p.Status)
	_ = json.NewEncoder(w).Encode(said) // the client is gone
}
