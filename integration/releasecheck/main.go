// Command releasecheck proves the user's side of a release before there is one.
//
// In the workspace the modules find each other through go.work and replace,
// which a user has neither of. So it takes the committed files, strips replace,
// sets one version in every require, packs the modules into a file GOPROXY, and
// does in an empty folder what README tells a newcomer: go get, the program,
// the policy file, then a build of each library by itself, and go install of each
// command. It needs git, and the module
// proxy for the dependencies that are not ours.
//
// Run it from the root of the workspace: make release-check.
package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"
)

const (
	prefix  = "github.com/sentinelgo/sentinel"
	version = "v0.1.0"
)

// commands are what go install offers, and the arguments that make each prove
// itself and end.
var commands = map[string][]string{
	prefix + "/examples/quickstart": {"-tour"},
	prefix + "/examples/worker":     nil,
	prefix + "/edge/cmd/sentinel":   {"version"},
	prefix + "/sentinelctl":         {"check", "-no-env", "-ignore", "inline-secret", "sentinel.json"},
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("release-check: ")
	if err := run(); err != nil {
		log.Fatal(err)
	}
	log.Print("a user can get, build, run and install ", version)
}

func run() error {
	tmp, err := os.MkdirTemp("", "release-check")
	if err != nil {
		return err
	}
	defer func() {
		// The module cache is read-only on purpose.
		_ = exec.Command("chmod", "-R", "u+w", tmp).Run()
		_ = os.RemoveAll(tmp)
	}()
	proxy := filepath.Join(tmp, "proxy")
	modules, err := workspaceModules()
	if err != nil {
		return err
	}
	var libraries []string
	for _, dir := range modules {
		if library(dir) {
			libraries = append(libraries, prefix+"/"+filepath.ToSlash(dir))
		}
		if err := pack(dir, filepath.Join(tmp, "src", dir), proxy); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	u, err := newUser(tmp, proxy)
	if err != nil {
		return err
	}
	return errors.Join(u.followReadme(), u.buildLibraries(libraries), u.installCommands())
}

// library reports whether users import the module in dir.
func library(dir string) bool {
	return !slices.Contains([]string{"bench", "edge", "edge/bench", "examples", "integration", "measure", "sentinelctl"}, filepath.ToSlash(dir))
}

// workspaceModules returns the folders of go.work.
func workspaceModules() ([]string, error) {
	data, err := os.ReadFile("go.work")
	if err != nil {
		return nil, fmt.Errorf("run it from the root of the workspace: %w", err)
	}
	work, err := modfile.ParseWork("go.work", data, nil)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, use := range work.Use {
		dirs = append(dirs, filepath.Clean(use.Path))
	}
	return dirs, nil
}

// pack puts the module of dir, as committed, into the proxy.
func pack(dir, src, proxy string) error {
	if err := export(dir, src); err != nil {
		return err
	}
	path, gomod, err := releaseModfile(filepath.Join(src, "go.mod"))
	if err != nil {
		return err
	}
	escaped, err := module.EscapePath(path)
	if err != nil {
		return err
	}
	at := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": time.Now().UTC().Format(time.RFC3339)})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := modzip.CreateFromDir(&archive, module.Version{Path: path, Version: version}, src); err != nil {
		return err
	}
	if err := hasLicense(archive.Bytes()); err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": info, version + ".mod": gomod, version + ".zip": archive.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(at, name), data, 0o644); err != nil {
			return err
		}
	}
	log.Printf("packed %s %s, %d KiB", path, version, archive.Len()>>10)
	return nil
}

// export writes the committed files of dir to src, those of modules below it
// excepted, and the licence as the go command does.
func export(dir, src string) error {
	archive, err := exec.Command("git", "archive", "--format=zip", "HEAD", "LICENSE", dir).Output()
	if err != nil {
		return fmt.Errorf("git archive: %w", err)
	}
	files, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return err
	}
	for _, f := range files.File {
		name := strings.TrimPrefix(f.Name, filepath.ToSlash(dir)+"/")
		if strings.HasSuffix(name, "/") || name == "" {
			continue
		}
		if err := copyOut(f, filepath.Join(src, filepath.FromSlash(name))); err != nil {
			return err
		}
	}
	return nil
}

