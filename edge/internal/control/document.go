package control

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// document is a shared configuration that is being edited. It is a tree of YAML, so
// that what nobody touches stays as it was written, comments too. Nothing here
// says whether it is a good one: that is config's.
//
// What the API calls a service is an entry of `backends`, a named pool, and what it
// calls a backend is a server of one.
type document struct{ root *yaml.Node }

// parseDocument reads what config has found good.
func parseDocument(content []byte) (*document, error) {
	root, err := parseNode(content)
	if err != nil {
		return nil, err
	}
	if root.Kind != yaml.MappingNode {
		return nil, errors.New("must be a mapping")
	}
	return &document{root}, nil
}

// parseNode reads one value of YAML or JSON.
func parseNode(text []byte) (n *yaml.Node, err error) {
	defer func() { // the parser has panicked on strange text before
		if p := recover(); p != nil {
			n, err = nil, fmt.Errorf("is no YAML: %v", p)
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, next yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("is empty")
	case err != nil:
		return nil, err
	}
	if err := d.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one document")
	}
	return doc.Content[0], nil
}

// text is the document as it is stored.
func (d *document) text() ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(d.root), e.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// member is the value of a key; nil if there is none.
func member(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i+1]
		}
	}
	return nil
}

// word is the text of a key; "" if there is none.
func word(m *yaml.Node, key string) string {
	if n := member(m, key); n != nil && n.Kind == yaml.ScalarNode {
		return n.Value
	}
	return ""
}

// set gives a key a value, and with nil takes it away.
func set(m *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value != key {
			continue
		}
		if value == nil {
			m.Content = slices.Delete(m.Content, i, i+2)
		} else {
			m.Content[i+1] = value
		}
		return
	}
	if value != nil {
		m.Content = append(m.Content, textNode(key), value)
	}
}

func textNode(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
}

// list is the list of a key of the document, an empty one if it has none.
func (d *document) list(key string) *yaml.Node {
	n := member(d.root, key)
	if n == nil {
		n = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		set(d.root, key, n)
	}
	return n
}

// service is the place of a service, -1 if there is none.
func (d *document) service(name string) int {
	return slices.IndexFunc(d.list("backends").Content, func(n *yaml.Node) bool { return word(n, "name") == name })
}

// putService adds a service, or replaces the one with that name.
func (d *document) putService(name string, service *yaml.Node) error {
	if service.Kind != yaml.MappingNode {
		return &problem{Status: http.StatusUnprocessableEntity, Detail: "the body must be a mapping with the fields of a service"}
	}
	if own := word(service, "name"); own != "" && own != name {
		return &problem{Status: http.StatusUnprocessableEntity, Detail: fmt.Sprintf("the body's name is %q, and the path's %q", own, name)}
	}
	if member(service, "name") == nil {
		service.Content = append([]*yaml.Node{textNode("name"), textNode(name)}, service.Content...)
	}
	put(d.list("backends"), d.service(name), service)
	return nil
}

// put replaces the entry at i, and adds one for -1.
func put(list *yaml.Node, i int, n *yaml.Node) {
	if i < 0 {
		list.Content = append(list.Content, n)
		return
	}
	list.Content[i] = n
}

// remove takes the entry at i away.
func remove(list *yaml.Node, i int) { list.Content = slices.Delete(list.Content, i, i+1) }

func (d *document) removeService(name string) error {
	i := d.service(name)
	if i < 0 {
		return noService(name)
	}
	remove(d.list("backends"), i)
	return nil
}

func noService(name string) error {
	return &problem{Status: http.StatusNotFound, Detail: fmt.Sprintf("there is no service %q", name)}
}

// servers is the list of a service's backends, in its long form: url and urls are
// rewritten, since a short form has no place for a weight.
func (d *document) servers(name string) (*yaml.Node, error) {
	i := d.service(name)
	if i < 0 {
		return nil, noService(name)
	}
	service := d.list("backends").Content[i]
	if list := member(service, "servers"); list != nil {
		return list, nil
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	var urls []*yaml.Node
	if one := member(service, "url"); one != nil {
		urls = append(urls, one)
	}
	if several := member(service, "urls"); several != nil {
		urls = append(urls, several.Content...)
	}
	for _, u := range urls {
		list.Content = append(list.Content, &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{textNode("url"), u}})
	}
	set(service, "url", nil)
	set(service, "urls", nil)
	set(service, "servers", list)
	return list, nil
}

// address is the host and port of a server; "" if its URL is none.
func address(server *yaml.Node) string {
	u, err := url.Parse(word(server, "url"))
	if err != nil || u.Host == "" {
		return ""
	}
	return config.Backend{URL: u}.Address()
}

// backend is the list of a service's servers and the place of the one with an address.
func (d *document) backend(service, at string) (list *yaml.Node, i int, err error) {
	list, err = d.servers(service)
	if err != nil {
		return nil, 0, err
	}
	i = -1
	for k, n := range list.Content {
		switch {
		case address(n) != at:
		case i >= 0:
			return nil, 0, &problem{Status: http.StatusConflict, Detail: fmt.Sprintf("%s has two backends at %s; edit the service", service, at)}
		default:
			i = k
		}
	}
	return list, i, nil
}

// putBackend adds a backend, or replaces the one at that address. The body has its
// URL, whose address must be the one of the path.
func (d *document) putBackend(service, at string, server *yaml.Node) error {
	list, i, err := d.backend(service, at)
	if err != nil {
		return err
	}
	if server.Kind != yaml.MappingNode || address(server) != at {
		return &problem{Status: http.StatusUnprocessableEntity, Detail: fmt.Sprintf("the body must have a url with the address of the path, as {url: http://%s, weight: 1}", at)}
	}
	put(list, i, server)
	return nil
}

func (d *document) removeBackend(service, at string) error {
	list, i, err := d.backend(service, at)
	if err != nil {
		return err
	}
	if i < 0 {
		return &problem{Status: http.StatusNotFound, Detail: fmt.Sprintf("%s has no backend at %s", service, at)}
	}
	remove(list, i)
	return nil
}

// route is the place of the route with a path, and with a method if one is given.
func (d *document) route(path, method string) (int, error) {
	found := -1
	for i, n := range d.list("routes").Content {
		if word(n, "path") != path || method != "" && !takes(n, method) {
			continue
		}
		if found >= 0 {
			return 0, &problem{Status: http.StatusConflict, Detail: fmt.Sprintf("several routes have the path %s; say which one with method=", path)}
		}
		found = i
	}
	if found < 0 {
		return 0, &problem{Status: http.StatusNotFound, Detail: fmt.Sprintf("there is no route with the path %s", path)}
	}
	return found, nil
}

// takes reports whether a route is for a method.
func takes(route *yaml.Node, method string) bool {
	methods := member(route, "methods")
	return methods == nil || slices.ContainsFunc(methods.Content, func(n *yaml.Node) bool { return n.Value == method })
}

func (d *document) addRoute(route *yaml.Node) error {
	put(d.list("routes"), -1, route)
	return nil
}

func (d *document) putRoute(path, method string, route *yaml.Node) error {
	i, err := d.route(path, method)
	if err != nil {
		return err
	}
	put(d.list("routes"), i, route)
	return nil
}

func (d *document) removeRoute(path, method string) error {
	i, err := d.route(path, method)
	if err != nil {
		return err
	}
	remove(d.list("routes"), i)
	return nil
}

// value is a part of the document as it is written, for JSON.
func value(n *yaml.Node) (any, error) {
	var v any
	if n == nil {
		return nil, nil
	}
	err := n.Decode(&v)
	return v, err
}
