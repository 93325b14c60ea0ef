package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"
)

// The contestants, as the tables name them.
const (
	nameDirect       = "no proxy"
	nameNginx        = "nginx, two workers"
	nameHAProxy      = "HAProxy"
	nameCaddy        = "Caddy"
	nameReverseProxy = "httputil.ReverseProxy, tuned"
	nameBare         = "a bare handler on http.Transport"
	nameTransport    = "sentinel, all through http.Transport"
	nameSentinel     = "sentinel"
)

// What this program is when it is started with one of these words.
const (
	kindBackend      = "backend"
	kindReverseProxy = "reverseproxy"
	kindBare         = "bare"
)

// contestant is a proxy that runs.
type contestant struct {
	*process
	balances bool // it has several backends, and chooses
	limits   bool // it has quotas
	version  string
}

// stage is what one configuration is filled in with.
type stage struct {
	Dir                     string
	Root                    bool
	Listen, Port, Admin     string
	Fast, Fast2, Slow, Dead string
	Timeout                 time.Duration
}

//go:embed configs
var configs embed.FS

// write fills in a configuration, for a program that reads it from the path that
// is returned.
func (s stage) write(name string) (path string, err error) {
	t, err := template.ParseFS(configs, "configs/"+name)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, s); err != nil {
		return "", err
	}
	path = filepath.Join(s.Dir, name)
	next := path + ".next" // whoever reads it meanwhile sees the old one or the new one
	if err := os.WriteFile(next, text.Bytes(), 0o600); err != nil {
		return "", err
	}
	return path, os.Rename(next, path)
}

// startAll starts the backend and every proxy that is there.
func (l *lab) startAll() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	free, err := freeAddresses(4)
	if err != nil {
		return err
	}
	l.stage = stage{
		Dir: l.dir, Root: os.Getuid() == 0, Timeout: 30 * time.Second,
		Fast: free[0], Fast2: free[1], Slow: free[2], Dead: free[3],
	}
	backend, err := start(l.ctx, nameDirect, free[0], self, kindBackend, free[0], free[1], free[2])
	if err != nil {
		return err
	}
	l.contestants = []*contestant{{process: backend}}
	for _, begin := range []func(self string, s stage) (*contestant, error){
		l.startNginx, l.startHAProxy, l.startCaddy, l.startReverseProxy, l.startBare, l.startTransport, l.startSentinel,
	} {
		addresses, err := freeAddresses(2)
		if err != nil {
			return err
		}
		s := l.stage
		s.Listen, s.Admin = addresses[0], addresses[1]
		if _, s.Port, err = net.SplitHostPort(s.Listen); err != nil {
			return err
		}
		c, err := begin(self, s)
		if err != nil {
			return err
		}
		if c != nil {
			l.contestants = append(l.contestants, c)
		}
	}
	return nil
}

// find looks for a program. If it is not there that is noted.
func (l *lab) find(program, name string) (path string, ok bool) {
	path, err := exec.LookPath(program)
	if err != nil {
		if gopath, err := exec.CommandContext(l.ctx, "go", "env", "GOPATH").Output(); err == nil {
			path, err = exec.LookPath(filepath.Join(strings.TrimSpace(string(gopath)), "bin", program))
			if err == nil {
				return path, true
			}
		}
		l.absent = append(l.absent, name)
		return "", false
	}
	return path, true
}

func (l *lab) startNginx(_ string, s stage) (*contestant, error) {
	program, ok := l.find("nginx", nameNginx)
	if !ok {
		return nil, nil
	}
	file, err := s.write("nginx.conf")
	if err != nil {
		return nil, err
	}
	p, err := start(l.ctx, nameNginx, s.Listen, program, "-p", s.Dir, "-e", "stderr", "-c", file)
	return &contestant{process: p, balances: true, limits: true, version: "nginx " + versionOf(l.ctx, program, "-v")}, err
}

func (l *lab) startHAProxy(_ string, s stage) (*contestant, error) {
	program, ok := l.find("haproxy", nameHAProxy)
	if !ok {
		return nil, nil
	}
	file, err := s.write("haproxy.cfg")
	if err != nil {
		return nil, err
	}
	p, err := start(l.ctx, nameHAProxy, s.Listen, program, "-db", "-f", file)
	return &contestant{process: p, balances: true, limits: true, version: "HAProxy " + versionOf(l.ctx, program, "-v")}, err
}

