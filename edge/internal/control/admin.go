package control

import (
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.yaml.in/yaml/v3"

	"github.com/sentinelgo/sentinel/edge/internal/operator"
	"github.com/sentinelgo/sentinel/edge/internal/store"
)

const mostBody = 1 << 20

// admin is the operator's API: everyone who reaches it reads, and who has the token
// writes.
func (s *Server) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/status", http.StatusFound)
	})
	mux.HandleFunc("GET /status", s.statusPage)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		operator.Answer(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /v1/nodes", func(w http.ResponseWriter, _ *http.Request) { operator.Answer(w, http.StatusOK, s.Nodes()) })
	mux.HandleFunc("GET /v1/versions", s.versions)
	mux.HandleFunc("GET /v1/versions/{version}", s.version)
	mux.HandleFunc("GET /v1/versions/{version}/diff", s.versionDiff)

	mux.HandleFunc("GET /v1/config", s.config)
	mux.HandleFunc("GET /v1/services", s.read(func(d *document, _ *http.Request) (*yaml.Node, error) { return d.list("backends"), nil }))
	mux.HandleFunc("GET /v1/services/{service}", s.read(readService))
	mux.HandleFunc("GET /v1/services/{service}/backends", s.read(func(d *document, r *http.Request) (*yaml.Node, error) { return d.servers(r.PathValue("service")) }))
	mux.HandleFunc("GET /v1/services/{service}/backends/{backend}", s.read(readBackend))
	mux.HandleFunc("GET /v1/routes", s.read(readRoutes))
	mux.HandleFunc("GET /v1/rate_limit", s.read(func(d *document, _ *http.Request) (*yaml.Node, error) { return member(d.root, "rate_limit"), nil }))

	for pattern, prepare := range s.edits() {
		mux.HandleFunc(pattern, s.write(pattern, prepare))
	}
	return operator.Guard(mux, s.options.Hosts, "-admin-host NAME")
}

// changer makes the new content from the old one, which is nil if there is none.
type changer = func(old []byte) ([]byte, error)

// prepare reads from a request what is to be changed.
type prepare = func(r *http.Request, body []byte) (changer, error)

// edits are the writes, by their patterns.
func (s *Server) edits() map[string]prepare {
	return map[string]prepare{
		"PUT /v1/config":                       func(_ *http.Request, body []byte) (changer, error) { return replace(body), nil },
		"POST /v1/versions/{version}/rollback": s.rollback,
		"PUT /v1/services/{service}":           fragment(func(d *document, r *http.Request, n *yaml.Node) error { return d.putService(r.PathValue("service"), n) }),
		"DELETE /v1/services/{service}":        bare(func(d *document, r *http.Request) error { return d.removeService(r.PathValue("service")) }),
		"PUT /v1/services/{service}/backends/{backend}": fragment(func(d *document, r *http.Request, n *yaml.Node) error {
			return d.putBackend(r.PathValue("service"), r.PathValue("backend"), n)
		}),
		"DELETE /v1/services/{service}/backends/{backend}": bare(func(d *document, r *http.Request) error {
			return d.removeBackend(r.PathValue("service"), r.PathValue("backend"))
		}),
		"POST /v1/routes": fragment(func(d *document, _ *http.Request, n *yaml.Node) error { return d.addRoute(n) }),
		"PUT /v1/routes": fragment(func(d *document, r *http.Request, n *yaml.Node) error {
			return d.putRoute(r.FormValue("path"), r.FormValue("method"), n)
		}),
		"DELETE /v1/routes": bare(func(d *document, r *http.Request) error {
			return d.removeRoute(r.FormValue("path"), r.FormValue("method"))
		}),
		"PUT /v1/rate_limit":    fragment(func(d *document, _ *http.Request, n *yaml.Node) error { set(d.root, "rate_limit", n); return nil }),
		"DELETE /v1/rate_limit": bare(func(d *document, _ *http.Request) error { set(d.root, "rate_limit", nil); return nil }),
	}
}

// authorized compares in a time that does not depend on where the token is wrong.
func (s *Server) authorized(r *http.Request) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(s.options.Token))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && ok
}

