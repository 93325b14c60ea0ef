package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func file(t testing.TB) string { return filepath.Join(t.TempDir(), "control #1?.db") }

// add appends a version with this content.
func add(t testing.TB, s *Store, content string) Version {
	t.Helper()
	v, _, err := s.Append(t.Context(), func(Version) (Draft, error) {
		return Draft{Content: []byte(content), Author: "ann", Comment: "why " + content}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestWhatIsAppendedIsThereAgain(t *testing.T) {
	path := file(t)
	s := open(t, path, Options{})
	if v, err := s.Latest(t.Context()); err != nil || v.Number != 0 {
		t.Fatalf("a new store has version %d, %v", v.Number, err)
	}
	if _, err := s.Version(t.Context(), 1); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	add(t, s, "one")
	add(t, s, "two")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, path, Options{Existing: true})
	if again.Epoch() != s.Epoch() || again.Epoch() == "" {
		t.Errorf("the epoch was %q and is %q", s.Epoch(), again.Epoch())
	}
	v, err := again.Latest(t.Context())
	if err != nil || v.Number != 2 || string(v.Content) != "two" || v.Author != "ann" || v.Comment != "why two" || time.Since(v.Made) > time.Minute {
		t.Errorf("got %+v, %v", v, err)
	}
	history, err := again.History(t.Context(), 0, 10)
	if err != nil || len(history) != 2 || history[0].Number != 2 || history[1].Number != 1 || history[1].Content != nil {
		t.Errorf("got %+v, %v", history, err)
	}
	if history, err = again.History(t.Context(), 2, 10); err != nil || len(history) != 1 || history[0].Number != 1 {
		t.Errorf("before 2: %+v, %v", history, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is for others: %v %v", info.Mode(), err)
	}
}

func TestAnEqualContentIsNoVersion(t *testing.T) {
	s := open(t, file(t), Options{})
	add(t, s, "one")
	v, appended, err := s.Append(t.Context(), func(newest Version) (Draft, error) {
		return Draft{Content: newest.Content, Author: "bob"}, nil
	})
	if err != nil || appended || v.Number != 1 || v.Author != "ann" {
		t.Errorf("got %+v, %v, %v", v, appended, err)
	}
}

func TestARefusedChangeLeavesNothing(t *testing.T) {
	s := open(t, file(t), Options{})
	refused := errors.New("refused")
	for range 3 {
		if _, _, err := s.Append(t.Context(), func(Version) (Draft, error) { return Draft{}, refused }); !errors.Is(err, refused) {
			t.Fatal(err)
		}
	}
	if v := add(t, s, "one"); v.Number != 1 {
		t.Errorf("the first version is %d", v.Number)
	}
}

// The numbers of dropped versions are not given again.
func TestOldVersionsAreDropped(t *testing.T) {
	path := file(t)
	s := open(t, path, Options{Keep: 3})
	for i := range 10 {
		add(t, s, fmt.Sprint(i))
	}
	history, err := s.History(t.Context(), 0, 100)
	if err != nil || len(history) != 3 || history[2].Number != 8 {
		t.Fatalf("got %+v, %v", history, err)
	}
	if _, err := s.writer.ExecContext(t.Context(), "DELETE FROM versions"); err != nil {
		t.Fatal(err)
	}
	if v := add(t, s, "again"); v.Number != 11 {
		t.Errorf("the next version is %d", v.Number)
	}
}

func TestWritersAtOnceAllSucceed(t *testing.T) {
	s := open(t, file(t), Options{})
	const writers, edits = 8, 100
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for e := range edits {
				_, appended, err := s.Append(t.Context(), func(newest Version) (Draft, error) {
					return Draft{Content: append(newest.Content, fmt.Sprintf("%d/%d\n", w, e)...)}, nil
				})
				if err != nil || !appended {
					t.Errorf("writer %d, edit %d: %v", w, e, err)
				}
			}
		})
	}
	all.Wait()
	v, err := s.Latest(t.Context())
	if err != nil || v.Number != writers*edits || strings.Count(string(v.Content), "\n") != writers*edits {
		t.Errorf("version %d with %d edits, %v", v.Number, strings.Count(string(v.Content), "\n"), err)
	}
}

