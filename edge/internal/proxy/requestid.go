package proxy

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
)

// maxRequestID is how long a client's request id may be.
const maxRequestID = 64

// requestID is the client's, if there is one that is fit for a log, or a new one.
func requestID(h http.Header) string {
	if ids := h["X-Request-Id"]; len(ids) == 1 && validRequestID(ids[0]) {
		return ids[0]
	}
	return newRequestID()
}

func validRequestID(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if !isAlphanumeric(c) && c != '-' && c != '_' && c != '.' && c != ':' && c != '/' && c != '+' && c != '=' {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// newRequestID need not be hard to guess: it names a request, and opens nothing.
func newRequestID() string {
	var raw [16]byte
	binary.NativeEndian.PutUint64(raw[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(raw[8:], rand.Uint64())
	var text [32]byte
	hex.Encode(text[:], raw[:])
	return string(text[:])
}
