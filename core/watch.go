package sentinel

import (
	"context"
	"log/slog"
	"reflect"
	"time"
)

// watchInterval is how often a file is looked at.
const watchInterval = 2 * time.Second

// logContext is of lines that belong to no request.
var logContext = context.Background()

// Watch keeps the limiter at what the configuration file at path says, until ctx
// ends or the limiter is closed; run it in a goroutine of its own. The file, and
// every file that it names for a secret, is read every two seconds, for a notice
// from the system is lost where an editor, a deployment or the symbolic links of
// Kubernetes put another file in its place. What has changed counts once two
// readings in a row have seen the same, so that a file in the middle of being
// written is not taken, and is then handed to [Limiter.Update].
//
// A file that is gone or refused changes nothing: the limiter goes on as it was,
// one line at ERROR says why, and sentinel_config_rejected_total counts it, once
// for each such content and not for each reading.
func (l *Limiter) Watch(ctx context.Context, path string) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	w := watcher{at: reading{cfg: l.setup.Load().cfg}}
	for {
		if r, settled := w.look(read(path)); settled {
			l.take(r)
		}
		select {
		case <-ctx.Done():
			return
		case <-l.ended:
			return
		case <-ticker.C:
		}
	}
}

// reading is what a file says: a configuration, or what is wrong with it.
type reading struct {
	cfg   *Config
	fault string
}

func read(path string) reading {
	cfg, err := LoadConfig(path)
	if err != nil {
		return reading{fault: err.Error()}
	}
	return reading{cfg: cfg}
}

func (r reading) equal(other reading) bool {
	return r.fault == other.fault && reflect.DeepEqual(r.cfg, other.cfg)
}

// watcher tells what is new from what is still being written.
type watcher struct {
	at   reading // that was taken last
	next reading // that was seen last
}

// look returns a reading that is to be taken: another than the last one that was,
// seen twice in a row.
func (w *watcher) look(r reading) (reading, bool) {
	settled := !r.equal(w.at) && r.equal(w.next)
	w.next = r
	if settled {
		w.at = r
	}
	return r, settled
}

// take has the limiter do what a file says.
func (l *Limiter) take(r reading) {
	if r.cfg != nil {
		if err := l.Update(r.cfg); err != nil {
			r.fault = err.Error()
		}
	}
	if r.fault != "" && !l.closed.Load() {
		l.metrics.configRejected()
		l.log.LogAttrs(logContext, slog.LevelError, "sentinel: the configuration file is refused; the limiter goes on with what it had",
			slog.String("config_hash", l.setup.Load().hash), slog.String("faults", r.fault))
	}
}
