package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Write writes the effective configuration as YAML: every default is there, and a
// value that came from the environment is ${NAME}. It loads again, and is the
// same then.
func (c *Config) Write(w io.Writer) error {
	return encode(w, c.shown())
}

// WriteJSON is [Config.Write] as JSON.
func (c *Config) WriteJSON(w io.Writer) error {
	var compact, out bytes.Buffer
	if err := writeJSON(&compact, c.shown()); err != nil {
		return err
	}
	if err := json.Indent(&out, compact.Bytes(), "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err := w.Write(out.Bytes())
	return err
}

// Hash is the same for configurations that do the same: comments, the order of keys
// and short forms do not matter, values from the environment do.
func (c *Config) Hash() string {
	plain := *c
	plain.origins = nil
	var b bytes.Buffer
	if err := writeJSON(&b, render(plain.fields())); err != nil { // a tenth of what YAML costs
		panic("config: " + err.Error()) // plain nodes, into memory
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:])
}

// shown is the effective configuration without what the environment has.
func (c *Config) shown() *yaml.Node {
	root := render(c.fields())
	c.hide(root, "")
	return root
}

// hide puts the names of variables in the place of their values.
func (c *Config) hide(n *yaml.Node, path string) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if path != "" {
				key = path + "." + key
			}
			c.hide(n.Content[i+1], key)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			c.hide(item, fmt.Sprintf("%s[%d]", path, i))
		}
	case yaml.ScalarNode:
		if name := c.origins[path]; name != "" {
			*n = *textNode("${" + name + "}")
		}
	}
}

func encode(w io.Writer, n *yaml.Node) error {
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(n); err != nil {
		return err
	}
	return e.Close()
}

// writeJSON writes a node that render has made.
func writeJSON(b *bytes.Buffer, n *yaml.Node) error {
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strconv.Quote(n.Content[i].Value) + ":")
			if err := writeJSON(b, n.Content[i+1]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeJSON(b, item); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	default:
		if n.Tag != "!!str" { // a number or a truth value, which JSON writes alike
			b.WriteString(n.Value)
			return nil
		}
		text, err := json.Marshal(n.Value)
		if err != nil {
			return err
		}
		b.Write(text)
	}
	return nil
}
