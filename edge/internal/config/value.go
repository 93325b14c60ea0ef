package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// reader gathers what is known of a file while it is read.
type reader struct {
	file    string
	env     func(string) (string, bool) // nil: no value may come from there
	faults  Faults
	more    int               // faults that were not kept: nobody reads so many
	lines   map[string]int    // of every field that is written, by its path
	broken  map[string]bool   // the paths of values that could not be read
	origins map[string]string // see Config.origins
}

func (r *reader) fault(line int, path, format string, args ...any) {
	r.broken[path] = true
	if len(r.faults) >= 4*mostFaults {
		r.more++
		return
	}
	r.faults = append(r.faults, Fault{File: r.file, Line: line, Path: path, Text: fmt.Sprintf(format, args...)})
}

// at is a fault of the field with that path, or of the one around it if it is not written.
func (r *reader) at(path, format string, args ...any) {
	outer := path
	for r.lines[outer] == 0 && outer != "" {
		outer = outer[:max(strings.LastIndexAny(outer, ".["), 0)]
	}
	r.fault(max(r.lines[outer], 1), path, format, args...)
}

// fine reports whether none of the fields is broken.
func (r *reader) fine(paths ...string) bool {
	return !slices.ContainsFunc(paths, func(p string) bool { return r.broken[p] })
}

// refuse reports what YAML has and this file has not. Aliases are not followed:
// a few lines of them are a large document.
func (r *reader) refuse(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		r.fault(n.Line, "", "the alias *%s is not supported; write the value itself", n.Value)
	case n.Anchor != "":
		r.fault(n.Line, "", "the anchor &%s is not supported; remove it", n.Anchor)
	case n.Style&yaml.TaggedStyle != 0:
		r.fault(n.Line, "", "the tag %s is not supported; remove it", n.Tag)
	}
	for _, child := range n.Content {
		r.refuse(child)
	}
}

// value is a part of the file that is about to be read.
type value struct {
	r    *reader
	node *yaml.Node
	line int
	path string // as written
	// shown is the path in the effective configuration, where it is not path.
	shown string
}

func (v value) fault(format string, args ...any) { v.r.fault(v.line, v.path, format, args...) }

// not is the fault of a wrong type.
func (v value) not(want string) {
	if v.node.Kind == yaml.AliasNode || v.node.Style&yaml.TaggedStyle != 0 {
		v.r.broken[v.path] = true // and reported by refuse
		return
	}
	is := map[yaml.Kind]string{yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list"}[v.node.Kind]
	if v.node.Kind == yaml.ScalarNode {
		is = map[string]string{"!!null": "empty", "!!bool": "true or false", "!!int": "a number", "!!float": "a number", "!!str": "text"}[v.node.ShortTag()]
	}
	if is == "" {
		is = "something else"
	}
	v.fault("must be %s, not %s", want, is)
}

// mapping reads the keys of a mapping by its table of fields.
func (v value) mapping(fields []field, required ...string) {
	if v.node.Kind != yaml.MappingNode {
		v.not("a mapping with " + keys(fields))
		return
	}
	prefix := v.path
	if prefix != "" {
		prefix += "."
	}
	seen := make(map[string]int, len(fields))
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		at := value{r: v.r, node: v.node.Content[i+1], line: key.Line, path: prefix + key.Value}
		switch k := slices.IndexFunc(fields, func(f field) bool { return f.key == key.Value }); {
		case key.Kind != yaml.ScalarNode:
			v.r.fault(key.Line, v.path, "a key must be a word")
		case k < 0:
			v.r.fault(key.Line, prefix+plain(key.Value), "unknown key; here may be %s", keys(fields))
		case seen[key.Value] > 0:
			at.fault("is written twice, first on line %d; keep one", seen[key.Value])
		default:
			seen[key.Value] = key.Line
			v.r.lines[at.path] = key.Line
			fields[k].read(at)
		}
	}
	for _, key := range required {
		if seen[key] == 0 {
			v.r.fault(v.line, prefix+key, "required")
		}
	}
}

// keys lists the keys of the fields, for people.
func keys(fields []field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.key
	}
	return strings.Join(names, ", ")
}

// plain is a key for a message: quoted where it is no plain word.
func plain(key string) string {
	if key != "" && len(key) < 80 && !strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return key
	}
	if len(key) > 80 {
		key = key[:80]
	}
	return fmt.Sprintf("%q", key)
}

// items returns the values of a list.
func (v value) items(want string) []value {
	if v.node.Kind != yaml.SequenceNode {
		v.not("a list of " + want)
		return nil
	}
	items := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		path := fmt.Sprintf("%s[%d]", v.path, i)
		items[i] = value{r: v.r, node: n, line: n.Line, path: path}
		v.r.lines[path] = n.Line
	}
	return items
}

var variable = regexp.MustCompile(`^\$\{([A-Za-z_][A-Za-z0-9_]*)\}$`)

// scalar returns the text of a scalar with one of the tags, or that of the
// environment variable which it names. If it returns false, that is reported.
func (v value) scalar(want string, tags ...string) (string, bool) {
	if v.node.Kind != yaml.ScalarNode {
		v.not(want)
		return "", false
	}
	text := v.node.Value
	if !strings.Contains(text, "${") {
		if v.node.Style&yaml.TaggedStyle != 0 || !slices.Contains(tags, v.node.ShortTag()) {
			v.not(want)
			return "", false
		}
		return text, true
	}
	m := variable.FindStringSubmatch(text)
	if m == nil {
		v.fault("a variable must be the whole value, as in ${NAME}")
		return "", false
	}
	if v.r.env == nil {
		v.fault("the environment is a node's own; write the value itself, or leave the field to the node's file")
		return "", false
	}
	text, ok := v.r.env(m[1])
	if !ok {
		v.fault("the environment variable %s is not set", m[1])
		return "", false
	}
	shown := v.shown
	if shown == "" {
		shown = v.path
	}
	v.r.origins[shown] = m[1]
	return text, true
}
