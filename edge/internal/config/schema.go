package config

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// token is one token, in microtokens.
const token = 1_000_000

// The default of every field that may be absent.
const (
	defaultMaxClients = 100_000
	defaultWeight     = 1
)

func defaults() *Config {
	return &Config{
		Server: Server{
			Listen:            ":8080",
			AccessLog:         "stdout",
			MaxHeaderBytes:    32 << 10,
			MaxHeaderFields:   100,
			MaxURLBytes:       8 << 10,
			MaxBodyBytes:      10 << 20,
			MaxConnections:    10_000,
			ReadHeaderTimeout: 5 * time.Second,
			BodyIdleTimeout:   10 * time.Second,
			WriteIdleTimeout:  30 * time.Second,
			KeepAliveTimeout:  time.Minute,
			TunnelIdleTimeout: 5 * time.Minute,
			RequestTimeout:    30 * time.Second,
			Grace:             30 * time.Second,
		},
		Admin:      Admin{Listen: "127.0.0.1:9901"},
		maxClients: defaultMaxClients,
		origins:    make(map[string]string),
	}
}

func defaultPool(line int) Pool {
	return Pool{
		Balance: RoundRobin,
		Health: Health{
			Type:     healthAuto,
			Interval: 2 * time.Second,
			Timeout:  time.Second,
			Fall:     3,
			Rise:     2,
			Status:   [2]int{200, 399},
		},
		Breaker:         Breaker{Failures: 5, OpenFor: 30 * time.Second, FailureStatus: []int{502, 503, 504}},
		Retry:           defaultRetry(),
		Upgrades:        []string{"websocket"},
		DialTimeout:     2 * time.Second,
		TLSTimeout:      5 * time.Second,
		ResponseTimeout: 10 * time.Second,
		IdleTimeout:     60 * time.Second,
		MaxIdle:         256,
		Line:            line,
	}
}

func defaultRetry() Retry {
	return Retry{
		Attempts: 3,
		Scope:    SameBackend,
		Base:     25 * time.Millisecond,
		Cap:      250 * time.Millisecond,
		Budget:   RetryBudget{Percent: 20, Least: 3},
	}
}

// The ranges of numbers, where several fields share them.
const (
	shortest = time.Millisecond
	longest  = 24 * time.Hour
	hour     = time.Hour
	// A token a second less than one in 11 days is no rate, and a bucket takes no
	// more than a year to fill: so every product of the arithmetic fits.
	leastRate  = 1
	mostTokens = 1_000_000_000 * token
	mostFill   = 365 * 24 * 3600 // seconds
)

func (c *Config) fields() []field {
	own, shared := c.ownFields(), c.sharedFields()
	return []field{own[0], own[1], shared[0], own[2], shared[1], shared[2]}
}

// ownFields are those that are never shared.
func (c *Config) ownFields() []field {
	return []field{
		objectField("server", c.serverFields()),
		objectField("admin", []field{
			textField("listen", &c.Admin.Listen, badAddress),
			boolField("allow_remote", &c.Admin.AllowRemote),
			listField("hosts", "names, as edge.internal", "!!str", &c.Admin.Hosts, adminHost, func(h string) string { return h }),
		}),
		textField("sentinel", &c.Sentinel, nil),
	}
}

// sharedFields are those that a control plane may hand out.
func (c *Config) sharedFields() []field {
	return []field{
		c.limitField(),
		objectsField("routes", "routes", &c.Routes, func(line int) Route { return Route{Line: line} }, c.routeFields, "path", "backend"),
		objectsField("backends", "pools", &c.Pools, defaultPool, c.poolFields, "name"),
	}
}

func (c *Config) serverFields() []field {
	s := &c.Server
	return []field{
		c.portField(),
		c.listenField(),
		listField("trusted_proxies", "networks, as 10.0.0.0/8", "!!str", &s.TrustedProxies, network, netip.Prefix.String),
		textField("access_log", &s.AccessLog, nil),
		wholeField("max_header_bytes", &s.MaxHeaderBytes, 1<<10, 1<<20),
		wholeField("max_header_fields", &s.MaxHeaderFields, 10, 10_000),
		wholeField("max_url_bytes", &s.MaxURLBytes, 128, 1<<20),
		wholeField("max_body_bytes", &s.MaxBodyBytes, 1, 1<<40),
		wholeField("max_connections", &s.MaxConnections, 1, 1_000_000),
		durationField("read_header_timeout", &s.ReadHeaderTimeout, shortest, longest),
		durationField("body_idle_timeout", &s.BodyIdleTimeout, shortest, longest),
		durationField("write_idle_timeout", &s.WriteIdleTimeout, shortest, longest),
		durationField("keep_alive_timeout", &s.KeepAliveTimeout, shortest, longest),
		durationField("tunnel_idle_timeout", &s.TunnelIdleTimeout, shortest, longest),
		durationField("request_timeout", &s.RequestTimeout, shortest, longest),
		durationField("drain_delay", &s.DrainDelay, 0, hour),
		durationField("grace", &s.Grace, 0, hour),
	}
}

