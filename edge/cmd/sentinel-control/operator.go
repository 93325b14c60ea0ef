package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/command"
	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/control"
	"github.com/sentinelgo/sentinel/edge/internal/store"
)

func (c *cli) validate(call *command.Call, args []string) int {
	rest, code, ok := call.Parse(args, 1)
	if !ok {
		return code
	}
	text, code, ok := contents(call, rest)
	if !ok {
		return code
	}
	checked, err := config.CheckShared(rest[0], text)
	if err != nil {
		return faulty(call, rest[0], err)
	}
	if call.JSON {
		return call.Print(verdict{File: rest[0], OK: true, Routes: len(checked.Routes), Backends: len(checked.Pools)})
	}
	_, err = fmt.Fprintf(call.Out, "%s: fine, routes: %d, backends: %d\n", rest[0], len(checked.Routes), len(checked.Pools))
	return call.Wrote(err)
}

// verdict is what validate says.
type verdict struct {
	File     string        `json:"file"`
	OK       bool          `json:"ok"`
	Routes   int           `json:"routes"`
	Backends int           `json:"backends"`
	Faults   config.Faults `json:"faults,omitempty"`
}

// contents reads the one file that the arguments name. If it returns false the
// command ends with the code.
func contents(call *command.Call, args []string) (text []byte, code int, ok bool) {
	if len(args) == 0 {
		return nil, call.Misuse(errors.New("which file?")), false
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return nil, faulty(call, args[0], err), false
	}
	return text, command.OK, true
}

func faulty(call *command.Call, file string, err error) int {
	var faults config.Faults
	switch {
	case !call.JSON:
		fmt.Fprintln(call.Err, err)
	case errors.As(err, &faults):
		call.Print(verdict{File: file, Faults: faults})
	default:
		call.Print(verdict{File: file, Faults: config.Faults{{File: file, Text: err.Error()}}})
	}
	return command.Misused
}

// note is what a write says of itself.
type note struct {
	author, comment string
	ifVersion       int64
}

func noteFlags(call *command.Call) *note {
	n := &note{}
	name := ""
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	call.Flags.StringVar(&n.author, "author", name, "`WHO` makes the version")
	call.Flags.StringVar(&n.comment, "comment", "", "`WHY`")
	call.Flags.Int64Var(&n.ifVersion, "if-version", -1, "only if `N` is the newest version; -1: whatever it is")
	return n
}

func (n *note) query() string {
	return url.Values{"author": {n.author}, "comment": {n.comment}}.Encode()
}

func (n *note) header() http.Header {
	if n.ifVersion < 0 {
		return http.Header{"If-Match": {"*"}}
	}
	return http.Header{"If-Match": {`"` + strconv.FormatInt(n.ifVersion, 10) + `"`}}
}

// outcome is what the control plane answers to a write.
type outcome struct {
	Version int64  `json:"version"`
	SHA256  string `json:"sha256"`
	Changed bool   `json:"changed"`
	Diff    string `json:"diff,omitempty"`
}

func (c *cli) apply(call *command.Call, args []string) int {
	n := noteFlags(call)
	dry := call.Flags.Bool("dry-run", false, "only say what would change")
	rest, code, ok := call.Parse(args, 1)
	if !ok {
		return code
	}
	text, code, ok := contents(call, rest)
	if !ok {
		return code
	}
	if *dry {
		return c.rehearse(call, rest[0], n.header(), text)
	}
	var o outcome
	if err := c.ask(http.MethodPut, "/v1/config?"+n.query(), n.header(), text, &o); err != nil {
		return c.failed(call, rest[0], err)
	}
	return made(call, o)
}

func made(call *command.Call, o outcome) int {
	if call.JSON {
		return call.Print(o)
	}
	text := fmt.Sprintf("version %d\n", o.Version)
	if !o.Changed {
		text = fmt.Sprintf("nothing changes; version %d has this content\n", o.Version)
	}
	_, err := fmt.Fprint(call.Out, text)
	return call.Wrote(err)
}

// rehearse says what a file would change.
func (c *cli) rehearse(call *command.Call, file string, header http.Header, text []byte) int {
	var o outcome
	if err := c.ask(http.MethodPut, "/v1/config?dry_run=true", header, text, &o); err != nil {
		return c.failed(call, file, err)
	}
	if call.JSON {
		return call.Print(o)
	}
	_, err := fmt.Fprint(call.Out, o.Diff)
	return call.Wrote(err)
}

