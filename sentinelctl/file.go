package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// policyFile is a policy file that has been read.
type policyFile struct {
	name  string
	cfg   *sentinel.Config
	lines map[string]int // of each field, by its path as in a fault
	plain map[string]string
}

// unset is how core says that a variable is missing.
var unset = regexp.MustCompile(`^environment variable (\w+) is unset or empty$`)

// read loads FILE, or returns why not: faults, or an error that has none. With
// standIn, variables that are not set are stood in for: of use where only the
// policies matter, and the secrets are elsewhere.
func read(name string, standIn bool) (*policyFile, []sentinel.Fault, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	cfg, err := sentinel.LoadConfig(name)
	if standIn && err != nil {
		for _, f := range sentinel.Faults(err) {
			m := unset.FindStringSubmatch(f.Text)
			if m == nil {
				continue
			}
			value := rand.Text() + rand.Text()
			if f.Path == "app.redis_url" {
				value = "redis://localhost"
			}
			if err := os.Setenv(m[1], value); err != nil {
				return nil, nil, err
			}
			defer func() { _ = os.Unsetenv(m[1]) }()
		}
		cfg, err = sentinel.LoadConfig(name)
	}
	if err != nil {
		if faults := sentinel.Faults(err); faults != nil {
			return nil, faults, nil
		}
		return nil, nil, err
	}
	f := &policyFile{name: name, cfg: cfg, lines: map[string]int{}, plain: map[string]string{}}
	f.scan(data)
	return f, nil, nil
}

// load is read for the commands that need a good file, and says what is not.
func (c *cli) load(name string, standIn bool) *policyFile {
	f, faults, err := read(name, standIn)
	if err != nil {
		fmt.Fprintln(c.err, "sentinelctl:", err)
	}
	for _, fault := range faults {
		fmt.Fprintln(c.err, position(name, fault.Line, fault.Column)+fault.String())
	}
	return f
}

// position is the beginning of a line that editors make a link of.
func position(file string, line, column int) string {
	switch {
	case line == 0:
		return file + ": "
	case column == 0:
		return fmt.Sprintf("%s:%d: ", file, line)
	default:
		return fmt.Sprintf("%s:%d:%d: ", file, line, column)
	}
}

// scan notes where each member of a good file is, and the texts of app.
func (f *policyFile) scan(data []byte) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	f.value(d, data, "")
}

func (f *policyFile) value(d *json.Decoder, data []byte, path string) {
	token, err := d.Token()
	if err != nil {
		return
	}
	switch t := token.(type) {
	case json.Delim:
		for i := 0; d.More(); i++ {
			inner := path + "[" + strconv.Itoa(i) + "]"
			if t == '{' {
				name, _ := d.Token()
				inner = join(path, fmt.Sprint(name))
				f.lines[inner] = bytes.Count(data[:d.InputOffset()], []byte("\n")) + 1
			}
			f.value(d, data, inner)
		}
		_, _ = d.Token() // its end
	case string:
		f.plain[path] = t
	}
}

// join is the path of a member, as core writes it.
func join(path, name string) string {
	switch path {
	case "":
		return name
	case "policies":
		return "policies[" + strconv.Quote(name) + "]"
	default:
		return path + "." + name
	}
}

// twins are the names that set the same field.
var twins = map[string]string{
	"fallback_rate_per_process_micro": "fallback_per_second",
	"capacity_micro":                  "capacity",
	"refill_rate_micro_per_sec":       "refill_per_second",
	"window_size_micro":               "window",
}

// place returns the path as it is written in the file, and its line: that of the
// field, or of the object that it would be in; 0 of neither.
func (f *policyFile) place(path string) (string, int) {
	if line := f.lines[path]; line > 0 {
		return path, line
	}
	dot := strings.LastIndexByte(path, '.')
	if dot < 0 || strings.HasSuffix(path, "]") {
		return path, 0
	}
	object, name := path[:dot], path[dot+1:]
	if line := f.lines[object+"."+twins[name]]; line > 0 {
		return object + "." + twins[name], line
	}
	return path, f.lines[object]
}

// policyPath names a policy as core does.
func policyPath(id string) string { return join("policies", id) }

// holds reports whether a secret, alone or in a list, stands in the file. Of
// redis_url only one with a password is a secret.
func (f *policyFile) holds(path string) bool {
	for at, text := range f.plain {
		inList := strings.HasPrefix(at, path+"[")
		if (at == path || inList) && text != "" && !strings.HasPrefix(text, "${") &&
			(path != "app.redis_url" || strings.Contains(text, "@")) {
			return true
		}
	}
	return false
}