// Two stores on one file are as two processes.
func TestALockedFileIsBusyForAWhile(t *testing.T) {
	path := file(t)
	s, other := open(t, path, Options{Busy: 50 * time.Millisecond}), open(t, path, Options{})
	add(t, s, "one")
	held, err := other.writer.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = s.Append(t.Context(), func(Version) (Draft, error) { return Draft{Content: []byte("two")}, nil })
	if !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	if v, err := s.Latest(t.Context()); err != nil || v.Number != 1 {
		t.Errorf("reading waits for it: %+v, %v", v, err)
	}
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	add(t, s, "two")
}

func TestADamagedFileIsNotOpened(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good")
	s := open(t, good, Options{})
	add(t, s, strings.Repeat("content", 10_000))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		damage func([]byte) []byte
		want   error
	}{
		"a header of zeros":   {func(b []byte) []byte { return append(make([]byte, 100), b[100:]...) }, ErrCorrupt},
		"empty":               {func([]byte) []byte { return nil }, ErrCorrupt},
		"cut":                 {func(b []byte) []byte { return b[:len(b)/2] }, ErrCorrupt},
		"text":                {func([]byte) []byte { return []byte(strings.Repeat("routes: []\n", 1000)) }, ErrCorrupt},
		"one letter":          {func(b []byte) []byte { return []byte(strings.Replace(string(b), "tcontent", "tc0ntent", 1)) }, ErrCorrupt},
		"of something else":   {func(b []byte) []byte { b[68]++; return b }, ErrForeign},
		"of a later program":  {func(b []byte) []byte { b[63]++; return b }, ErrForeign},
		"a page of the table": {func(b []byte) []byte { copy(b[4096*2:], make([]byte, 4096)); return b }, ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad")
			bad := c.damage([]byte(string(data)))
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(t.Context(), path, Options{})
			if err == nil {
				s.Close()
			}
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if left, err := os.ReadFile(path); err != nil || name != "a page of the table" && len(left) != len(bad) {
				t.Errorf("the file has %d bytes now, and had %d: %v", len(left), len(bad), err)
			}
		})
	}
	if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "none"), Options{Existing: true}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestABackupHasAllAndAnotherEpoch(t *testing.T) {
	s := open(t, file(t), Options{})
	add(t, s, "one")
	add(t, s, "two")
	to := filepath.Join(t.TempDir(), "backup.db")
	if err := s.Backup(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if err := s.Backup(t.Context(), to); !errors.Is(err, os.ErrExist) {
		t.Errorf("it writes over what is there: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(to)); err != nil || len(entries) != 1 {
		t.Errorf("it leaves %v, %v", entries, err)
	}
	b := open(t, to, Options{Existing: true})
	if v, err := b.Latest(t.Context()); err != nil || v.Number != 2 || string(v.Content) != "two" {
		t.Errorf("got %+v, %v", v, err)
	}
	if b.Epoch() == s.Epoch() {
		t.Error("it has the epoch of the original")
	}
	if v := add(t, b, "three"); v.Number != 3 {
		t.Errorf("its next version is %d", v.Number)
	}
}

func TestANewEpochIsAskedFor(t *testing.T) {
	path := file(t)
	s := open(t, path, Options{})
	if again := open(t, path, Options{NewEpoch: true}); again.Epoch() == s.Epoch() {
		t.Error("it is the old one")
	}
}

// The settings hold on every connection of both pools, and not on the first only.
func TestEveryConnectionHasTheSettings(t *testing.T) {
	s := open(t, file(t), Options{})
	ctx := context.Background()
	for name, db := range map[string]*sql.DB{"reader": s.reader, "writer": s.writer} {
		for range db.Stats().MaxOpenConnections {
			c, err := db.Conn(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var got [4]string
			err = c.QueryRowContext(ctx, "SELECT (SELECT timeout FROM pragma_busy_timeout), (SELECT journal_mode FROM pragma_journal_mode), (SELECT synchronous FROM pragma_synchronous), (SELECT foreign_keys FROM pragma_foreign_keys)").
				Scan(&got[0], &got[1], &got[2], &got[3])
			if want := [4]string{"5000", "wal", "2", "1"}; err != nil || got != want {
				t.Errorf("%s: %v, want %v; %v", name, got, want, err)
			}
		}
	}
}