// portField is short for listen on all addresses. It is shown only where listen
// could not name the variable that it came from.
func (c *Config) portField() field {
	return field{"port", func(v value) {
		if n, ok := v.whole(1, 65535); ok {
			c.Server.Listen = ":" + strconv.FormatInt(n, 10)
		}
	}, func() *yaml.Node {
		if c.origins["server.port"] == "" {
			return nil
		}
		return scalarNode("!!int", strings.TrimPrefix(c.Server.Listen, ":"))
	}}
}

func (c *Config) listenField() field {
	f := textField("listen", &c.Server.Listen, badAddress)
	show := f.show
	f.show = func() *yaml.Node {
		if c.origins["server.port"] != "" {
			return nil
		}
		return show()
	}
	return f
}

// limitField is the file's own rate_limit.
func (c *Config) limitField() field {
	return field{"rate_limit", func(v value) {
		c.RateLimit = readLimit(v, wholeField("max_clients", &c.maxClients, 1, 10_000_000))
	}, func() *yaml.Node {
		shown := showLimit(c.RateLimit)
		if c.RateLimit != nil || c.maxClients != defaultMaxClients {
			shown.Content = append(shown.Content, render([]field{wholeField("max_clients", &c.maxClients, 0, 0)}).Content...)
		}
		return shown
	}}
}

func limitFields(l *RateLimit) []field {
	return []field{
		choiceField("mode", &l.Mode, Local, Distributed),
		tokensField("capacity", &l.Capacity, token, mostTokens),
		tokensField("refill_rate", &l.RefillRate, leastRate, mostTokens),
		textField("key", &l.Key, badKey),
		textField("policy", &l.Policy, nil),
	}
}

// readLimit reads a rate limit, nil if it is switched off.
func readLimit(v value, more ...field) *RateLimit {
	l := &RateLimit{Mode: Local, Line: v.line}
	enabled := true
	v.mapping(slices.Concat([]field{boolField("enabled", &enabled)}, limitFields(l), more))
	if !enabled {
		return nil
	}
	l.check(v)
	return l
}

// showLimit is a rate limit as a mapping, `enabled: false` for nil.
func showLimit(l *RateLimit) *yaml.Node {
	enabled := l != nil
	fields := []field{boolField("enabled", &enabled)}
	if l != nil {
		for _, f := range limitFields(l) {
			if l.Mode == Local || f.key == "mode" || f.key == "policy" {
				fields = append(fields, f)
			}
		}
	}
	return render(fields)
}

func (c *Config) routeFields(r *Route) []field {
	return []field{
		textField("path", &r.Path, nil),
		listField("methods", "methods", "!!str", &r.Methods, method, func(m string) string { return m }),
		textField("backend", &r.Backend, nil),
		{"trailing_slash", func(v value) {
			slash := "strict"
			choiceField("", &slash, "strict", "either").read(v)
			r.EitherSlash = slash == "either"
		}, func() *yaml.Node {
			return textNode(map[bool]string{false: "strict", true: "either"}[r.EitherSlash])
		}},
		durationField("timeout", &r.Timeout, shortest, longest),
		{"rate_limit", func(v value) {
			r.RateLimit = readLimit(v)
		}, func() *yaml.Node {
			if r.RateLimit == c.RateLimit {
				return nil // it has the file's own, or there is none
			}
			return showLimit(r.RateLimit)
		}},
	}
}

