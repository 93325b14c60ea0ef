package command

import (
	"io"
	"log"
	"log/slog"
	"os/signal"
	"syscall"
)

// Settle sets what belongs to the whole process of a server. Whoever reads its log may go
// away: a write fails then, and nothing more. What net/http says of a connection
// that carries no request goes to the standard logger, and from there to w as JSON.
func Settle(w io.Writer) {
	signal.Ignore(syscall.SIGPIPE)
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(slog.NewJSONHandler(w, nil), slog.LevelWarn).Writer())
}
