package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// The address and the quota of README's program.
const (
	address  = "127.0.0.1:8080"
	capacity = 10
	jwtKey   = "release-check-key-0123456789-abcdef"
)

// try starts README's program and uses it as README says: ten exports at once,
// and the eleventh is told when to come back. Its policy file names a Redis;
// for this it gets the embedded store.
func (u *user) try(app string) error {
	name := filepath.Join(u.dir, "sentinel.json")
	policy, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	policy = bytes.Replace(policy, []byte("redis://localhost:6379/0"), []byte("memory://"), 1)
	if err := os.WriteFile(name, policy, 0o644); err != nil {
		return err
	}

	cmd := exec.Command(app)
	cmd.Dir, cmd.Env = u.dir, append(u.env, "JWT_SECRET="+jwtKey)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return err
	}
	err = use()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		return fmt.Errorf("README's program: %w\n%s", err, &output)
	}
	log.Printf("README's program answered 401 to a stranger, 200 to %d requests and 429 to the next", capacity)
	return nil
}

func use() error {
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": "acme", "exp": time.Now().Add(time.Minute).Unix(),
	}).SignedString([]byte(jwtKey))
	if err != nil {
		return err
	}
	status, _, err := postExport("")
	if err != nil {
		return err
	}
	if status != http.StatusUnauthorized {
		return fmt.Errorf("without a token: status %d, want 401", status)
	}
	for i := range capacity + 1 {
		status, retry, err := postExport(token)
		if err != nil {
			return err
		}
		want := http.StatusOK
		if i == capacity {
			want = http.StatusTooManyRequests
		}
		if status != want || (status == http.StatusTooManyRequests) != (retry != "") {
			return fmt.Errorf("request %d: status %d, Retry-After %q, want %d", i+1, status, retry, want)
		}
	}
	return nil
}

// postExport posts one export, and waits for a server that is still starting.
func postExport(token string) (status int, retryAfter string, err error) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		req, err := http.NewRequest(http.MethodPost, "http://"+address+"/export", strings.NewReader(""))
		if err != nil {
			return 0, "", err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			return resp.StatusCode, resp.Header.Get("Retry-After"), nil
		}
		if time.Now().After(end) {
			return 0, "", errors.Join(errors.New("the program does not answer on "+address), err)
		}
	}
}
