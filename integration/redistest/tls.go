package redistest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is a certificate authority that one test alone trusts.
type CA struct {
	// File is the authority's certificate, as PEM.
	File string

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes an authority.
func NewCA(t testing.TB) *CA {
	t.Helper()
	dir, err := os.MkdirTemp("", "sentinel-ca-") //nolint:usetesting // the proof is no test and has no TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a test may have made files there its own
	ca := &CA{dir: dir, File: filepath.Join(dir, "ca.pem")}
	ca.key = newKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "the authority of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := ca.sign(t, template, template, ca.key)
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, ca.File, "CERTIFICATE", der)
	return ca
}

// Issue makes a certificate, for the hosts if it is a server's, that ends after
// life, and returns the files of it and of its key. Of one name the last counts.
func (ca *CA) Issue(t testing.TB, name string, life time.Duration, hosts ...string) (certFile, keyFile string) {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der := ca.sign(t, template, ca.cert, key)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(ca.dir, name+".pem"), filepath.Join(ca.dir, name+".key")
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", private)
	return certFile, keyFile
}

// sign returns the certificate of key's owner, signed by the authority.
func (ca *CA) sign(t testing.TB, template, parent *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TLSFlags are what has a server take TLS beside plain connections, on the port,
// with a certificate for the hosts. With mutual it takes only clients that have
// one of the same authority.
func (ca *CA) TLSFlags(t testing.TB, port string, mutual bool, hosts ...string) []string {
	t.Helper()
	cert, key := ca.Issue(t, "server-"+port, time.Hour, hosts...)
	clients := "no"
	if mutual {
		clients = "yes"
	}
	return []string{
		"--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-ca-cert-file", ca.File, "--tls-auth-clients", clients,
	}
}

// StartTLS starts a process that takes TLS at the address which it returns, with
// a certificate for 127.0.0.1 and localhost, and plain connections at its own.
func StartTLS(t testing.TB, ca *CA, mutual bool, flags ...string) (s *Server, addr string) {
	t.Helper()
	p, err := newProcesses()
	if err != nil {
		t.Fatal(err)
	}
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	flags = append(ca.TLSFlags(t, port, mutual, "127.0.0.1", "localhost"), flags...)
	inst, err := p.start(ctx, flagsFor(flags))
	if err != nil {
		t.Fatal(err)
	}
	s = &Server{t: t, inst: inst}
	t.Cleanup(func() { s.do("remove", inst.remove) })
	return s, net.JoinHostPort("127.0.0.1", port)
}
