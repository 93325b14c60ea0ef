package wire

import (
	"errors"
	"os"
	"sync"
	"time"
)

// deadline is when reads, or writes, of a connection are to end. net/http asks for
// six in the course of a request and waits for two of them; to set one costs a timer
// of the runtime. So the connection's own is left as it is as long as it comes
// before the one that was asked for. What it ends too early begins anew.
type deadline struct {
	set func(time.Time) error // sets the connection's own

	mu    sync.Mutex
	asked time.Time // zero: none
	armed time.Time // the connection's own; zero: none
	spent bool      // which has come
	busy  int       // reads or writes under way
}

// ask sets the deadline, for those that are under way, too. The caller holds mu.
func (d *deadline) ask(t time.Time) error {
	d.asked = t
	if d.busy == 0 {
		return nil
	}
	return d.arm()
}

// arm sets the connection's own. The caller holds mu.
func (d *deadline) arm() error {
	d.armed, d.spent = d.asked, false
	return d.set(d.asked)
}

// begin is called before a read or a write.
func (d *deadline) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy++
	late := d.armed.IsZero() && !d.asked.IsZero() || !d.asked.IsZero() && d.asked.Before(d.armed)
	if late || d.spent {
		_ = d.arm() // what follows fails, too
	}
}

// end is called after it, with its error. It reports whether it was too early, so that
// it is to begin anew.
func (d *deadline) end(err error) (early bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy--
	if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	d.spent = true
	return d.asked.IsZero() || time.Now().Before(d.asked)
}