func (l *lab) startCaddy(_ string, s stage) (*contestant, error) {
	program, ok := l.find("caddy", nameCaddy)
	if !ok {
		return nil, nil
	}
	file, err := s.write("Caddyfile")
	if err != nil {
		return nil, err
	}
	p, err := start(l.ctx, nameCaddy, s.Listen, program, "run", "--adapter", "caddyfile", "--config", file)
	return &contestant{process: p, balances: true, version: "Caddy " + moduleVersionOf(program)}, err
}

func (l *lab) startReverseProxy(self string, s stage) (*contestant, error) {
	p, err := start(l.ctx, nameReverseProxy, s.Listen, self, kindReverseProxy, s.Listen, s.Fast)
	return &contestant{process: p}, err
}

func (l *lab) startBare(self string, s stage) (*contestant, error) {
	p, err := start(l.ctx, nameBare, s.Listen, self, kindBare, s.Listen, s.Fast)
	return &contestant{process: p}, err
}

// buildSentinel builds the program, with these flags.
func (l *lab) buildSentinel(s stage, flags ...string) (program string, err error) {
	program = filepath.Join(s.Dir, "sentinel")
	args := append(append([]string{"build"}, flags...), "-o", program, "github.com/sentinelgo/sentinel/edge/cmd/sentinel")
	if out, err := exec.CommandContext(l.ctx, "go", args...).CombinedOutput(); err != nil { // #nosec G204 -- our own words
		return "", fmt.Errorf("sentinel is not built: %w\n%s", err, out)
	}
	return program, nil
}

// startTransport starts a sentinel that leaves all of its requests to http.Transport,
// which shows what its own client is good for.
func (l *lab) startTransport(_ string, s stage) (*contestant, error) {
	s.Dir = filepath.Join(s.Dir, "transport")
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		return nil, err
	}
	program, err := l.buildSentinel(s, "-tags", "sentinel_transport")
	if err != nil {
		return nil, err
	}
	file, err := s.write("sentinel.yaml")
	if err != nil {
		return nil, err
	}
	p, err := start(l.ctx, nameTransport, s.Listen, program, "run", "-config", file)
	return &contestant{process: p}, err
}

func (l *lab) startSentinel(_ string, s stage) (*contestant, error) {
	program := l.sentinel
	if program == "" {
		var err error
		if program, err = l.buildSentinel(s); err != nil {
			return nil, err
		}
	}
	file, err := s.write("sentinel.yaml")
	if err != nil {
		return nil, err
	}
	l.stage = s // for who changes the file
	args := []string{program, "run", "-config", file}
	if l.pprof != "" {
		args = append(args, "-pprof", l.pprof)
	}
	p, err := start(l.ctx, nameSentinel, s.Listen, args...)
	return &contestant{process: p, balances: true, limits: true}, err
}

var digits = regexp.MustCompile(`\d+(\.\d+)+`)

func versionOf(ctx context.Context, program, flag string) string {
	out, _ := exec.CommandContext(ctx, program, flag).CombinedOutput() // #nosec G204 -- our own words; without an answer it is unknown
	if v := digits.Find(out); v != nil {
		return string(v)
	}
	return "of unknown version"
}

// moduleVersionOf is that of a program that `go install` has built.
func moduleVersionOf(program string) string {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "of unknown version"
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}

// stopAll stops the proxies, and the backend last.
func (l *lab) stopAll() {
	for _, c := range slices.Backward(l.contestants) {
		c.stop()
	}
}

// named is a contestant by its name; nil if it is absent.
func (l *lab) named(name string) *contestant {
	i := slices.IndexFunc(l.contestants, func(c *contestant) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return l.contestants[i]
}

// those are the contestants that can do something.
func (l *lab) those(can func(*contestant) bool) []*contestant {
	var some []*contestant
	for _, c := range l.contestants {
		if can(c) {
			some = append(some, c)
		}
	}
	return some
}