func (c *Config) poolFields(p *Pool) []field {
	return []field{
		textField("name", &p.Name, badName),
		{"url", p.readURL, nil},
		{"urls", p.readURLs, nil},
		objectsField("servers", "servers, each with a url", &p.Backends, func(line int) Backend { return Backend{Weight: defaultWeight, Line: line} }, backendFields, "url"),
		choiceField("balance", &p.Balance, RoundRobin, LeastConnections, PowerOfTwo),
		objectField("health", p.Health.fields()),
		objectField("breaker", p.Breaker.fields()),
		{"retry", p.Retry.read, func() *yaml.Node { return render(p.Retry.fields()) }},
		wholeField("max_in_flight", &p.MaxInFlight, 0, 1_000_000),
		{"host", func(v value) {
			host := "preserve"
			choiceField("", &host, "preserve", "backend").read(v)
			p.RewriteHost = host == "backend"
		}, func() *yaml.Node {
			return textNode(map[bool]string{false: "preserve", true: "backend"}[p.RewriteHost])
		}},
		listField("upgrades", "protocols", "!!str", &p.Upgrades, upgrade, func(u string) string { return u }),
		durationField("dial_timeout", &p.DialTimeout, shortest, hour),
		durationField("tls_timeout", &p.TLSTimeout, shortest, hour),
		durationField("response_timeout", &p.ResponseTimeout, shortest, longest),
		durationField("idle_timeout", &p.IdleTimeout, shortest, longest),
		wholeField("max_idle", &p.MaxIdle, 1, 100_000),
	}
}

// readURL reads `url`, which is short for a single server.
func (p *Pool) readURL(v value) {
	v.shown = strings.TrimSuffix(v.path, "url") + "servers[0].url"
	p.Backends = []Backend{{URL: v.url(), Weight: defaultWeight, Line: v.line}}
}

// readURLs reads `urls`, which is short for servers of the same weight.
func (p *Pool) readURLs(v value) {
	p.Backends = nil
	for i, item := range v.items("URLs") {
		item.shown = strings.TrimSuffix(v.path, "urls") + "servers[" + strconv.Itoa(i) + "].url"
		p.Backends = append(p.Backends, Backend{URL: item.url(), Weight: defaultWeight, Line: item.line})
	}
}

func backendFields(b *Backend) []field {
	return []field{
		{"url", func(v value) { b.URL = v.url() }, func() *yaml.Node { return textNode(b.URL.String()) }},
		wholeField("weight", &b.Weight, 0, 1000),
	}
}

// url is the URL of a backend; nil if it is bad.
func (v value) url() *url.URL {
	text, ok := v.text(nil)
	if !ok {
		return nil
	}
	u, problem := backendURL(text)
	if problem != "" {
		v.fault("%s", problem)
		return nil
	}
	return u
}

func (h *Health) fields() []field {
	return []field{
		choiceField("type", &h.Type, healthAuto, HealthHTTP, HealthTCP, HealthOff),
		textField("path", &h.Path, badHealthPath),
		durationField("interval", &h.Interval, 10*time.Millisecond, hour),
		durationField("timeout", &h.Timeout, shortest, hour),
		wholeField("fall", &h.Fall, 1, 1000),
		wholeField("rise", &h.Rise, 1, 1000),
		{"status", h.readStatus, func() *yaml.Node { return textNode(h.statusText()) }},
	}
}

func (b *Breaker) fields() []field {
	return []field{
		{"failures", b.readFailures, func() *yaml.Node {
			if b.Failures < 0 {
				return textNode("off")
			}
			return scalarNode("!!int", strconv.Itoa(b.Failures))
		}},
		durationField("open_for", &b.OpenFor, shortest, longest),
		listField("failure_status", "statuses from 400 to 599", "!!int", &b.FailureStatus, failureStatus, strconv.Itoa),
	}
}

func (r *Retry) fields() []field {
	return []field{
		wholeField("attempts", &r.Attempts, 1, 10),
		choiceField("scope", &r.Scope, SameBackend, NextBackend),
		durationField("base", &r.Base, shortest, hour),
		durationField("cap", &r.Cap, shortest, hour),
		durationField("per_try_timeout", &r.PerTry, 0, longest),
		objectField("budget", []field{
			wholeField("percent", &r.Budget.Percent, 0, 100),
			wholeField("min", &r.Budget.Least, 0, 1_000_000),
		}),
	}
}

// read reads the mapping, or `off`, which is short for a single attempt.
func (r *Retry) read(v value) {
	switch {
	case v.node.Kind == yaml.MappingNode:
		v.mapping(r.fields())
	case v.node.Value == "off":
		r.Attempts = 1
	default:
		v.not("off, or a mapping with " + keys(r.fields()))
	}
}
