package main

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/integration/redistest"
)

// serverFaults are those of the server itself, and of a client's pool.
func serverFaults() []*fault {
	flushing := &repeated{every: 100 * time.Millisecond, do: func(a *arena) { a.do("SCRIPT", "FLUSH") }}
	return []*fault{
		{
			name: "kill -9, back at once with an empty script cache", begin: func(a *arena) { a.server.Kill(); a.server.Restart() }, end: func(*arena) {},
			effect: either, lossy: true, forgets: true,
		},
		{name: "SCRIPT FLUSH every 100 ms", begin: flushing.begin, end: flushing.end, effect: works},
		{
			name: "maxmemory reached (OOM)", begin: func(a *arena) { a.do("CONFIG", "SET", "maxmemory", "1") },
			end:    func(a *arena) { a.do("CONFIG", "SET", "maxmemory", "256mb") },
			reason: connectionReason, mixed: anew, probe: 1, core: true,
		},
		{
			name: "READONLY", begin: func(a *arena) { a.do("REPLICAOF", "127.0.0.1", "1") },
			end:    func(a *arena) { a.do("REPLICAOF", "NO", "ONE") },
			reason: connectionReason, mixed: anew, rehearsed: true,
		},
		{
			name: "LOADING", flags: []string{"--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"},
			begin: load, end: func(a *arena) { a.do("CONFIG", "SET", "key-load-delay", "0") },
			reason: connectionReason, mixed: anew, endsLate: true,
		},
		{
			name: "BUSY: a script that does not end", flags: []string{"--busy-reply-threshold", "1"},
			begin: func(a *arena) { a.aside("EVAL", "while true do end", "0") },
			end:   func(a *arena) { a.do("SCRIPT", "KILL") },
			// It keeps a processor busy, and Redis may still run what it was sent.
			reason: connectionReason, mixed: anew, lossy: true, brief: true,
		},
		{
			name:  "maxclients reached",
			begin: func(a *arena) { a.do("CONFIG", "SET", "maxclients", "1"); a.kick() },
			end:   func(a *arena) { a.do("CONFIG", "SET", "maxclients", "10000") },
			// Those who are there are thrown out, in the middle of a reply.
			reason: connectionReason, mixed: anew, lossy: true, endsLate: true,
		},
		{
			name: "pool exhausted by the application", build: func(a *arena) { a.pool = 4; a.serve(); a.pave() },
			begin: func(a *arena) { a.hog(true) }, end: func(a *arena) { a.hog(false) },
			effect: either, lossy: true,
		},
	}
}

// kick throws out everybody but the proof itself.
func (a *arena) kick() { a.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") }

// aside runs a command that does not return while the fault is on.
func (a *arena) aside(args ...any) {
	c := redis.NewClient(&redis.Options{Addr: a.server.Addr(), PoolSize: 1, MaxRetries: -1, ReadTimeout: -1})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Do(context.Background(), args...).Err() // ends as the fault does
	}()
	a.Cleanup(func() { _ = c.Close(); <-done })
	time.Sleep(100 * time.Millisecond)
}

// load makes the server load its data anew, slowly.
func load(a *arena) {
	// For 100 s, and it answers some times in each budget.
	a.do("DEBUG", "POPULATE", "400000", "filler", "20")
	a.do("CONFIG", "SET", "key-load-delay", "250") // microseconds
	a.aside("DEBUG", "RELOAD")
}

// repeated does something again and again while the fault is on.
type repeated struct {
	every time.Duration
	do    func(*arena)
	stop  chan struct{}
	done  sync.WaitGroup
}

func (r *repeated) begin(a *arena) {
	r.stop = make(chan struct{})
	r.done.Go(func() {
		tick := time.NewTicker(r.every)
		defer tick.Stop()
		for {
			r.do(a)
			select {
			case <-tick.C:
			case <-r.stop:
				return
			case <-a.ctx.Done():
				return
			}
		}
	})
}

func (r *repeated) end(*arena) {
	close(r.stop)
	r.done.Wait()
}

// hog has the application use its pools up, or let go.
func (a *arena) hog(on bool) {
	a.all(func(l lane, _ *sight) {
		kinds := []string{liveGroup, loneGroup, warmGroup, closingGroup}
		if !on {
			kinds = kinds[:1] // the others are gone
		}
		for _, kind := range kinds {
			held := 0
			a.call(l, "Hog", Hog{Group: l.group(kind), On: on}, &held)
			if on && held == 0 {
				a.Errorf("%s: the pool of %s is not exhausted", a.fault.name, l.group(kind))
			}
		}
	})
}

