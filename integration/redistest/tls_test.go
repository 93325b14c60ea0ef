package redistest

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestTLSWithClientCertificates(t *testing.T) {
	t.Parallel()
	ca := NewCA(t)
	_, addr := StartTLS(t, ca, true)
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		t.Fatal("the authority's file holds no certificate")
	}
	ping := func(certs ...tls.Certificate) error {
		c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, TLSConfig: &tls.Config{RootCAs: pool, Certificates: certs}})
		defer c.Close()
		return c.Ping(t.Context()).Err()
	}
	cert, key := ca.Issue(t, "client", time.Hour)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := ping(pair); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if err := ping(); err == nil {
		t.Error("without a certificate the server answers")
	}
	cert, key = NewCA(t).Issue(t, "stranger", time.Hour)
	if pair, err = tls.LoadX509KeyPair(cert, key); err != nil {
		t.Fatal(err)
	}
	if err := ping(pair); err == nil {
		t.Error("the certificate of a stranger is good enough")
	}
}
