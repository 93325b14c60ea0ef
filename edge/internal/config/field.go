package config

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// field is one key of a mapping: how it is read, and how it is shown.
type field struct {
	key  string
	read func(v value)
	show func() *yaml.Node // returns nil, or is nil, for what is not shown
}

func scalarNode(tag, text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text}
}

func textNode(text string) *yaml.Node { return scalarNode("!!str", text) }

// textField is a text. check returns what is wrong with it; nil takes all but the empty one.
func textField[T ~string](key string, into *T, check func(string) string) field {
	return field{key, func(v value) {
		if text, ok := v.text(check); ok {
			*into = T(text)
		}
	}, func() *yaml.Node {
		if *into == "" {
			return nil
		}
		return textNode(string(*into))
	}}
}

// text returns a text that check has nothing against.
func (v value) text(check func(string) string) (string, bool) {
	text, ok := v.scalar("text", "!!str")
	if !ok {
		return "", false
	}
	problem := ""
	switch {
	case text == "":
		problem = "is empty"
	case strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }):
		problem = "has a control character"
	case check != nil:
		problem = check(text)
	}
	if problem != "" {
		v.fault("%s", problem)
		return "", false
	}
	return text, true
}

// choiceField is one of several words.
func choiceField[T ~string](key string, into *T, choices ...T) field {
	f := textField(key, into, nil)
	f.read = func(v value) {
		text, ok := v.scalar("one of "+orList(choices), "!!str")
		if !ok {
			return
		}
		if !slices.Contains(choices, T(text)) {
			v.fault("must be one of %s", orList(choices))
			return
		}
		*into = T(text)
	}
	return f
}

func orList[T ~string](choices []T) string {
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = string(c)
	}
	return strings.Join(words, ", ")
}

// boolField is true or false.
func boolField(key string, into *bool) field {
	return field{key, func(v value) {
		switch text, ok := v.scalar("true or false", "!!bool"); {
		case !ok:
		case text != "true" && text != "false":
			v.fault("must be true or false")
		default:
			*into = text == "true"
		}
	}, func() *yaml.Node { return scalarNode("!!bool", strconv.FormatBool(*into)) }}
}

// wholeField is a whole number in a range.
func wholeField[T ~int | ~int64](key string, into *T, least, most int64) field {
	return field{key, func(v value) {
		if n, ok := v.whole(least, most); ok {
			*into = T(n)
		}
	}, func() *yaml.Node { return scalarNode("!!int", strconv.FormatInt(int64(*into), 10)) }}
}

func (v value) whole(least, most int64) (int64, bool) {
	text, ok := v.scalar("a whole number", "!!int", "!!float")
	if !ok {
		return 0, false
	}
	n, err := whole(text)
	if err != nil {
		v.fault("%v", err)
		return 0, false
	}
	if n < least || n > most {
		v.fault("must be from %d to %d", least, most)
		return 0, false
	}
	return n, true
}

// tokensField is a number of tokens, in microtokens.
func tokensField(key string, into *int64, least, most int64) field {
	return field{key, func(v value) {
		text, ok := v.scalar("a number", "!!int", "!!float")
		if !ok {
			return
		}
		n, err := microTokens(text)
		switch {
		case err != nil:
			v.fault("%v", err)
		case n < least || n > most:
			v.fault("must be from %s to %s", Decimal(least), Decimal(most))
		default:
			*into = n
		}
	}, func() *yaml.Node {
		tag := "!!int"
		if *into%token != 0 {
			tag = "!!float"
		}
		return scalarNode(tag, Decimal(*into))
	}}
}

// durationField is a duration in a range.
func durationField(key string, into *time.Duration, least, most time.Duration) field {
	return field{key, func(v value) {
		text, ok := v.scalar("a duration with a unit, as 250ms or 30s", "!!str")
		if !ok {
			return
		}
		d, err := time.ParseDuration(text)
		switch {
		case err != nil:
			v.fault("must be a duration with a unit, as 250ms or 30s")
		case d < least || d > most:
			v.fault("must be from %s to %s", duration(least), duration(most))
		default:
			*into = d
		}
	}, func() *yaml.Node { return textNode(duration(*into)) }}
}

// mostItems is the length of the longest list of scalars: none has a use for more.
const mostItems = 1000

// listField is a list, nothing in it twice, of scalars with a tag. parse returns
// what is wrong with one.
func listField[T comparable](key, want, tag string, into *[]T, parse func(string) (T, string), format func(T) string) field {
	return field{key, func(v value) {
		*into = nil
		items := v.items(want)
		if len(items) > mostItems {
			v.fault("has more than %d entries", mostItems)
			return
		}
		for _, item := range items {
			text, ok := item.scalar("one of "+want, tag)
			if !ok {
				v.r.broken[v.path] = true
				continue
			}
			one, problem := parse(text)
			if problem == "" && slices.Contains(*into, one) {
				problem = "is there already; remove one"
			}
			if problem != "" {
				item.fault("%s", problem)
				v.r.broken[v.path] = true
				continue
			}
			*into = append(*into, one)
		}
	}, func() *yaml.Node {
		list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, one := range *into {
			list.Content = append(list.Content, scalarNode(tag, format(one)))
		}
		return list
	}}
}

// objectField is a mapping with fields of its own.
func objectField(key string, fields []field) field {
	return field{key, func(v value) { v.mapping(fields) }, func() *yaml.Node { return render(fields) }}
}

// objectsField is a list of mappings. fresh is one with its defaults, and fields
// are those of one.
func objectsField[T any](key, want string, into *[]T, fresh func(line int) T, fields func(*T) []field, required ...string) field {
	return field{key, func(v value) {
		items := v.items(want)
		*into = make([]T, len(items))
		for i, item := range items {
			(*into)[i] = fresh(item.line)
			item.mapping(fields(&(*into)[i]), required...)
		}
	}, func() *yaml.Node {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range *into {
			list.Content = append(list.Content, render(fields(&(*into)[i])))
		}
		return list
	}}
}

// render is the mapping of what the fields show.
func render(fields []field) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, f := range fields {
		if f.show == nil {
			continue
		}
		if n := f.show(); n != nil {
			m.Content = append(m.Content, textNode(f.key), n)
		}
	}
	return m
}
