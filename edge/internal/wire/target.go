package wire

import (
	"bytes"
	"net/netip"
	"strconv"
)

// validTarget reports whether a target has one of the four forms of RFC 9112, 3.2,
// as the method allows it. A path has only whole percent escapes. A query is its
// receiver's: whatever can stand on the line may stand there.
//
// The absolute form may name another host than Host. By RFC 9112, 3.2.2, it is the
// one that counts, and net/http puts it in the other's place.
func validTarget(method, target []byte) bool {
	if len(target) == 0 || !all(target, inURI) {
		return false
	}
	if string(method) == "CONNECT" {
		return validAuthority(target, true)
	}
	switch target[0] {
	case '/':
		return validPath(target)
	case '*':
		return len(target) == 1 && string(method) == "OPTIONS"
	}
	rest, ok := cutScheme(target)
	if !ok {
		return false
	}
	path := bytes.IndexAny(rest, "/?")
	if path < 0 {
		path = len(rest)
	}
	return validAuthority(rest[:path], false) && validPath(rest[path:])
}

// targetFault says what is wrong with a target that is not valid.
func targetFault(target []byte) fault {
	path, _, _ := bytes.Cut(target, []byte{'?'})
	if len(path) > 0 && path[0] == '/' && (!all(path, inURI) || !validPath(path)) {
		return badPath
	}
	return badTarget
}

// cutScheme cuts http:// or https:// off.
func cutScheme(target []byte) ([]byte, bool) {
	for _, scheme := range [...]string{"http://", "https://"} {
		if n := len(scheme); len(target) > n && is(target[:n], scheme) {
			return target[n:], true
		}
	}
	return nil, false
}

// validPath reports whether the percent escapes before the query are whole.
func validPath(b []byte) bool {
	path, _, _ := bytes.Cut(b, []byte{'?'})
	for {
		i := bytes.IndexByte(path, '%')
		if i < 0 {
			return true
		}
		if len(path) < i+3 {
			return false
		}
		_, high := hexDigit(path[i+1])
		_, low := hexDigit(path[i+2])
		if !high || !low {
			return false
		}
		path = path[i+3:]
	}
}

// validAuthority reports whether b is a host, and maybe a port, which CONNECT
// needs. A host is an address or a name of letters, digits and -._~, which all
// are: RFC 3986 allows more, that no name in use has and that others read
// differently. User information is refused, as RFC 9110, 4.2.4, says.
func validAuthority(b []byte, port bool) bool {
	if len(b) == 0 {
		return false
	}
	if b[0] != '[' {
		host, number, has := bytes.Cut(b, []byte{':'})
		return len(host) > 0 && all(host, inRegName) && validPort(number, has, port)
	}
	host, rest, ok := bytes.Cut(b[1:], []byte{']'})
	if !ok || len(rest) > 0 && rest[0] != ':' || len(host) > 45 {
		return false
	}
	addr, err := netip.ParseAddr(string(host))
	if err != nil || !addr.Is6() || addr.Zone() != "" {
		return false
	}
	return validPort(bytes.TrimPrefix(rest, []byte{':'}), len(rest) > 0, port)
}

// validPort reports whether a port that is there, after a colon, is one. RFC 3986
// allows it to be empty.
func validPort(number []byte, there, needed bool) bool {
	if len(number) == 0 {
		return !needed
	}
	if !there || len(number) > 5 {
		return false
	}
	for _, c := range number {
		if c < '0' || c > '9' {
			return false
		}
	}
	n, err := strconv.Atoi(string(number))
	return err == nil && n <= 65535
}