func copyOut(f *zip.File, to string) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// releaseModfile rewrites a go.mod as a release has it and returns the module's
// path: our own modules at the one version, and no replace.
func releaseModfile(name string) (path string, data []byte, err error) {
	data, err = os.ReadFile(name)
	if err != nil {
		return "", nil, err
	}
	f, err := modfile.Parse(name, data, nil)
	if err != nil {
		return "", nil, err
	}
	for _, r := range slices.Clone(f.Replace) {
		if !strings.HasPrefix(r.Old.Path, prefix+"/") {
			return "", nil, fmt.Errorf("go.mod replaces %s, which a user would not", r.Old.Path)
		}
		if err := f.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return "", nil, err
		}
	}
	for _, r := range slices.Clone(f.Require) {
		if strings.HasPrefix(r.Mod.Path, prefix+"/") {
			if err := f.AddRequire(r.Mod.Path, version); err != nil {
				return "", nil, err
			}
		}
	}
	f.Cleanup()
	data, err = f.Format()
	if err != nil {
		return "", nil, err
	}
	return f.Module.Mod.Path, data, os.WriteFile(name, data, 0o644)
}

func hasLicense(archive []byte) error {
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(r.File, func(f *zip.File) bool { return strings.HasSuffix(f.Name, "/LICENSE") }) {
		return errors.New("the module has no LICENSE")
	}
	return nil
}

// user is somebody with an empty folder and the go command.
type user struct {
	dir string // the empty folder
	bin string
	env []string
}

// newUser returns a user whose module cache is new, so that a Sentinel of an
// earlier run is not taken for this one. Other modules come from this machine's
// cache where it has them.
func newUser(tmp, proxy string) (*user, error) {
	out, err := exec.Command("go", "env", "-json", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return nil, err
	}
	var env struct{ GOMODCACHE, GOPROXY string }
	if err := json.Unmarshal(out, &env); err != nil {
		return nil, err
	}
	u := &user{dir: filepath.Join(tmp, "app"), bin: filepath.Join(tmp, "bin")}
	u.env = append(os.Environ(),
		"GOWORK=off", "GOFLAGS=", "GONOSUMDB="+prefix+"/*", "GOBIN="+u.bin,
		"GOMODCACHE="+filepath.Join(tmp, "modcache"),
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(env.GOMODCACHE, "cache", "download")+","+env.GOPROXY)
	return u, os.Mkdir(u.dir, 0o755)
}

func (u *user) run(name string, args ...string) error {
	log.Print("$ ", name, " ", strings.Join(args, " "))
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = u.dir, u.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// followReadme does what README says, in its order.
func (u *user) followReadme() error {
	text, err := os.ReadFile("README.md")
	if err != nil {
		return err
	}
	program, policy := block(text, "go"), block(text, "json")
	gets := regexp.MustCompile(`(?m)^go get .*$`).FindAllString(string(text), -1)
	if program == "" || policy == "" || len(gets) == 0 {
		return errors.New("README.md lacks its go get line, its program or its policy file")
	}
	for name, data := range map[string]string{"main.go": program, "sentinel.json": policy} {
		if err := os.WriteFile(filepath.Join(u.dir, name), []byte(data), 0o644); err != nil {
			return err
		}
	}
	if err := u.run("go", "mod", "init", "example.com/app"); err != nil {
		return err
	}
	for _, get := range gets {
		if err := u.run("go", strings.Fields(get)[1:]...); err != nil {
			return err
		}
	}
	if err := u.run("go", "build", "-o", "app", "."); err != nil {
		return err
	}
	return u.try(filepath.Join(u.dir, "app"))
}

// block returns the first fenced block of a language.
func block(text []byte, language string) string {
	m := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```").FindSubmatch(text)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// buildLibraries gets each module by itself, in a module that has nothing else,
// and builds it.
func (u *user) buildLibraries(paths []string) error {
	var errs []error
	alone := *u
	for _, path := range paths {
		alone.dir = filepath.Join(u.dir, "alone", filepath.Base(path))
		errs = append(errs, os.MkdirAll(alone.dir, 0o755), alone.run("go", "mod", "init", "example.com/alone"),
			alone.run("go", "get", path+"@"+version), alone.run("go", "build", path+"/..."))
	}
	return errors.Join(errs...)
}

func (u *user) installCommands() error {
	var errs []error
	for path, args := range commands {
		errs = append(errs, u.run("go", "install", path+"@"+version),
			u.run(filepath.Join(u.bin, filepath.Base(path)), args...))
	}
	return errors.Join(errs...)
}
