package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// maxBytes is the size of the largest file that is read.
const maxBytes = 1 << 20

// Load reads a file, with env for the values that are ${NAME}; nil is
// [os.LookupEnv]. Its error is [Faults], unless the file cannot be read.
func Load(path string, env func(string) (string, bool)) (*Config, error) {
	return load(path, env, Parse)
}

func load(path string, env func(string) (string, bool), parse func(string, []byte, func(string) (string, bool)) (*Config, error)) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	c, err := parse(path, data, env)
	if err != nil {
		return nil, err
	}
	if c.Sentinel != "" && !filepath.IsAbs(c.Sentinel) {
		if c.Sentinel, err = filepath.Abs(filepath.Join(filepath.Dir(path), c.Sentinel)); err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
	}
	return c, nil
}

// Parse is [Load] for a file's contents; name is what faults call it. A relative
// path in it stays as it is.
func Parse(name string, data []byte, env func(string) (string, bool)) (*Config, error) {
	c := defaults()
	if err := read(name, data, orProcess(env), c, (*reader).whole); err != nil {
		return nil, err
	}
	return c, nil
}

// whole reads all fields of a file.
func (r *reader) whole(root value, c *Config) {
	root.mapping(c.fields(), "routes", "backends")
	r.finish(c)
}

// orProcess is env, or for nil the environment of the process.
func orProcess(env func(string) (string, bool)) func(string) (string, bool) {
	if env == nil {
		return os.LookupEnv
	}
	return env
}

// read has a part of c read from data; env is as in reader.
func read(name string, data []byte, env func(string) (string, bool), c *Config, part func(*reader, value, *Config)) error {
	root, err := document(data)
	if err != nil {
		var f Fault
		if !errors.As(err, &f) {
			f.Text = err.Error()
		}
		f.File = name
		return Faults{f}
	}
	r := &reader{file: name, env: env, lines: make(map[string]int), broken: make(map[string]bool), origins: c.origins}
	r.refuse(root)
	part(r, value{r: r, node: root, line: 1}, c)
	if len(r.faults) > 0 {
		return r.faults.sorted(r.more)
	}
	return nil
}

// document returns the root of the one document in data.
func document(data []byte) (root *yaml.Node, err error) {
	if len(data) > maxBytes {
		return nil, Fault{Text: fmt.Sprintf("the file has more than %d bytes", maxBytes)}
	}
	// The parser has panicked on strange text before, and a bad file must not
	// end a proxy that runs.
	defer func() {
		if p := recover(); p != nil {
			root, err = nil, Fault{Line: 1, Text: fmt.Sprintf("is no YAML: %v", p)}
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, Fault{Line: 1, Text: "the file is empty; it needs routes and backends"}
	case err != nil:
		return nil, syntax(err, data)
	}
	switch err := d.Decode(&next); {
	case err == nil:
		return nil, Fault{Line: next.Line, Text: "a second document begins; a file has one"}
	case !errors.Is(err, io.EOF):
		return nil, syntax(err, data)
	}
	root = doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return nil, Fault{Line: 1, Text: "the file is empty; it needs routes and backends"}
	}
	return root, nil
}

var syntaxError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntax turns the parser's error into a fault.
func syntax(err error, data []byte) Fault {
	m := syntaxError.FindStringSubmatch(err.Error())
	if m == nil {
		return Fault{Line: 1, Text: "is no YAML: " + err.Error()}
	}
	line, _ := strconv.Atoi(m[1]) // no number: the whole file
	f := Fault{Line: line, Text: "is no YAML: " + m[2]}
	if tabbed(data, line) {
		f.Text += "; indent with spaces, not with tabs"
	}
	return f
}

// tabbed reports whether a line, counted from 1, is indented with a tab.
func tabbed(data []byte, line int) bool {
	lines := bytes.Split(data, []byte("\n"))
	if line < 1 || line > len(lines) {
		return false
	}
	text := lines[line-1]
	indent := text[:len(text)-len(bytes.TrimLeft(text, " \t"))]
	return bytes.IndexByte(indent, '\t') >= 0
}