// write answers an edit.
func (s *Server) write(pattern string, prepare prepare) http.HandlerFunc {
	whole := pattern == "PUT /v1/config"
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.authorized(r) {
			s.metrics.edits.WithLabelValues("unauthorized").Inc()
			w.Header().Set("WWW-Authenticate", "Bearer")
			(&problem{Status: http.StatusUnauthorized, Detail: "a write needs the token, as Authorization: Bearer TOKEN"}).write(w)
			return
		}
		e, err := editOf(r, whole)
		if err != nil {
			problemOf(err).write(w)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
		if err != nil {
			(&problem{Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("the body could not be read, or has more than %d bytes", mostBody)}).write(w)
			return
		}
		if e.change, err = prepare(r, body); err != nil {
			problemOf(err).write(w)
			return
		}
		o, err := s.edit(r.Context(), e)
		if err != nil {
			problemOf(err).write(w)
			return
		}
		w.Header().Set("ETag", etag(o.Version))
		operator.Answer(w, http.StatusOK, o)
	}
}

// editOf is what the request says of the edit besides what it does. To replace
// the whole configuration one must say of which version the new one was made.
func editOf(r *http.Request, whole bool) (edit, error) {
	q := r.URL.Query()
	e := edit{author: q.Get("author"), comment: q.Get("comment"), dryRun: q.Get("dry_run") == "true", ifVersion: anyVersion}
	for name, text := range map[string]string{"author": e.author, "comment": e.comment} {
		if len(text) > mostText || !utf8.ValidString(text) || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			return edit{}, &problem{Status: http.StatusBadRequest, Detail: fmt.Sprintf("%s must be one line of at most %d bytes", name, mostText)}
		}
	}
	match := r.Header.Get("If-Match")
	switch {
	case match == "*":
	case match == "" && whole && !e.dryRun:
		return edit{}, &problem{Status: http.StatusPreconditionRequired, Detail: `say which version this was made from, as If-Match: "12", or * to replace whatever is there`}
	case match == "":
	default:
		n, err := strconv.ParseInt(strings.Trim(match, `"`), 10, 64)
		if err != nil || n < 0 {
			return edit{}, &problem{Status: http.StatusBadRequest, Detail: `If-Match must be a version, as "12", or *`}
		}
		e.ifVersion = n
	}
	return e, nil
}

func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// fragment is an edit whose body is a part of the configuration, in YAML or JSON.
func fragment(do func(*document, *http.Request, *yaml.Node) error) prepare {
	return func(r *http.Request, body []byte) (changer, error) {
		n, err := parseNode(body)
		if err != nil {
			return nil, &problem{Status: http.StatusUnprocessableEntity, Detail: "the body: " + err.Error()}
		}
		return change(func(d *document) error { return do(d, r, n) }), nil
	}
}

// bare is an edit that needs no body.
func bare(do func(*document, *http.Request) error) prepare {
	return func(r *http.Request, _ []byte) (changer, error) {
		return change(func(d *document) error { return do(d, r) }), nil
	}
}

// rollback has the content of an earlier version, as a new one.
func (s *Server) rollback(r *http.Request, _ []byte) (changer, error) {
	v, err := s.stored(r)
	if err != nil {
		return nil, err
	}
	return func([]byte) ([]byte, error) { return v.Content, nil }, nil
}

// stored is the version that the path names.
func (s *Server) stored(r *http.Request) (store.Version, error) {
	n, err := strconv.ParseInt(r.PathValue("version"), 10, 64)
	if err != nil {
		return store.Version{}, &problem{Status: http.StatusBadRequest, Detail: "a version is a number"}
	}
	v, err := s.store.Version(r.Context(), n)
	s.failed(err)
	return v, err
}

func (s *Server) versions(w http.ResponseWriter, r *http.Request) {
	before, err1 := number(r.FormValue("before"), 0)
	limit, err2 := number(r.FormValue("limit"), 50)
	if err := errors.Join(err1, err2); err != nil || limit > 1000 {
		(&problem{Status: http.StatusBadRequest, Detail: "before is a version, and limit a number up to 1000"}).write(w)
		return
	}
	all, err := s.store.History(r.Context(), before, int(limit))
	s.failed(err)
	if err != nil {
		problemOf(err).write(w)
		return
	}
	operator.Answer(w, http.StatusOK, all)
}

func number(text string, otherwise int64) (int64, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && n < 0 {
		err = strconv.ErrRange
	}
	return n, err
}

func (s *Server) version(w http.ResponseWriter, r *http.Request) {
	v, err := s.stored(r)
	if err != nil {
		problemOf(err).write(w)
		return
	}
	operator.Answer(w, http.StatusOK, struct {
		store.Version
		Config string `json:"config"`
	}{v, string(v.Content)})
}

