package sentinel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"strings"
)

// tlsSettings is what redis_url says about TLS. The files are read for each
// connection, which are few, so that a renewed certificate counts without a
// restart.
type tlsSettings struct {
	caFile            string // "" for the authorities that the system trusts
	certFile, keyFile string // of the client; "" for none
	serverName        string // that the certificate is for; "" for the host dialled
	skipVerify        bool
	// broken is what could not be read of the URL.
	broken string
}

var tlsParameters = []string{"ca_file", "cert_file", "key_file", "server_name", "skip_verify"}

// read reads a parameter, and reports whether it is one for TLS.
func (s *tlsSettings) read(name, value string) bool {
	switch name {
	case "ca_file":
		s.caFile = s.path(name, value)
	case "cert_file":
		s.certFile = s.path(name, value)
	case "key_file":
		s.keyFile = s.path(name, value)
	case "server_name":
		s.serverName = value
		if value == "" || strings.ContainsAny(value, " /:@") {
			s.broken = "server_name must be the host name or address that the server's certificate is for, without a port"
		}
	case "skip_verify":
		s.skipVerify = value == "true"
		if value != "true" && value != "false" {
			s.broken = "skip_verify must be true or false"
		}
	default:
		return false
	}
	return true
}

func (s *tlsSettings) path(name, value string) string {
	if !filepath.IsAbs(value) {
		s.broken = name + " must be an absolute path of a file"
	}
	return value
}

// fault returns what is wrong with the parameters together, "" for nothing.
func (s *tlsSettings) fault() string {
	switch {
	case s.broken != "":
		return s.broken
	case (s.certFile == "") != (s.keyFile == ""):
		return "names one of cert_file and key_file; a client certificate needs both"
	case s.skipVerify && (s.caFile != "" || s.serverName != ""):
		return "has skip_verify=true, with which ca_file and server_name do nothing; remove either"
	}
	return ""
}

// config reads the files for one connection to host. Its errors name the
// parameter and not the path, which is a piece of redis_url.
func (s *tlsSettings) config(host string) (*tls.Config, error) {
	c := &tls.Config{
		ServerName:         host,
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: s.skipVerify, //nolint:gosec // On demand; it is warned of at each start.
	}
	if s.serverName != "" {
		c.ServerName = s.serverName
	}
	if s.caFile != "" {
		pem, err := readFile(s.caFile, maxSecretFileBytes)
		if err != nil {
			return nil, &dialError{kind: kindConnection, detail: "ca_file cannot be read: " + reasonOf(err)}
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &dialError{kind: kindConnection, detail: "ca_file holds no certificate; it must be PEM"}
		}
	}
	if s.certFile == "" {
		return c, nil
	}
	cert, err := readFile(s.certFile, maxSecretFileBytes)
	if err != nil {
		return nil, &dialError{kind: kindConnection, detail: "cert_file cannot be read: " + reasonOf(err)}
	}
	key, err := readFile(s.keyFile, maxSecretFileBytes)
	if err != nil {
		return nil, &dialError{kind: kindConnection, detail: "key_file cannot be read: " + reasonOf(err)}
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &dialError{kind: kindConnection, detail: "cert_file and key_file are no pair of PEM files"}
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// check reads the files once, so that a wrong path is told at the start.
func (t redisTarget) check() error {
	if t.tls == nil {
		return nil
	}
	if _, err := t.tls.config(""); err != nil {
		return fault{path: "app.redis_url", text: err.Error()}
	}
	return nil
}

// dial opens a connection to addr, TLS included.
func (t redisTarget) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil || t.tls == nil {
		return conn, err
	}
	host, _, _ := net.SplitHostPort(addr) // it was dialled
	config, err := t.tls.config(host)
	if err == nil {
		encrypted := tls.Client(conn, config)
		if err = encrypted.HandshakeContext(ctx); err == nil {
			return encrypted, nil
		}
	}
	_ = conn.Close()
	return nil, err
}
