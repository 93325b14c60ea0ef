// Package store keeps the versions of the shared configuration in a SQLite file.
//
// A version is a whole document and never changes. Its number is never given
// twice, also not after a version is dropped. What Append has returned is on the
// disk: it survives the process and the machine.
package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Options of a store.
type Options struct {
	// Existing refuses to make a file that is not there.
	Existing bool
	// NewEpoch makes the numbers of versions a new sequence for all nodes. It is for
	// a file that was copied back from an earlier day: nodes have seen later versions
	// and would refuse its own.
	NewEpoch bool
	// Keep is how many versions stay; 0: all.
	Keep int64
	// Busy is how long a write waits for another process that has the file locked.
	// Default 5s.
	Busy time.Duration
}

// Store is an open file. It is safe for concurrent use: writes wait for each
// other, and reads for nothing.
type Store struct {
	path   string
	epoch  string
	keep   int64
	writer *sql.DB // of one connection
	reader *sql.DB
}

// Version is one document.
type Version struct {
	Number  int64     `json:"version"` // from 1; 0: there is none
	SHA256  string    `json:"sha256"`  // of the content, in hex
	Author  string    `json:"author"`
	Comment string    `json:"comment"`
	Made    time.Time `json:"made"`
	Content []byte    `json:"-"` // nil in a history
}

// Draft is what a version is made from.
type Draft struct {
	Content         []byte
	Author, Comment string
}

const (
	application = 0x53656e74 // how SQLite knows that a file is one of ours
	schema      = 1

	tables = `
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE versions (
	version INTEGER PRIMARY KEY AUTOINCREMENT,
	content BLOB NOT NULL,
	sha256  TEXT NOT NULL,
	author  TEXT NOT NULL,
	comment TEXT NOT NULL,
	made    INTEGER NOT NULL -- milliseconds since 1970
) STRICT;`
)

// Open opens a file, and makes it if it is not there. A file that is damaged is
// [ErrCorrupt]: it is never replaced by an empty one.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if o.Busy == 0 {
		o.Busy = 5 * time.Second
	}
	if err := present(ctx, path, o); err != nil {
		return nil, err
	}
	s := &Store{path: path, keep: o.Keep}
	var err error
	if s.writer, err = connect(path, o.Busy, "_txlock", "immediate"); err != nil {
		return nil, err
	}
	s.writer.SetMaxOpenConns(1)
	if s.reader, err = connect(path, o.Busy, "_pragma", "query_only(1)"); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.reader.SetMaxOpenConns(4)
	if err := s.begin(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// connect opens the database. The settings are in its name, because those that a
// statement makes reach one connection of the pool only.
func connect(path string, busy time.Duration, key, value string) (*sql.DB, error) {
	q := url.Values{"_pragma": {
		"busy_timeout(" + strconv.FormatInt(busy.Milliseconds(), 10) + ")",
		"journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)",
	}}
	q.Add(key, value)
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String())
	return db, known(err)
}

// present makes the file if it may. It comes into being complete, under another
// name first: an empty file at path is always a damaged one.
func present(ctx context.Context, path string, o Options) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.Size() == 0:
		return fmt.Errorf("store: %s is empty: %w", path, ErrCorrupt)
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist) || o.Existing:
		return fmt.Errorf("store: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing of it is needed
	fresh := filepath.Join(dir, "new")
	if err := create(ctx, fresh, o.Busy); err != nil {
		return err
	}
	return place(fresh, path)
}

// create writes a store without versions.
func create(ctx context.Context, path string, busy time.Duration) error {
	db, err := connect(path, busy, "_txlock", "immediate")
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d;%s INSERT INTO meta VALUES ('epoch', '%s')",
		application, schema, tables, newEpoch()))
	return errors.Join(known(err), known(db.Close()))
}

// place gives a whole file its name, unless that is taken.
func place(fresh, path string) error {
	if err := os.Chmod(fresh, 0o600); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if err := flush(fresh); err != nil {
		return err
	}
	if err := os.Link(fresh, path); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return flush(filepath.Dir(path))
}

