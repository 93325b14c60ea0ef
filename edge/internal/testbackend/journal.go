package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"net/http"
	"sync"
)

// Entry is one request as it was received.
type Entry struct {
	Method  string      `json:"method"`
	Target  string      `json:"target"` // as it stood on the wire
	Host    string      `json:"host"`
	Proto   string      `json:"proto"`
	Remote  string      `json:"remote"`
	Header  http.Header `json:"header"`
	Length  int64       `json:"length"` // Content-Length; -1: none
	Body    int64       `json:"body"`   // bytes that were read
	SHA256  string      `json:"sha256"` // of them
	Trailer http.Header `json:"trailer,omitempty"`
	Ended   bool        `json:"ended"` // the backend has done with it
}

// journal is what was received, in the order in which it began.
type journal struct {
	mu      sync.Mutex
	entries []*Entry
}

// begin notes a request; what is read of its body from now on is counted.
func (j *journal) begin(r *http.Request) *Entry {
	e := &Entry{
		Method: r.Method, Target: r.RequestURI, Host: r.Host, Proto: r.Proto, Remote: r.RemoteAddr,
		Header: r.Header.Clone(), Length: r.ContentLength,
	}
	r.Body = &counted{ReadCloser: r.Body, journal: j, entry: e, sum: sha256.New()}
	j.mu.Lock()
	j.entries = append(j.entries, e)
	j.mu.Unlock()
	return e
}

func (j *journal) end(e *Entry, r *http.Request) {
	body, _ := r.Body.(*counted)
	j.mu.Lock()
	defer j.mu.Unlock()
	e.Ended = true
	e.Trailer = r.Trailer.Clone()
	if body != nil {
		e.SHA256 = hex.EncodeToString(body.sum.Sum(nil))
	}
}

func (j *journal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.URL.Query().Has("clear") {
		j.entries = nil
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(append([]*Entry{}, j.entries...)) // the client is gone
}

// counted is a body of which the journal knows how much was read.
type counted struct {
	io.ReadCloser
	journal *journal
	entry   *Entry
	sum     hash.Hash
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.journal.mu.Lock()
	c.entry.Body += int64(n)
	c.sum.Write(p[:n])
	c.journal.mu.Unlock()
	return n, err
}
