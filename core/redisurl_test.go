package sentinel

import (
	"reflect"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestRedisURL(t *testing.T) {
	plain, secure := redisTarget{kind: serverTarget, network: "tcp"}, &tlsSettings{}
	one := func(addr string, change func(*redisTarget)) redisTarget {
		t := plain
		t.addrs = []string{addr}
		if change != nil {
			change(&t)
		}
		return t
	}
	for url, want := range map[string]redisTarget{
		"redis://localhost:6379/0":         one("localhost:6379", nil),
		"redis://":                         one("localhost:6379", nil),
		"redis://?db=4":                    one("localhost:6379", func(t *redisTarget) { t.db = 4 }),
		"REDIS://cache":                    one("cache:6379", nil),
		"redis://:p%40ss@10.0.0.1:7000/15": one("10.0.0.1:7000", func(t *redisTarget) { t.password, t.db = "p@ss", 15 }),
		"redis://:a,b@host":                one("host:6379", func(t *redisTarget) { t.password = "a,b" }),
		"redis://app:pw@[2001:db8::1]:6380/?db=2": one("[2001:db8::1]:6380", func(t *redisTarget) {
			t.username, t.password, t.db = "app", "pw", 2
		}),
		"redis://[::1]":          one("[::1]:6379", nil),
		"unix:///run/redis.sock": one("/run/redis.sock", func(t *redisTarget) { t.network = "unix" }),
		"unix://app:pw@/run/redis.sock?db=3": one("/run/redis.sock", func(t *redisTarget) {
			t.network, t.username, t.password, t.db = "unix", "app", "pw", 3
		}),
		"rediss://redis.example.com":               one("redis.example.com:6379", func(t *redisTarget) { t.tls = secure }),
		"rediss://r.example.com?skip_verify=true":  one("r.example.com:6379", func(t *redisTarget) { t.tls = &tlsSettings{skipVerify: true} }),
		"rediss://r.example.com?skip_verify=false": one("r.example.com:6379", func(t *redisTarget) { t.tls = secure }),
		"rediss://h/1?ca_file=/etc/ca.pem&cert_file=/etc/c.pem&key_file=/etc/c.key&server_name=r.example.com": one("h:6379", func(t *redisTarget) {
			t.db = 1
			t.tls = &tlsSettings{caFile: "/etc/ca.pem", certFile: "/etc/c.pem", keyFile: "/etc/c.key", serverName: "r.example.com"}
		}),
		"redis-sentinel://:pw@s1,s2:5000,[::1]/3?master=quotas": {
			kind: failoverTarget, network: "tcp", addrs: []string{"s1:26379", "s2:5000", "[::1]:26379"},
			password: "pw", db: 3, master: "quotas",
		},
		"rediss-sentinel://app:pw@s1?master=a%2Bb&sentinel_username=look&sentinel_password=p%26w&ca_file=/ca.pem": {
			kind: failoverTarget, network: "tcp", addrs: []string{"s1:26379"}, username: "app", password: "pw",
			master: "a+b", sentinelUsername: "look", sentinelPassword: "p&w", tls: &tlsSettings{caFile: "/ca.pem"},
		},
		"redis-cluster://app:pw@n1:7000,n2:7001,n3": {
			kind: clusterTarget, network: "tcp", addrs: []string{"n1:7000", "n2:7001", "n3:6379"}, username: "app", password: "pw",
		},
		"rediss-cluster://n1/0?server_name=redis": {
			kind: clusterTarget, network: "tcp", addrs: []string{"n1:6379"}, tls: &tlsSettings{serverName: "redis"},
		},
		"memory://":                     {kind: memoryTarget, network: "tcp", memoryKeys: 1_000_000},
		"memory://?max_keys=1":          {kind: memoryTarget, network: "tcp", memoryKeys: 1},
		"memory://?max_keys=100000000":  {kind: memoryTarget, network: "tcp", memoryKeys: 100_000_000},
		"MEMORY://?max_keys=0000000042": {kind: memoryTarget, network: "tcp", memoryKeys: 42},
	} {
		got, err := App{RedisURL: NewSecret(url)}.target()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", url, got, err)
		}
	}
}

