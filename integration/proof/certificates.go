package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// writeCertificates writes to dir an authority, ca, and three certificates of
// it, each with its key: good for localhost, one for another name, and one that
// has expired.
func writeCertificates(dir string) error {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "proof"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := writeCertificate(dir, "ca", authority, authority, nil)
	if err != nil {
		return err
	}
	server := func(serial int64, host string, until time.Duration) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(until),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
	}
	for name, c := range map[string]*x509.Certificate{
		"good":    server(2, "localhost", 24*time.Hour),
		"wrong":   server(3, "another.example", 24*time.Hour),
		"expired": server(4, "localhost", -time.Minute),
	} {
		if _, err := writeCertificate(dir, name, c, authority, key); err != nil {
			return err
		}
	}
	return nil
}

// writeCertificate makes a key, has parent's key sign c for it, or itself where
// that is nil, and writes both files.
func writeCertificate(dir, name string, c, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if parentKey == nil {
		parentKey = key
	}
	signed, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, name)
	return key, errors.Join(
		os.WriteFile(file+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), 0o600),
		os.WriteFile(file+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600),
	)
}

// unusedPort is a port that was free a moment ago.
func unusedPort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return ln.Addr().(*net.TCPAddr).Port, ln.Close()
}
