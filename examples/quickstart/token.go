package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// minter makes tokens that this server accepts. It stands in for the service
// that signs your users in, so that the demonstration needs nothing else. Never
// put such a handler into a real service: whoever reaches it is any tenant.
type minter struct {
	method jwt.SigningMethod
	key    []byte
}

// newMinter takes the key from a configuration that has been loaded, and so
// checked, before: a limiter shows its secrets to nobody. file is the
// configuration's path, "" for the embedded one.
func newMinter(data []byte, file string) (*minter, error) {
	var c struct {
		App struct {
			Key        string   `json:"jwt_secret"`
			KeyFile    string   `json:"jwt_secret_file"`
			Algorithms []string `json:"jwt_algorithm_allowlist"`
		} `json:"app"`
	}
	// The decoder's error could quote a piece of the file.
	if json.Unmarshal(data, &c) != nil {
		return nil, errors.New("quickstart: the configuration cannot be read again")
	}
	m := &minter{method: jwt.SigningMethodHS256}
	if len(c.App.Algorithms) > 0 {
		m.method = jwt.GetSigningMethod(c.App.Algorithms[0])
	}
	key := c.App.Key
	switch {
	case c.App.KeyFile != "":
		path := c.App.KeyFile
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(file), path)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, errors.New("quickstart: app.jwt_secret_file cannot be read again")
		}
		key = strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	case strings.HasPrefix(key, "${") && strings.HasSuffix(key, "}"):
		key = os.Getenv(key[2 : len(key)-1])
	}
	m.key = []byte(key)
	return m, nil
}

// mint returns a token for a tenant that is valid for ttl.
func (m *minter) mint(tenant string, ttl time.Duration) (string, error) {
	now := time.Now()
	return jwt.NewWithClaims(m.method, jwt.MapClaims{
		"sub": tenant, "iat": now.Unix(), "exp": now.Add(ttl).Unix(),
	}).SignedString(m.key)
}

const (
	defaultTTL = time.Minute
	maxTTL     = 24 * time.Hour

	maxTenantBytes = 1 << 10 // a limiter takes no longer ones
)

// ServeHTTP answers GET /token?tenant=acme&ttl=60, ttl in seconds.
func (m *minter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tenant := r.FormValue("tenant")
	if strings.TrimSpace(tenant) == "" {
		badRequest(w, "tenant: required, as in /token?tenant=acme&ttl=60")
		return
	}
	if len(tenant) > maxTenantBytes {
		badRequest(w, fmt.Sprintf("tenant: must be at most %d bytes", maxTenantBytes))
		return
	}
	ttl, err := parseTTL(r.FormValue("ttl"))
	if err != nil {
		badRequest(w, err.Error())
		return
	}
	token, err := m.mint(tenant, ttl)
	if err != nil {
		writeJSON(w, http.StatusInternalServerError, map[string]string{"error": "the token cannot be signed"})
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Token     string `json:"token"`
		Tenant    string `json:"tenant"`
		ExpiresIn int64  `json:"expires_in"`
		Note      string `json:"note"`
	}{token, tenant, int64(ttl.Seconds()), "for this demo only: a real service mints no tokens for whoever asks"})
}

func parseTTL(text string) (time.Duration, error) {
	if text == "" {
		return defaultTTL, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	ttl := time.Duration(n) * time.Second
	if err != nil || ttl < time.Second || ttl > maxTTL {
		return 0, fmt.Errorf("ttl: must be 1 to %d, in seconds", int(maxTTL.Seconds()))
	}
	return ttl, nil
}

func badRequest(w http.ResponseWriter, what string) {
	writeJSON(w, http.StatusBadRequest, map[string]string{"error": what})
}