// No fault of a URL may print any piece of four characters of a password, and
// nobody knows which part of a broken URL the password is.
func TestBustedRedisURL(t *testing.T) {
	const password = "Qz7Xk9VwJ4"
	for url, reason := range map[string]string{
		"":                                      "must not be empty",
		" ":                                     "must not be empty",
		"PW":                                    "must begin with",
		"PW@host:6379":                          "must begin with",
		"PW://host":                             "must begin with",
		"http://:PW@host":                       "must begin with",
		"redis:PW":                              "must begin with",
		"redis:/PW":                             "must begin with",
		"redis://:PW@host:6379/0\n":             "holds white space",
		"redis://:PW@host:6379/0\r\n":           "holds white space",
		"redis://:PW @host":                     "holds white space",
		"redis://:PW\x00@host":                  "holds white space",
		"redis://:PW\u00e9@host":                "beyond ASCII",
		"redis://:PW\xff@host":                  "beyond ASCII",
		"redis://:PW@host?db=":                  "db must be a number",
		"redis://:PW@host:bad":                  "is not a URL",
		"redis://:PW@host:6379x/0":              "is not a URL",
		"redis://:PW@host:0":                    "port that is not 1 to 65535",
		"redis://:PW@host:65536":                "port that is not 1 to 65535",
		"redis://:PW@host:99999999999999999999": "port that is not 1 to 65535",
		"redis://:PW%crPW@host":                 "% that two hexadecimal",
		"redis://:PW%@host":                     "% that two hexadecimal",
		"redis://:PW@host/%4":                   "% that two hexadecimal",
		"redis://:PW#PW@host":                   "holds a #",
		"redis://:PW/PW@host":                   "is not a URL",
		"redis://:PW?PW@host":                   "is not a URL",
		"redis://PW/PW@host":                    "nothing but the number of a database",
		"redis://PW?PW@host":                    "query parameter that is not known",
		"redis://PW@host":                       "user name but no password",
		"redis://PW:@host":                      "user name but no password",
		"redis://[PW]:6379":                     "is not a URL",
		"redis://:PW@[::1":                      "is not a URL",
		"redis://:PW@a,b":                       "must name one host",
		"redis://:PW@a:1,b:2/0":                 "must name one host",
		"redis-cluster://:PW@":                  "must name nodes of the cluster",
		"redis-cluster://:PW@a,":                "must name nodes of the cluster",
		"redis-cluster://:PW@a,b:bad":           "is not a URL",
		"redis-cluster://:PW@a,b:0":             "port that is not 1 to 65535",
		"redis-cluster://:PW@a,b,a:6379":        "names a host twice",
		"redis-cluster://PW@a,b":                "user name but no password",
		"redis-cluster://:PW@a,b/1":             "a cluster has none but 0",
		"redis-cluster://:PW@a,b?db=0":          "a cluster has none but 0",
		"redis-cluster://:PW@a,b?read_only=1":   "must not set read_only",
		"redis-cluster://:PW@a,b?ca_file=/a":    "ca_file needs TLS",
		"redis-cluster://a?master=PW":           "query parameter that is not known",
		"redis+cluster://:PW@a":                 "must begin with",
		"redis-sentinel://:PW@a,b":              "must say what the Redis Sentinels call their master",
		"redis-sentinel://:PW@/0?master=m":      "must name the Redis Sentinels",
		"redis-sentinel://a?master=":            "must say what the Redis Sentinels call their master",
		"redis-sentinel://a?master=PW+PW":       "means a space",
		"redis-sentinel://a?master=m&sentinel_password=PW+PW": "means a space",
		"redis-sentinel://a?master=m&sentinel_username=PW":    "no sentinel_password",
		"redis-sentinel://a?master=m&master=PW":               "twice",
		"redis-sentinel://:PW@a/x?master=m":                   "nothing but the number of a database",
		"redis://:PW@a?master=m":                              "query parameter that is not known",
		"redis://:PW@a?ca_file=/PW":                           "ca_file needs TLS",
		"rediss://:PW@a?ca_file=PW":                           "ca_file must be an absolute path",
		"rediss://:PW@a?ca_file=":                             "ca_file must be an absolute path",
		"rediss://:PW@a?cert_file=/PW":                        "client certificate needs both",
		"rediss://:PW@a?key_file=/PW":                         "client certificate needs both",
		"rediss://:PW@a?ca_file=/PW&skip_verify=true":         "remove either",
		"rediss://:PW@a?server_name=PW&skip_verify=true":      "remove either",
		"rediss://:PW@a?server_name=":                         "server_name must be",
		"rediss://:PW@a?server_name=PW:6379":                  "server_name must be",
		"rediss-sentinel://:PW@a?master=m&cert_file=/PW":      "client certificate needs both",
		"redis://:PW@a<b":                                     "character that no host name has",
		"redis://:PW@host/PW":                                 "nothing but the number of a database",
		"redis://:PW@host/-1":                                 "nothing but the number of a database",
		"redis://:PW@host/0/1":                                "nothing but the number of a database",
		"redis://:PW@host/99999999999":                        "nothing but the number of a database",
		"redis://:PW@host/0?db=1":                             "both as path and as db",
		"redis://:PW@host?db=PW":                              "db must be a number",
		"redis://:PW@host?db=1&db=2":                          "twice",
		"redis://:PW@host?PW=1":                               "query parameter that is not known",
		"redis://:PW@host?a;b":                                "query that cannot be read",
		"redis://:PW@host?max_retries=3":                      "must not set max_retries",
		"redis://:PW@host?read_timeout=PW":                    "must not set read_timeout",
		"redis://:PW@host?pool_size=100":                      "must not set pool_size",
		"redis://:PW@host?skip_verify=true":                   "skip_verify needs TLS",
		"rediss://:PW@host?skip_verify=PW":                    "skip_verify must be",
		"redis://:PW@host?protocol=3":                         "query parameter that is not known",
		"unix://run/redis.sock":                               "absolute path of a socket",
		"unix://":                                             "absolute path of a socket",
		"unix:///":                                            "absolute path of a socket",
		"unix://:PW@host/run/redis.sock":                      "absolute path of a socket",
		"unix://:PW@,host/run/redis.sock":                     "absolute path of a socket",
		"memory://PW":                                         "takes no host",
		"memory:///PW":                                        "takes no host",
		"memory://:PW@":                                       "takes no host",
		"memory://?PW=1":                                      "no query parameter but max_keys",
		"memory://?max_keys=PW":                               "max_keys must be",
		"memory://?max_keys=0":                                "max_keys must be",
		"memory://?max_keys=100000001":                        "max_keys must be",
		"memory://?max_keys=-1":                               "max_keys must be",
		"memory://?max_keys=":                                 "max_keys must be",
	} {
		raw := strings.ReplaceAll(url, "PW", password)
		target, got := parseRedisURL(raw)
		if !strings.Contains(got, reason) {
			t.Errorf("%q: reason %q, want %q", raw, got, reason)
		}
		if target.kind != noTarget {
			t.Errorf("%q: leads to %+v", raw, target)
		}
		if _, err := (App{RedisURL: NewSecret(raw)}).target(); err == nil {
			t.Errorf("%q: has a target", raw)
		} else {
			noPieceOf(t, err.Error(), password)
		}
		noPieceOf(t, got, password)
		noPieceOf(t, got, "s3cret")
	}
}

