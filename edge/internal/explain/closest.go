package explain

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/router"
)

// most is how many routes are named as the closest.
const most = 3

// otherMethods names the routes that take the path with another method.
func (a *Answer) otherMethods(c *config.Config, r *router.Router) {
	for method := range strings.SplitSeq(a.Allow, ", ") {
		a.try(c, r, method, a.Path, "takes this path with "+method)
	}
}

// closest names the routes that take a path which differs by a common slip, or
// else those that go the same way the longest.
func (a *Answer) closest(c *config.Config, r *router.Router) {
	slash, why := a.Path+"/", "takes the path with a slash at its end; trailing_slash: either takes both"
	if len(a.Path) > 1 && strings.HasSuffix(a.Path, "/") {
		slash, why = strings.TrimSuffix(a.Path, "/"), "takes the path without the slash at its end; trailing_slash: either takes both"
	}
	a.try(c, r, a.Method, slash, why)
	single := a.Path
	for strings.Contains(single, "//") {
		single = strings.ReplaceAll(single, "//", "/")
	}
	a.try(c, r, a.Method, single, "takes the path with single slashes; // has an empty segment, which is another path")
	a.try(c, r, a.Method, strings.ToLower(a.Path), "takes the path in lower case; paths have a case")
	plain := strings.NewReplacer("%2F", "/", "%2f", "/").Replace(a.Path)
	a.try(c, r, a.Method, plain, "takes the path with a plain slash; %2F is a part of its segment")
	if len(a.Closest) == 0 {
		a.sameWay(c)
	}
}

// try adds the route of another path, if there is one.
func (a *Answer) try(c *config.Config, r *router.Router, method, path, why string) {
	var m router.Match
	if len(a.Closest) >= most || r.Match(method, path, &m) != router.Found {
		return
	}
	route := c.Routes[m.Pattern]
	if slices.ContainsFunc(a.Closest, func(n Near) bool { return n.Line == route.Line && n.Path == route.Path }) {
		return
	}
	a.Closest = append(a.Closest, Near{route.Path, route.Methods, route.Line, why})
}

// sameWay adds the routes whose first segments are the path's.
func (a *Answer) sameWay(c *config.Config) {
	path := strings.Split(a.Path, "/")
	type way struct {
		route  int
		common int // segments, with the empty one before the first slash
	}
	var ways []way
	for i, r := range c.Routes {
		if n := common(strings.Split(r.Path, "/"), path); n > 1 {
			ways = append(ways, way{i, n})
		}
	}
	slices.SortStableFunc(ways, func(x, y way) int { return cmp.Compare(y.common, x.common) })
	for _, w := range ways[:min(most, len(ways))] {
		route := c.Routes[w.route]
		near := Near{Path: route.Path, Methods: route.Methods, Line: route.Line, Why: "begins with " + strings.Join(path[:w.common], "/")}
		switch pattern := strings.Split(route.Path, "/"); {
		case w.common == len(path):
			near.Why += ", and goes on with /" + strings.Join(pattern[w.common:], "/")
		case w.common == len(pattern):
			near.Why += ", and ends there"
		default:
			near.Why += ", and goes on with " + pattern[w.common] + " instead of " + path[w.common]
		}
		a.Closest = append(a.Closest, near)
	}
}

// common is how many of the path's first segments the pattern takes.
func common(pattern, path []string) int {
	n := 0
	for n < len(pattern) && n < len(path) {
		p, err1 := url.PathUnescape(pattern[n])
		s, err2 := url.PathUnescape(path[n])
		param := strings.HasPrefix(pattern[n], ":") && s != ""
		if err1 != nil || err2 != nil || p != s && !param {
			break
		}
		n++
	}
	return n
}
