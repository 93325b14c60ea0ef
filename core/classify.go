package sentinel

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// classify turns an error of go-redis into a failure. What it keeps as detail
// holds no address and no credential: only the first word of an error reply,
// or a phrase of our own.
func classify(err error) *storeFailure {
	var reply redis.Error
	var netErr net.Error
	var dial *dialError
	switch {
	case errors.As(err, &dial):
		return &storeFailure{kind: dial.kind, detail: dial.detail}
	case isReplica(err):
		return &storeFailure{kind: kindConnection, replica: true, detail: "Redis answered " + errorCodeOf(err) + ": it is no master"}
	case errors.As(err, &reply):
		if f := classifyCluster(reply.Error()); f != nil {
			return f
		}
		return &storeFailure{kind: kindErrorReply, detail: "Redis answered " + errorCode(reply.Error())}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, redis.ErrPoolTimeout), errors.As(err, &netErr) && netErr.Timeout():
		return &storeFailure{kind: kindTimeout, detail: "no answer in time"}
	case strings.HasPrefix(err.Error(), "redis: "):
		// go-redis could not make sense of the bytes that came.
		return &storeFailure{kind: kindBadReply, detail: "an answer of the wrong shape"}
	default:
		return &storeFailure{kind: kindConnection, detail: plainError(err)}
	}
}

// dialError is a dial that failed, without the address: go-redis prints it
// through its global logger.
type dialError struct {
	kind   failureKind
	detail string
}

func (e *dialError) Error() string { return e.detail }

func newDialError(err error) *dialError {
	f := classify(err)
	return &dialError{kind: f.kind, detail: f.detail}
}

// isDialError reports whether err came before anything could be sent.
func isDialError(err error) bool {
	var dial *dialError
	var op *net.OpError
	return errors.As(err, &dial) || errors.As(err, &op) && op.Op == "dial"
}

// plainError says what went wrong with a connection without the address that
// net.OpError and net.DNSError would add.
func plainError(err error) string {
	var dns *net.DNSError
	var errno syscall.Errno
	var unknownCA x509.UnknownAuthorityError
	var wrongName x509.HostnameError
	var invalid x509.CertificateInvalidError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return "the host name does not resolve"
	case errors.As(err, &wrongName):
		return "the server's certificate is for another name"
	case errors.As(err, &unknownCA):
		return "the server's certificate is signed by an unknown authority"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired or is not yet valid"
	case errors.As(err, &op) && op.Op == "remote error": // an alert, of which there is a fixed number
		return "the server refused TLS: " + op.Err.Error()
	case errors.As(err, &invalid):
		return "TLS handshake failed"
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return "the connection was closed"
	default:
		return "the connection failed"
	}
}

// errorCode is the first word of an error reply where it is a code like OOM or
// WRONGPASS, else ERR: the rest may quote what was sent.
func errorCode(text string) string {
	code, _, _ := strings.Cut(text, " ")
	if code == "" || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return "ERR"
	}
	return code
}

// lacksPermission reports whether Redis refused a command to this user, also
// one within the script, where only the words say so.
func lacksPermission(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := reply.Error()
	return errorCode(text) == "NOPERM" || strings.Contains(text, "NOPERM") ||
		strings.Contains(text, "The user executing the script can't") || strings.Contains(text, "ACL failure in script")
}

// isReplica reports whether a server has answered that it is no master, or no
// longer: the connection leads to the wrong place. Redis 6 says so of a command
// within the script in the middle of a longer text.
func isReplica(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := reply.Error()
	code := errorCode(text)
	return code == "READONLY" || code == "MASTERDOWN" || strings.Contains(text, ": -READONLY ")
}

// errorCodeOf is errorCode of an error reply, "" of any other error.
func errorCodeOf(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	return errorCode(reply.Error())
}

// unfit returns what to change on a Redis that answers and is wrong: it will
// not mend itself, and to wait for it would hide the mistake. "" means that
// the error may pass by itself: loading, a failover, too many clients.
// db is the database of redis_url.
// clustered: it is a node of a cluster.
func unfit(err error, db int, clustered bool) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	text := reply.Error()
	rights := "~sentinel:* +evalsha +script|load +get +set +time +config|get +info"
	if db != 0 {
		rights += " +select"
	}
	if clustered {
		rights += clusterRights
	}
	switch code := errorCode(text); {
	case code == "WRONGPASS", strings.Contains(text, "invalid password"),
		strings.Contains(text, "without any password configured"),
		strings.Contains(text, "no password is set"):
		return "Redis refuses the user name or password of redis_url; correct them, or set them with: ACL SETUSER <user> on '><password>'"
	case code == "NOAUTH":
		return "Redis demands a password and redis_url has none; write redis://<user>:<password>@<host>:<port>/<db>"
	case lacksPermission(err):
		return "the Redis user lacks a permission; grant what Sentinel needs with: ACL SETUSER <user> " + rights
	case strings.Contains(text, "DB index"):
		return "redis_url names a database that this Redis does not have; use /0"
	case strings.Contains(text, "unknown command"):
		return "this server lacks a command that Sentinel needs (EVALSHA, SCRIPT LOAD); use Redis 6.0 or newer, or Valkey"
	default:
		return ""
	}
}
