// Package mtls is how nodes and the control plane know each other: each shows a
// certificate, and each holds the other's to one authority.
package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Files are the paths of PEM files. They are read at every handshake, so that new
// ones in their place are used without a restart.
type Files struct {
	CA   string // whose certificates the other side may have
	Cert string // our own
	Key  string
}

// None reports whether there is to be no TLS.
func (f Files) None() bool { return f == Files{} }

// Check says what is wrong with the files, now.
func (f Files) Check() error {
	if f.CA == "" || f.Cert == "" || f.Key == "" {
		return errors.New("mtls: all of authority, certificate and key are needed")
	}
	_, _, err := f.load()
	return err
}

func (f Files) load() (tls.Certificate, *x509.CertPool, error) {
	own, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return own, nil, fmt.Errorf("mtls: %w", err)
	}
	text, err := os.ReadFile(f.CA)
	if err != nil {
		return own, nil, fmt.Errorf("mtls: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return own, nil, fmt.Errorf("mtls: %s has no certificate", f.CA)
	}
	return own, pool, nil
}

// Server is for who listens: a client without a good certificate gets no further
// than the handshake. Without files there is no TLS.
func (f Files) Server() credentials.TransportCredentials {
	if f.None() {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		own, pool, err := f.load()
		if err != nil {
			return nil, err
		}
		return &tls.Config{
			MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
			Certificates: []tls.Certificate{own}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		}, nil
	}})
}

// Client is for who connects, once: the next connection takes another one. The
// server's certificate must be for the host of the address.
func (f Files) Client() (credentials.TransportCredentials, error) {
	if f.None() {
		return insecure.NewCredentials(), nil
	}
	own, pool, err := f.load()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, RootCAs: pool}), nil
}
