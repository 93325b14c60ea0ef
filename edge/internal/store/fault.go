package store

import (
	"database/sql"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// What can go wrong with a file. Everything else is a failure of the disk, or the
// end of a context.
var (
	ErrNotFound = errors.New("there is no such version")
	ErrCorrupt  = errors.New("the file is damaged")
	ErrForeign  = errors.New("the file is not a store of this program")
	ErrBusy     = errors.New("another process has the file locked")
	ErrFull     = errors.New("the disk is full")
)

// known puts the error of SQLite in our terms.
func known(err error) error {
	var e *sqlite.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return ErrNotFound
	case !errors.As(err, &e):
		return fmt.Errorf("store: %w", err)
	}
	switch e.Code() & 0xff { // the rest says more about the same
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("store: %w (%w)", ErrBusy, err)
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("store: %w (%w)", ErrCorrupt, err)
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("store: %w (%w)", ErrFull, err)
	}
	return fmt.Errorf("store: %w", err)
}