func noPieceOf(t *testing.T, text, password string) {
	t.Helper()
	for i := range len(password) - 3 {
		if piece := password[i : i+4]; strings.Contains(text, piece) {
			t.Errorf("holds %q of the password: %s", piece, text)
		}
	}
}

// Whatever is written: no panic, a target or a reason, no piece of a password in
// the reason; and what go-redis also takes means the same to it.
func FuzzRedisURL(f *testing.F) {
	for _, url := range []string{
		"redis://:%s@host:6379/0", "redis://%s\n", "rediss://a:%s@[::1]:1/2?db=3&skip_verify=true", "unix://:%s@/run/x",
		"memory://?max_keys=%s", "redis://:%s#@host", "redis://:%s@host:bad", "%s", "redis://:%%%s@host?%s=%s",
		"redis-cluster://:%s@a:1,b,[::1]:3", "rediss-sentinel://a:%s@b:1,c/2?master=m&sentinel_password=%s&ca_file=/x",
		"rediss-cluster://:%s@a?cert_file=/%s&key_file=/x&server_name=y", "redis-sentinel://a,%s@b,c", "unix://:%s@,a`/x",
	} {
		before, after, _ := strings.Cut(url, "%s")
		f.Add(before, after)
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		const password = "Qz7Xk9VwJ4"
		raw := before + password + after
		target, reason := parseRedisURL(raw)
		if (reason == "") != (target.kind != noTarget) || target.kind == noTarget && !reflect.DeepEqual(target, redisTarget{}) {
			t.Errorf("reason %q, target %+v", reason, target)
		}
		noPieceOf(t, reason, password)
		hosts := map[targetKind]bool{serverTarget: len(target.addrs) == 1, failoverTarget: len(target.addrs) > 0, clusterTarget: len(target.addrs) > 0}
		if reason == "" && target.kind != memoryTarget && !hosts[target.kind] {
			t.Errorf("addresses %q", target.addrs)
		}
		if target.kind != serverTarget || target.tls != nil {
			return
		}
		theirs, err := redis.ParseURL(raw)
		if err != nil {
			t.Fatalf("go-redis: %v", err)
		}
		got := redis.Options{Network: target.network, Addr: target.addrs[0], Username: target.username, Password: target.password, DB: target.db}
		if want := (redis.Options{Network: theirs.Network, Addr: theirs.Addr, Username: theirs.Username, Password: theirs.Password, DB: theirs.DB}); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, to go-redis %+v", got, want)
		}
	})
}
