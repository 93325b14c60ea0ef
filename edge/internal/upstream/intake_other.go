//go:build !unix

package upstream

import "net"

// intake is not known here: what comes before a request, but is read only behind it, is
// taken for its response.
type intake struct{ net.Conn }

func taken(dial dialer) dialer { return dial }

func (*intake) silent() bool { return true }