// flush has a file or a directory on the disk.
func flush(path string) error {
	f, err := os.Open(path) // #nosec G304 -- the operator's
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing is written by it
	if err := f.Sync(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

func newEpoch() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// begin looks whether the file is ours and whole.
func (s *Store) begin(ctx context.Context, o Options) error {
	if err := s.Check(ctx); err != nil {
		return err
	}
	if o.NewEpoch {
		if _, err := s.writer.ExecContext(ctx, "UPDATE meta SET value = ? WHERE key = 'epoch'", newEpoch()); err != nil {
			return known(err)
		}
	}
	return known(s.reader.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = 'epoch'").Scan(&s.epoch))
}

// Check reads the whole file and says what is wrong with it.
func (s *Store) Check(ctx context.Context) error {
	var id, version int64
	var verdict string
	row := s.reader.QueryRowContext(ctx, "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), (SELECT quick_check FROM pragma_quick_check LIMIT 1)")
	if err := row.Scan(&id, &version, &verdict); err != nil {
		return known(err)
	}
	switch {
	case verdict != "ok":
		return fmt.Errorf("store: %s: %s: %w", s.path, verdict, ErrCorrupt)
	case id != application:
		return fmt.Errorf("store: %s is a database of something else: %w", s.path, ErrForeign)
	case version != schema:
		return fmt.Errorf("store: %s has format %d, and this program knows %d; use the program that wrote it: %w", s.path, version, schema, ErrForeign)
	}
	_, err := s.Latest(ctx)
	return err
}

// Epoch names the sequence of versions. It changes when that begins again.
func (s *Store) Epoch() string { return s.epoch }

// Latest is the newest version; its Number is 0 if there is none.
func (s *Store) Latest(ctx context.Context) (Version, error) {
	return latest(ctx, s.reader)
}

// Newest is the number of the newest version, 0 if there is none.
func (s *Store) Newest(ctx context.Context) (n int64, err error) {
	err = s.reader.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM versions").Scan(&n)
	return n, known(err)
}

// Version is the one with this number, or [ErrNotFound].
func (s *Store) Version(ctx context.Context, number int64) (Version, error) {
	return one(s.reader.QueryRowContext(ctx, columns+"WHERE version = ?", number))
}

// History is up to limit versions without their content, the newest first, all
// older than before; 0 is from the newest on.
func (s *Store) History(ctx context.Context, before int64, limit int) ([]Version, error) {
	rows, err := s.reader.QueryContext(ctx, "SELECT version, sha256, author, comment, made FROM versions WHERE ?1 = 0 OR version < ?1 ORDER BY version DESC LIMIT ?2", before, limit)
	if err != nil {
		return nil, known(err)
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	all := []Version{}
	for rows.Next() {
		var v Version
		var made int64
		if err := rows.Scan(&v.Number, &v.SHA256, &v.Author, &v.Comment, &made); err != nil {
			return nil, known(err)
		}
		v.Made = time.UnixMilli(made)
		all = append(all, v)
	}
	return all, known(rows.Err())
}

const columns = "SELECT version, content, sha256, author, comment, made FROM versions "

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func latest(ctx context.Context, q querier) (Version, error) {
	v, err := one(q.QueryRowContext(ctx, columns+"ORDER BY version DESC LIMIT 1"))
	if errors.Is(err, ErrNotFound) {
		return Version{}, nil
	}
	return v, err
}

// one reads a version, and holds its content to its hash.
func one(row *sql.Row) (Version, error) {
	var v Version
	var made int64
	if err := row.Scan(&v.Number, &v.Content, &v.SHA256, &v.Author, &v.Comment, &made); err != nil {
		return Version{}, known(err)
	}
	if hash(v.Content) != v.SHA256 {
		return Version{}, fmt.Errorf("store: the content of version %d is not what was written: %w", v.Number, ErrCorrupt)
	}
	v.Made = time.UnixMilli(made)
	return v, nil
}

func hash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Append makes the next version from the newest, in one transaction: no other
// write comes between what change sees and what it returns. Where the content
// does not change there is no new version, and it returns the newest and false.
func (s *Store) Append(ctx context.Context, change func(newest Version) (Draft, error)) (v Version, appended bool, err error) {
	tx, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return Version{}, false, known(err)
	}
	defer func() { _ = tx.Rollback() }() // it is over if it was committed
	newest, err := latest(ctx, tx)
	if err != nil {
		return Version{}, false, err
	}
	d, err := change(newest)
	if err != nil {
		return Version{}, false, err
	}
	v = Version{SHA256: hash(d.Content), Author: d.Author, Comment: d.Comment, Made: time.Now().Truncate(time.Millisecond), Content: d.Content}
	if newest.Number > 0 && newest.SHA256 == v.SHA256 {
		return newest, false, nil
	}
	done, err := tx.ExecContext(ctx, "INSERT INTO versions (content, sha256, author, comment, made) VALUES (?, ?, ?, ?, ?)",
		v.Content, v.SHA256, v.Author, v.Comment, v.Made.UnixMilli())
	if err != nil {
		return Version{}, false, known(err)
	}
	if v.Number, err = done.LastInsertId(); err != nil {
		return Version{}, false, known(err)
	}
	if s.keep > 0 {
		if _, err := tx.ExecContext(ctx, "DELETE FROM versions WHERE version <= ?", v.Number-s.keep); err != nil {
			return Version{}, false, known(err)
		}
	}
	if err := tx.Commit(); err != nil {
		return Version{}, false, known(err)
	}
	return v, true, nil
}

// Backup writes a copy, whole and of one moment, to a path that is free. The copy
// has an epoch of its own: nodes take its versions, although they have seen later
// ones.
func (s *Store) Backup(ctx context.Context, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("store: %s: %w", to, os.ErrExist)
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), "."+filepath.Base(to)+"-")
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing of it is needed
	fresh := filepath.Join(dir, "new")
	// Outside of the pool of readers, which may not write anything at all.
	if _, err := s.writer.ExecContext(ctx, "VACUUM INTO ?", fresh); err != nil {
		return known(err)
	}
	copied, err := Open(ctx, fresh, Options{Existing: true, NewEpoch: true})
	if err != nil {
		return err
	}
	if err := copied.Close(); err != nil {
		return err
	}
	return place(fresh, to)
}

// Close closes the file.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.reader, s.writer} { // the writer last: it tidies up
		if db != nil {
			errs = append(errs, known(db.Close()))
		}
	}
	return errors.Join(errs...)
}

// Probe writes something that does not matter, and says whether that works.
func (s *Store) Probe(ctx context.Context) error {
	_, err := s.writer.ExecContext(ctx, "INSERT OR REPLACE INTO meta VALUES ('probe', ?)", newEpoch())
	return known(err)
}