// The user of the service where it has one, and what docs/operations.md gives
// it.
const (
	appUser     = "app"
	appPassword = "proof-password-of-the-service"
)

var documentedRights = []any{"~sentinel:*", "+evalsha", "+script|load", "+get", "+set", "+time", "+info"}

// buildUser makes a server with that user.
func buildUser(a *arena) {
	a.serve()
	a.pave()
	a.do(append([]any{"ACL", "SETUSER", appUser, "reset", "on", ">" + appPassword}, documentedRights...)...)
	a.user(appUser, appPassword)
}

func setUser(rules ...any) func(*arena) {
	return func(a *arena) { a.do(append([]any{"ACL", "SETUSER", appUser}, rules...)...) }
}

func kickUser(a *arena) { a.do("CLIENT", "KILL", "USER", appUser) }

// rightsFaults are those of passwords and permissions.
func rightsFaults() []*fault {
	lacks := func(name, without, with string) *fault {
		return &fault{
			name: "ACL user " + name, build: buildUser, begin: setUser(without), end: setUser(with),
			reason: connectionReason, mixed: anew, probe: 1,
		}
	}
	return []*fault{
		{
			name: "password changed", build: buildUser,
			begin:  func(a *arena) { setUser("resetpass", ">another-password")(a); kickUser(a) },
			end:    setUser("resetpass", ">"+appPassword),
			reason: connectionReason, mixed: anew, lossy: true, endsLate: true, core: true, recovers: true,
		},
		{
			name: "ACL user with what the docs list, script cache flushed", build: buildUser,
			begin: func(a *arena) { a.do("SCRIPT", "FLUSH") }, end: func(*arena) {}, effect: works, core: true,
		},
		lacks("without evalsha", "-evalsha", "+evalsha"),
		lacks("without get", "-get", "+get"),
		lacks("without set", "-set", "+set"),
		lacks("without time", "-time", "+time"),
		lacks("without the keys", "resetkeys", "~sentinel:*"),
		{
			name: "ACL user without script|load, thrown out", build: buildUser,
			begin: func(a *arena) { setUser("-script|load")(a); kickUser(a) }, end: setUser("+script|load"),
			reason: connectionReason, mixed: anew, lossy: true, endsLate: true,
		},
	}
}

// nameFaults are those of TLS and of host names.
func nameFaults() []*fault {
	badCertificate := func(name, file string) *fault {
		return &fault{
			name: name, build: buildTLS,
			begin:  func(a *arena) { a.certificate(file); a.kick() },
			end:    func(a *arena) { a.certificate("good") },
			reason: connectionReason, mixed: anew, lossy: true, endsLate: true,
		}
	}
	silent, unknown := &resolver{}, &resolver{}
	return []*fault{
		badCertificate("TLS: certificate for another name", "wrong"),
		badCertificate("TLS: certificate has expired", "expired"),
		{
			name: "host name that does not resolve any more", build: unknown.build,
			begin:  func(a *arena) { unknown.answer(nxdomain); a.each((*redistest.Proxy).DropConns) },
			end:    func(*arena) { unknown.answer(resolves) },
			reason: connectionReason, mixed: anew, lossy: true, endsLate: true,
		},
		{
			name: "name server that does not answer any more", build: silent.build,
			begin:  func(a *arena) { silent.answer(silence); a.each((*redistest.Proxy).DropConns) },
			end:    func(*arena) { silent.answer(resolves) },
			reason: timeoutReason, mixed: anew, lossy: true, endsLate: true,
		},
	}
}

// buildTLS makes a server that talks TLS, and has the service trust its issuer.
func buildTLS(a *arena) {
	dir, err := os.MkdirTemp("", "sentinel-proof-")
	a.must(err)
	a.Cleanup(func() { _ = os.RemoveAll(dir) })
	a.must(writeCertificates(dir))
	port, err := unusedPort()
	a.must(err)
	a.serve("--tls-port", strconv.Itoa(port), "--tls-auth-clients", "no",
		"--tls-cert-file", filepath.Join(dir, "good.crt"), "--tls-key-file", filepath.Join(dir, "good.key"),
		"--tls-ca-cert-file", filepath.Join(dir, "ca.crt"))
	a.env = []string{"SSL_CERT_FILE=" + filepath.Join(dir, "ca.crt")}
	a.files = dir
	address := (&url.URL{Scheme: "rediss", Host: "localhost:" + strconv.Itoa(port)}).String()
	a.url = func(seat) string { return address }
}

// certificate has the server show another certificate from now on.
func (a *arena) certificate(name string) {
	a.do("CONFIG", "SET", "tls-cert-file", filepath.Join(a.files, name+".crt"), "tls-key-file", filepath.Join(a.files, name+".key"))
}