// versionDiff is what changed to a version from the one before, or from=N.
func (s *Server) versionDiff(w http.ResponseWriter, r *http.Request) {
	to, err := s.stored(r)
	if err != nil {
		problemOf(err).write(w)
		return
	}
	n, err := number(r.FormValue("from"), to.Number-1)
	if err != nil {
		(&problem{Status: http.StatusBadRequest, Detail: "from is a version"}).write(w)
		return
	}
	var from store.Version
	if n > 0 {
		from, err = s.store.Version(r.Context(), n)
		s.failed(err)
		if err != nil {
			problemOf(err).write(w)
			return
		}
	}
	operator.Answer(w, http.StatusOK, map[string]any{"from": n, "to": to.Number, "diff": diff(from.Content, to.Content)})
}

func (s *Server) config(w http.ResponseWriter, _ *http.Request) {
	c := s.current.Load()
	if c == nil {
		nothingYet().write(w)
		return
	}
	w.Header().Set("ETag", etag(c.version.Number))
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(c.version.Content) // the client is gone
}

// read answers with a part of the configuration that is handed out.
func (s *Server) read(find func(*document, *http.Request) (*yaml.Node, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := s.current.Load()
		if c == nil {
			nothingYet().write(w)
			return
		}
		d, err := parseDocument(c.version.Content)
		if err != nil {
			problemOf(err).write(w)
			return
		}
		n, err := find(d, r)
		if err != nil {
			problemOf(err).write(w)
			return
		}
		v, err := value(n)
		if err != nil {
			problemOf(err).write(w)
			return
		}
		w.Header().Set("ETag", etag(c.version.Number))
		operator.Answer(w, http.StatusOK, v)
	}
}

func readService(d *document, r *http.Request) (*yaml.Node, error) {
	i := d.service(r.PathValue("service"))
	if i < 0 {
		return nil, noService(r.PathValue("service"))
	}
	return d.list("backends").Content[i], nil
}

func readBackend(d *document, r *http.Request) (*yaml.Node, error) {
	list, i, err := d.backend(r.PathValue("service"), r.PathValue("backend"))
	if err != nil {
		return nil, err
	}
	if i < 0 {
		return nil, &problem{Status: http.StatusNotFound, Detail: "there is no such backend"}
	}
	return list.Content[i], nil
}

// readRoutes is all routes, or those with a path.
func readRoutes(d *document, r *http.Request) (*yaml.Node, error) {
	all := d.list("routes")
	path := r.FormValue("path")
	if path == "" {
		return all, nil
	}
	some := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for _, n := range all.Content {
		if word(n, "path") == path {
			some.Content = append(some.Content, n)
		}
	}
	return some, nil
}

// ready is 200 as long as edits can be made and nodes can be served.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	status, why := http.StatusOK, ""
	if t := s.trouble.Load(); t != nil {
		status, why = http.StatusServiceUnavailable, t.text
	}
	operator.Answer(w, status, struct {
		Ready   bool   `json:"ready"`
		Version int64  `json:"version"`
		Why     string `json:"why,omitempty"`
	}{status == http.StatusOK, s.newest(), why})
}

// mostRefused is how many refusals the page tells in full.
const mostRefused = 20

//go:embed status.html
var statusText string

var page = operator.NewPage(statusText, template.FuncMap{
	"at": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
})

// statusPage is for people: who has what, and who refused what and why.
func (s *Server) statusPage(w http.ResponseWriter, r *http.Request) {
	view := struct {
		Build, Epoch, Trouble string
		Started               time.Time
		Current               *store.Version
		Nodes                 []NodeStatus
		Connected, Behind     int
		Refusing              int
		Refused               []NodeStatus // the first of them
		More                  int          // that refuse one, too
		Versions              []store.Version
	}{Build: s.options.Build, Epoch: s.store.Epoch(), Started: s.started, Nodes: s.Nodes()}
	if t := s.trouble.Load(); t != nil {
		view.Trouble = t.text
	}
	newest := int64(0)
	if c := s.current.Load(); c != nil {
		view.Current, newest = &c.version, c.version.Number
	}
	for _, n := range view.Nodes {
		switch {
		case n.Rejected == 0:
		case len(view.Refused) < mostRefused:
			view.Refused = append(view.Refused, n)
		default:
			view.More++
		}
		switch n.state(newest) {
		case nodeCurrent:
			view.Connected++
		case nodeRefusing:
			view.Connected++
			view.Refusing++
		case nodeBehind, nodeAhead:
			view.Connected++
			view.Behind++
		case nodeGone:
		}
	}
	var err error
	view.Versions, err = s.store.History(r.Context(), 0, 20)
	s.failed(err)
	if err != nil && view.Trouble == "" {
		view.Trouble = err.Error()
	}
	page.Answer(w, view)
}
