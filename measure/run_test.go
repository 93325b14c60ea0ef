package measure

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type lab struct{ ran []string }

func experiments() []Experiment[*lab] {
	var all []Experiment[*lab]
	for _, name := range []string{"a", "b", "bad"} {
		all = append(all, Experiment[*lab]{name, func(l *lab) (*Section, error) {
			l.ran = append(l.ran, name)
			if name == "bad" {
				return nil, errors.New("no")
			}
			return &Section{Title: "section " + name}, nil
		}})
	}
	return all
}

func TestParse(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]struct {
		plan   Plan
		chosen string
		fault  string
	}{
		"":                   {Plan{Rounds: 2, Cell: time.Millisecond}, "a b bad", ""},
		"-full -o x":         {Plan{Full: true, Rounds: 5, Cell: time.Second, File: "x"}, "a b bad", ""},
		"-rounds 3 -cell 1m": {Plan{Rounds: 3, Cell: time.Minute}, "a b bad", ""},
		"-only b,a":          {Plan{Rounds: 2, Cell: time.Millisecond}, "b a", ""},
		"-only a,nothing":    {Plan{Rounds: 2, Cell: time.Millisecond}, "", `no experiment "nothing"; there are a, b, bad`},
		"-rounds nothing":    {Plan{}, "", "invalid value"},
	} {
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		var plan Plan
		chosen, err := Parse(&plan, flags, strings.Fields(args), experiments(), time.Second, time.Millisecond)
		if want.fault != "" {
			if err == nil || !strings.Contains(err.Error(), want.fault) {
				t.Errorf("%s: %v, want %q", args, err, want.fault)
			}
			continue
		}
		got := strings.ReplaceAll(Names(chosen, func(e Experiment[*lab]) string { return e.Name }), ",", "")
		if err != nil || plan != want.plan || got != want.chosen {
			t.Errorf("%s: %+v, %s, %v, want %+v", args, plan, got, err, want)
		}
	}
}

func TestRunAll(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	file := filepath.Join(t.TempDir(), "report.md")
	if err := RunAll(t.Context(), &lab{}, experiments()[:2], &Report{Title: "T"}, &out, file); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{out.String(), string(written)} {
		if !strings.HasPrefix(text, "# T\n") || strings.Index(text, "## section a") > strings.Index(text, "## section b") {
			t.Errorf("the report is\n%s", text)
		}
	}
	l := &lab{}
	if err := RunAll(t.Context(), l, experiments(), &Report{}, io.Discard, ""); err == nil || err.Error() != "bad: no" {
		t.Errorf("%v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	l = &lab{}
	if err := RunAll(ended, l, experiments(), &Report{}, io.Discard, ""); !errors.Is(err, context.Canceled) || len(l.ran) != 1 {
		t.Errorf("%v, ran %v", err, l.ran)
	}
}
