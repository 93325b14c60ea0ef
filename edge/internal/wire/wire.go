// Package wire looks at the bytes of a connection before net/http does, for
// net/http mends in silence what must be refused.
package wire

import (
	"net"
	"net/http"
)

// Limits of a connection. All are positive.
type Limits struct {
	HeaderBytes, HeaderFields, URLBytes, Connections int
}

// Listen returns a listener whose connections refuse, each in its turn among
// those that are pipelined, the requests that HTTP/1.1 does not allow, or that
// are beyond the limits. Such a request reaches the handler in another form, see Refused.
func Listen(l net.Listener, limits Limits) net.Listener { panic("to be written") }

// Refusal is what is wrong with a request.
type Refusal struct {
	Status int    // 400, 414, 417, 431, 501, 505
	Detail string // for the client and the log; nothing that it sent
}

// Refused reports whether the connection has refused the request. Its answer
// must be the last of its connection.
func Refused(r *http.Request) (Refusal, bool) { panic("to be written") }