func (c *cli) diff(call *command.Call, args []string) int {
	rest, code, ok := call.Parse(args, 2)
	if !ok {
		return code
	}
	if len(rest) == 0 {
		return call.Misuse(errors.New("of which file, or version?"))
	}
	if _, err := strconv.ParseInt(rest[0], 10, 64); err != nil && len(rest) == 1 {
		text, code, ok := contents(call, rest)
		if !ok {
			return code
		}
		return c.rehearse(call, rest[0], nil, text)
	}
	path := "/v1/versions/" + url.PathEscape(rest[len(rest)-1]) + "/diff"
	if len(rest) == 2 {
		path += "?from=" + url.QueryEscape(rest[0])
	}
	var d struct {
		From int64  `json:"from"`
		To   int64  `json:"to"`
		Diff string `json:"diff"`
	}
	if err := c.ask(http.MethodGet, path, nil, nil, &d); err != nil {
		return c.failed(call, "", err)
	}
	if call.JSON {
		return call.Print(d)
	}
	_, err := fmt.Fprint(call.Out, d.Diff)
	return call.Wrote(err)
}

func (c *cli) history(call *command.Call, args []string) int {
	limit := call.Flags.Int("limit", 20, "the last `N`")
	if _, code, ok := call.Parse(args, 0); !ok {
		return code
	}
	var all []store.Version
	if err := c.ask(http.MethodGet, "/v1/versions?limit="+strconv.Itoa(*limit), nil, nil, &all); err != nil {
		return c.failed(call, "", err)
	}
	if call.JSON {
		return call.Print(all)
	}
	t := tabwriter.NewWriter(call.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "VERSION\tMADE\tAUTHOR\tHASH\tCOMMENT")
	for _, v := range all {
		fmt.Fprintf(t, "%d\t%s\t%s\t%.12s\t%s\n", v.Number, v.Made.Local().Format(time.DateTime), v.Author, v.SHA256, v.Comment)
	}
	return call.Wrote(t.Flush())
}

func (c *cli) rollback(call *command.Call, args []string) int {
	n := noteFlags(call)
	rest, code, ok := call.Parse(args, 1)
	if !ok {
		return code
	}
	if len(rest) == 0 {
		return call.Misuse(errors.New("to which version?"))
	}
	if n.comment == "" {
		n.comment = "rollback to " + rest[0]
	}
	var o outcome
	if err := c.ask(http.MethodPost, "/v1/versions/"+url.PathEscape(rest[0])+"/rollback?"+n.query(), n.header(), nil, &o); err != nil {
		return c.failed(call, "", err)
	}
	return made(call, o)
}

func (c *cli) nodes(call *command.Call, args []string) int {
	if _, code, ok := call.Parse(args, 0); !ok {
		return code
	}
	var all []control.NodeStatus
	if err := c.ask(http.MethodGet, "/v1/nodes", nil, nil, &all); err != nil {
		return c.failed(call, "", err)
	}
	if call.JSON {
		return call.Print(all)
	}
	t := tabwriter.NewWriter(call.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tCONNECTED\tSINCE\tAPPLIED\tREFUSED\tWHY")
	for _, n := range all {
		refused := ""
		if n.Rejected != 0 {
			refused = strconv.FormatInt(n.Rejected, 10)
		}
		fmt.Fprintf(t, "%s\t%v\t%s\t%d\t%s\t%s\n", n.Name, n.Connected, time.Since(n.Since).Round(time.Second), n.Applied, refused, strings.Join(n.Errors, "; "))
	}
	return call.Wrote(t.Flush())
}

// refusal is what the control plane answers instead of what was asked.
type refusal struct {
	Status int           `json:"status"`
	Detail string        `json:"detail"`
	Faults config.Faults `json:"faults"`
	Newest int64         `json:"version,omitempty"`
}

func (r *refusal) Error() string { return r.Detail }

// ask sends a request to the control plane, and reads its answer.
func (c *cli) ask(method, path string, header http.Header, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	token, err := c.token()
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+c.admin+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if header != nil {
		r.Header = header
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("no control plane answers: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusOK {
		return json.Unmarshal(text, into)
	}
	said := &refusal{}
	if json.Unmarshal(text, said) != nil || said.Detail == "" {
		return fmt.Errorf("the control plane answers %s: %.200s", resp.Status, text)
	}
	return said
}

// failed says why there is no answer; it returns the exit code.
func (c *cli) failed(call *command.Call, file string, err error) int {
	var said *refusal
	if !errors.As(err, &said) {
		said = &refusal{Detail: err.Error()}
	}
	if file != "" {
		for i := range said.Faults {
			said.Faults[i].File = file
		}
		if len(said.Faults) > 0 {
			said.Detail = said.Faults.Error()
		}
	}
	if call.JSON {
		call.Print(said)
	} else {
		fmt.Fprintf(call.Err, "sentinel-control: %s\n", said.Detail)
	}
	if said.Status == http.StatusUnprocessableEntity {
		return command.Misused
	}
	return command.Failed
}
