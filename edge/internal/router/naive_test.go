package router

import (
	"net/url"
	"slices"
	"strings"
)

// The naive router tries every pattern, with the standard library's decoding: the
// rules, as short as they can be written.

// naiveMatch is one way to read a path by a pattern.
type naiveMatch struct {
	pattern  int
	kinds    []pieceKind // of the segments
	captures [][2]string
}

// naive is Router.Match without a tree. captures are name and value.
func naive(patterns []Pattern, method, path string) (outcome Outcome, pattern int, captures [][2]string) {
	if path == "" {
		path = "/"
	}
	if naiveBad(path) {
		return BadPath, -1, nil
	}
	var all, mine []naiveMatch
	for i, p := range patterns {
		forms := []string{p.Path}
		if p.EitherSlash {
			forms = append(forms, naiveOtherSlash(p.Path))
		}
		for _, form := range forms {
			m := naiveMatch{pattern: i}
			if form == "" || !m.match(strings.Split(form, "/"), strings.Split(path, "/")) {
				continue
			}
			all = append(all, m)
			if naiveTakes(p, method) {
				mine = append(mine, m)
			}
			break
		}
	}
	switch {
	case len(mine) > 0:
		best := slices.MinFunc(mine, func(a, b naiveMatch) int {
			if by := slices.Compare(a.kinds, b.kinds); by != 0 {
				return by
			}
			return naiveRank(patterns[a.pattern], method) - naiveRank(patterns[b.pattern], method)
		})
		return Found, best.pattern, best.captures
	case len(all) > 0:
		return MethodNotAllowed, -1, nil
	default:
		return NotFound, -1, nil
	}
}

func naiveOtherSlash(path string) string {
	segments := strings.Split(path, "/")
	last := segments[len(segments)-1]
	switch {
	case path == "/" || strings.HasPrefix(last, "*") && len(segments) == 2:
		return ""
	case last == "" || strings.HasPrefix(last, "*"):
		return strings.Join(segments[:len(segments)-1], "/")
	default:
		return path + "/"
	}
}

func naiveTakes(p Pattern, method string) bool { return naiveRank(p, method) < 3 }

// naiveRank: the method itself, GET for HEAD, all methods, none.
func naiveRank(p Pattern, method string) int {
	switch {
	case slices.Contains(p.Methods, method):
		return 0
	case method == "HEAD" && slices.Contains(p.Methods, "GET"):
		return 1
	case len(p.Methods) == 0:
		return 2
	default:
		return 3
	}
}

func (m *naiveMatch) match(pattern, path []string) bool {
	for i, p := range pattern {
		if i > 0 && strings.HasPrefix(p, "*") && i < len(path) {
			name := p[1:]
			if name == "" {
				name = "*"
			}
			m.kinds = append(m.kinds, rest)
			m.captures = append(m.captures, [2]string{name, naiveDecode(strings.Join(path[i:], "/"))})
			return true
		}
		if i >= len(path) {
			return false
		}
		if name, ok := strings.CutPrefix(p, ":"); ok {
			if path[i] == "" {
				return false
			}
			m.kinds = append(m.kinds, param)
			m.captures = append(m.captures, [2]string{name, naiveDecode(path[i])})
			continue
		}
		if naiveDecode(p) != naiveDecode(path[i]) {
			return false
		}
		m.kinds = append(m.kinds, static)
	}
	return len(pattern) == len(path)
}

func naiveDecode(s string) string {
	d, err := url.PathUnescape(s)
	if err != nil {
		panic(err) // naiveBad has looked
	}
	return d
}

func naiveBad(path string) bool {
	if path[0] != '/' || strings.ContainsFunc(path, func(c rune) bool { return c < 0x20 || c == 0x7f }) {
		return true
	}
	decoded, err := url.PathUnescape(path)
	if err != nil || strings.ContainsAny(decoded, "\x00\\") {
		return true
	}
	return slices.ContainsFunc(strings.Split(decoded, "/"), func(s string) bool {
		s, _, _ = strings.Cut(s, ";")
		return s == "." || s == ".."
	})
}
