package config

import (
	"bytes"
	"maps"
	"reflect"
	"strings"
)

// A configuration can come from two places: what a node alone decides (server,
// admin, sentinel, and a rate_limit that goes before the shared one) from its own
// file, and what nodes have in common (rate_limit, routes and backends) from a
// control plane.

// LoadLocal reads the file of a node that has a control plane: it is [Load] for a
// file without routes and backends.
func LoadLocal(path string, env func(string) (string, bool)) (*Config, error) {
	return load(path, env, ParseLocal)
}

// ParseLocal is [LoadLocal] for a file's contents. An empty file is a good one.
func ParseLocal(name string, data []byte, env func(string) (string, bool)) (*Config, error) {
	c := defaults()
	if blank(data) {
		return c, nil
	}
	if err := read(name, data, orProcess(env), c, (*reader).local); err != nil {
		return nil, err
	}
	return c, nil
}

// blank is what has nothing but comments.
func blank(data []byte) bool {
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

func (r *reader) local(root value, c *Config) {
	fields := append(c.ownFields(), c.limitField())
	for _, key := range []string{"routes", "backends"} {
		fields = append(fields, field{key, func(v value) { v.fault("comes from the control plane; remove it here") }, nil})
	}
	root.mapping(fields)
	c.ownLimit = r.lines["rate_limit"] > 0
	r.addresses(c)
	if c.RateLimit != nil {
		r.sentinel(c, c.RateLimit, "rate_limit")
	}
}

// Join is the configuration of a node whose own part is c, with the shared part
// that a control plane has sent; name is what faults call that. No value of the
// shared part may come from the environment, and max_clients is the node's. c stays as it is.
func (c *Config) Join(name string, shared []byte) (*Config, error) {
	joined := *c
	joined.Routes, joined.Pools, joined.origins = nil, nil, maps.Clone(c.origins)
	if err := read(name, shared, nil, &joined, (*reader).shared); err != nil {
		return nil, err
	}
	return &joined, nil
}

func (r *reader) shared(root value, c *Config) {
	own, most := c.RateLimit, c.maxClients
	root.mapping(c.sharedFields(), "routes", "backends")
	c.maxClients = most
	if c.ownLimit {
		c.RateLimit = own
	}
	r.finish(c)
}

// KeepStart has c, which was read again, keep of the configuration of the start what only a
// restart changes: server but for request_timeout, admin and max_clients. It reports whether
// the file has any of it otherwise.
func (c *Config) KeepStart(start *Config) bool {
	server := start.Server
	server.RequestTimeout = c.Server.RequestTimeout // it is the routes'
	differs := !reflect.DeepEqual(c.Server, server) || !reflect.DeepEqual(c.Admin, start.Admin) || c.maxClients != start.maxClients
	c.Server, c.Admin, c.maxClients = server, start.Admin, start.maxClients
	theirs := func(path, _ string) bool {
		return path != "server.request_timeout" && (strings.HasPrefix(path, "server.") || strings.HasPrefix(path, "admin.") || path == "rate_limit.max_clients")
	}
	maps.DeleteFunc(c.origins, theirs)
	for path, name := range start.origins {
		if theirs(path, name) {
			c.origins[path] = name
		}
	}
	return differs
}

// CheckShared reads a shared part for a node that has whatever it asks for: only
// the node knows whether it has the library's configuration. Of what is returned
// only the shared fields mean something.
func CheckShared(name string, data []byte) (*Config, error) {
	c := defaults()
	c.Sentinel = "the node's"
	return c.Join(name, data)
}
