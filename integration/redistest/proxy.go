package redistest

import (
	"bufio"
	"io"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy on 127.0.0.1 in front of a Redis, with faults that a test
// switches on and off. It reads both directions command by command, so that a
// fault hits exactly one reply. At first it passes everything; it ends with the
// test. Its methods are safe for concurrent use.
type Proxy struct {
	t        testing.TB
	upstream string
	addr     string
	running  sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while refusing
	links    map[*link]struct{}
	accepted int
	commands map[string]int

	// The faults that are on now; Pass makes them zero.
	hole    bool
	connect time.Duration
	delay   time.Duration
	stalled time.Time         // no reply arrives before
	hung    func()            // ends Hang; nil while that is off
	always  map[string]*cycle // by command
	next    map[string]answer // by command, gone once used
}

// cycle is what becomes of the replies to all commands of one name, in turn.
type cycle struct {
	answers []answer
	at      int
}

func (c *cycle) take() answer {
	if c == nil {
		return answer{}
	}
	a := c.answers[c.at%len(c.answers)]
	c.at++
	return a
}

// answer is what becomes of the reply to one command.
type answer struct {
	kind  answerKind
	reply string        // for canned
	due   time.Time     // for canned: when to deliver it
	frees chan<- []byte // for frozen: told the command
	hold  time.Duration // for frozen: how late its reply is, and all behind it
}

type answerKind int

const (
	passed  answerKind = iota // the server's reply
	canned                    // this reply; the server never sees the command
	dropped                   // the server's reply is swallowed, the connection closed
	reset                     // half of it, then a reset
	hung                      // half of it, then nothing more
	frozen                    // the server's reply, held back for a while
)

// NewProxy starts a proxy in front of the server at upstream (host:port).
func NewProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	l, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		t: t, upstream: upstream, addr: l.Addr().String(), listener: l,
		links: make(map[*link]struct{}), commands: make(map[string]int),
	}
	p.running.Go(func() { p.accept(l) })
	t.Cleanup(p.close)
	return p
}

// Addr is the proxy's host:port. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// URL is the proxy's redis:// address.
func (p *Proxy) URL() string { return "redis://" + p.addr }

// Pass ends every fault. Connections that have lost something, in a black hole
// or to [Proxy.HalfReply], are closed; after Refuse and Hang the proxy listens
// again, on the same port.
func (p *Proxy) Pass() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole, p.connect, p.delay, p.stalled, p.always, p.next = false, 0, 0, time.Time{}, nil, nil
	for l := range p.links {
		if l.lost() {
			l.close()
		}
	}
	if p.listener != nil {
		return
	}
	if p.hung != nil {
		p.hung()
		p.hung = nil
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Errorf("redistest: the proxy cannot listen again: %v", err)
		return
	}
	p.listener = l
	p.running.Go(func() { p.accept(l) })
}

// BlackHole makes the proxy accept connections and never answer, on those that
// exist as on new ones. What is sent meanwhile is lost and never reaches the
// server.
func (p *Proxy) BlackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = true
	for l := range p.links {
		l.lose()
	}
}

// Refuse closes the port and resets every connection: a server that is down.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close() // its only failure is to be closed already
		p.listener = nil
	}
	p.resetLinks()
}

// Hang resets every connection and lets the kernel drop what asks for a new
// one, as a firewall does: a dial neither succeeds nor fails.
func (p *Proxy) Hang() {
	p.t.Helper()
	p.Refuse()
	done, err := hang(p.addr)
	if err != nil {
		p.t.Fatalf("redistest: a port that drops connections: %v", err)
	}
	p.set(func() { p.hung = done })
}

// DropConns resets every connection once; new ones pass.
func (p *Proxy) DropConns() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resetLinks()
}

// SlowConnect makes each new connection carry nothing in its first d: a server
// that is slow to accept.
func (p *Proxy) SlowConnect(d time.Duration) { p.set(func() { p.connect = d }) }

// Delay makes each reply arrive d late; replies do not queue up behind one
// another.
func (p *Proxy) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// Stall holds back for d whatever is to be delivered, once: replies that come
// meanwhile arrive when it is over, and new connections carry nothing before.
func (p *Proxy) Stall(d time.Duration) { p.set(func() { p.stalled = time.Now().Add(d) }) }

// FreezeNext holds back for d the reply to the next command of this name, and
// with it all that follows on its connection; the others go on. The channel
// gets that command as it was sent.
func (p *Proxy) FreezeNext(command string, d time.Duration) <-chan []byte {
	frees := make(chan []byte, 1)
	p.once(command, answer{kind: frozen, frees: frees, hold: d})
	return frees
}

// DropReply lets the next command of this name reach the server and run, then
// swallows the reply and closes the connection.
func (p *Proxy) DropReply(command string) { p.once(command, answer{kind: dropped}) }

// ResetReply lets the next command of this name run, delivers half of the reply
// and resets the connection.
func (p *Proxy) ResetReply(command string) { p.once(command, answer{kind: reset}) }

// HalfReply lets the next command of this name run, delivers half of the reply
// and then nothing more on that connection.
func (p *Proxy) HalfReply(command string) { p.once(command, answer{kind: hung}) }

// RewriteNext answers the next command of this name with reply, which is raw
// RESP such as "-NOSCRIPT No matching script.\r\n". The server does not see the
// command.
func (p *Proxy) RewriteNext(command, reply string) {
	p.once(command, answer{kind: canned, reply: reply})
}

// Rewrite is RewriteNext for every command of this name, with each reply in
// turn, until Pass.
func (p *Proxy) Rewrite(command string, replies ...string) {
	var answers []answer
	for _, r := range replies {
		answers = append(answers, answer{kind: canned, reply: r})
	}
	p.all(command, answers...)
}

// DropReplies is DropReply for every command of this name, until Pass.
func (p *Proxy) DropReplies(command string) { p.all(command, answer{kind: dropped}) }

// ResetReplies is ResetReply for every command of this name, until Pass.
func (p *Proxy) ResetReplies(command string) { p.all(command, answer{kind: reset}) }

// HalfReplies is HalfReply for every command of this name, until Pass.
func (p *Proxy) HalfReplies(command string) { p.all(command, answer{kind: hung}) }

// Accepted is how many connections the proxy has accepted so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Commands is how often clients have sent each command so far, by upper-case
// name, whether or not it was passed on.
func (p *Proxy) Commands() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.commands)
}

func (p *Proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *Proxy) once(command string, a answer) {
	p.set(func() {
		if p.next == nil {
			p.next = make(map[string]answer)
		}
		p.next[strings.ToUpper(command)] = a
	})
}

func (p *Proxy) all(command string, answers ...answer) {
	p.set(func() {
		if p.always == nil {
			p.always = make(map[string]*cycle)
		}
		p.always[strings.ToUpper(command)] = &cycle{answers: answers}
	})
}

// seen counts a command and says what becomes of its reply.
func (p *Proxy) seen(command string, raw []byte) answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.commands[command]++
	a, ok := p.next[command]
	if ok {
		delete(p.next, command)
	} else {
		a = p.always[command].take()
	}
	if a.frees != nil {
		a.frees <- raw
	}
	a.due = p.dueNow()
	return a
}

// due is when a reply that arrives now is to be delivered.
func (p *Proxy) due() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dueNow()
}

// dueNow is due; the caller holds p.mu.
func (p *Proxy) dueNow() time.Time {
	due := time.Now().Add(p.delay)
	if due.Before(p.stalled) {
		return p.stalled
	}
	return due
}

// resetLinks needs p.mu.
func (p *Proxy) resetLinks() {
	for l := range p.links {
		l.reset()
	}
}

func (p *Proxy) close() {
	p.Refuse()
	if p.hung != nil {
		p.hung()
	}
	p.running.Wait()
}

func (p *Proxy) accept(from net.Listener) {
	for {
		conn, err := from.Accept()
		if err != nil {
			return // closed by Refuse
		}
		p.admit(from, conn)
	}
}

// admit starts a link for a connection, unless Refuse came between.
func (p *Proxy) admit(from net.Listener, conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := newLink(p, conn.(*net.TCPConn))
	if p.listener != from {
		l.reset()
		return
	}
	p.accepted++
	p.links[l] = struct{}{}
	if p.hole {
		l.lose()
	}
	wait := max(p.connect, time.Until(p.stalled))
	p.running.Go(func() {
		l.run(wait)
		p.set(func() { delete(p.links, l) })
	})
}

// link is one client's connection, and beside it one to the server.
type link struct {
	proxy   *Proxy
	client  *net.TCPConn
	pending chan answer // one for each command that awaits its reply, in order
	replies chan reply  // what the server has sent; closed when it hangs up
	held    *reply      // taken from replies ahead of its command; only deliver uses it

	holed chan struct{} // closed by lose
	lose  func()        // from now on nothing gets through, either way
	ended chan struct{} // closed by close
	close func()
}

// reply is one value from the server, to be delivered not before due.
type reply struct {
	raw []byte
	due time.Time
}

func newLink(p *Proxy, client *net.TCPConn) *link {
	l := &link{
		proxy: p, client: client,
		pending: make(chan answer, 4096), replies: make(chan reply, 4096),
		holed: make(chan struct{}), ended: make(chan struct{}),
	}
	l.lose = sync.OnceFunc(func() { close(l.holed) })
	l.close = sync.OnceFunc(func() {
		close(l.ended)
		_ = client.Close() // nobody is left to tell
	})
	return l
}

// reset is close by a TCP reset.
func (l *link) reset() {
	_ = l.client.SetLinger(0) // fails only when it is closed
	l.close()
}

func (l *link) lost() bool {
	select {
	case <-l.holed:
		return true
	default:
		return false
	}
}

// run serves the link until it ends. A lost link lives on, without a server, as
// long as its client does.
func (l *link) run(wait time.Duration) {
	defer l.close()
	if !l.sleepUntil(time.Now().Add(wait)) && !l.lost() {
		return
	}
	if l.lost() {
		l.forward(io.Discard)
		return
	}
	server, err := net.Dial("tcp", l.proxy.upstream)
	if err != nil {
		return // to the client, the server has hung up
	}
	var parts sync.WaitGroup
	parts.Go(func() {
		select {
		case <-l.holed:
		case <-l.ended:
		}
		_ = server.Close() // nobody is left to tell
	})
	parts.Go(func() { l.readReplies(server) })
	parts.Go(l.deliver)
	l.forward(server)
	l.close()
	parts.Wait()
}

// forward reads the client's commands until it is gone, and passes on those
// that need the server.
func (l *link) forward(server io.Writer) {
	commands := bufio.NewReader(l.client)
	for {
		name, raw, err := readCommand(commands)
		if err != nil {
			return
		}
		a := l.proxy.seen(name, raw)
		if l.lost() {
			continue
		}
		select {
		case l.pending <- a:
		case <-l.holed:
		case <-l.ended:
			return
		}
		if a.kind != canned {
			_, _ = server.Write(raw) // if the server is gone, readReplies finds out
		}
	}
}

// readReplies notes when each value from the server has arrived, so that a
// delay counts from there.
func (l *link) readReplies(server io.Reader) {
	defer close(l.replies)
	values := bufio.NewReader(server)
	for {
		raw, err := readValue(values)
		if err != nil {
			return
		}
		select {
		case l.replies <- reply{raw: raw, due: l.proxy.due()}:
		case <-l.holed:
			return
		case <-l.ended:
			return
		}
	}
}

// deliver answers the client's commands in their order, until the link ends.
func (l *link) deliver() {
	for {
		select {
		case a := <-l.pending:
			if !l.answer(a) {
				return
			}
		case r, ok := <-l.replies:
			if !ok {
				l.hungUp()
				return
			}
			l.held = &r
			if !l.settle() {
				return
			}
		case <-l.holed:
			return
		case <-l.ended:
			return
		}
	}
}

// settle finds the command of the held value, and says whether the link goes on.
// A command is queued before it is sent: when its reply is here, so is the
// command, perhaps behind others with canned answers. With none queued, the
// value is a message to a subscriber, and goes through.
func (l *link) settle() bool {
	for l.held != nil {
		select {
		case a := <-l.pending:
			if !l.answer(a) {
				return false
			}
		default:
			r := *l.held
			l.held = nil
			return l.write(r)
		}
	}
	return true
}

// hungUp passes the server's end on, unless that was our own doing.
func (l *link) hungUp() {
	if !l.lost() {
		l.close()
	}
}

// answer does with one command's reply what it is told, and says whether the
// link goes on.
func (l *link) answer(a answer) bool {
	if a.kind == canned {
		return l.write(reply{raw: []byte(a.reply), due: a.due})
	}
	r, ok := l.nextReply()
	if !ok {
		return false
	}
	half := reply{raw: r.raw[:len(r.raw)/2], due: r.due}
	switch a.kind {
	case dropped:
		l.close()
		return false
	case reset:
		l.write(half)
		l.reset()
		return false
	case hung:
		l.write(half)
		l.lose()
		return false
	case frozen:
		return l.write(reply{raw: r.raw, due: r.due.Add(a.hold)})
	default:
		return l.write(r)
	}
}

// nextReply returns the server's next reply. Pushes (RESP3 ">") belong to no
// command and go straight through.
func (l *link) nextReply() (reply, bool) {
	for {
		r, ok := l.nextValue()
		if !ok || r.raw[0] != '>' {
			return r, ok
		}
		if !l.write(r) {
			return reply{}, false
		}
	}
}

// nextValue returns the held value, or waits for the next one.
func (l *link) nextValue() (reply, bool) {
	if l.held != nil {
		r := *l.held
		l.held = nil
		return r, true
	}
	select {
	case r, ok := <-l.replies:
		if !ok {
			l.hungUp()
		}
		return r, ok
	case <-l.holed:
	case <-l.ended:
	}
	return reply{}, false
}

// write delivers r when it is due, and says whether the link goes on.
func (l *link) write(r reply) bool {
	if !l.sleepUntil(r.due) || l.lost() {
		return false
	}
	_, err := l.client.Write(r.raw)
	return err == nil
}

// sleepUntil says whether the link is still good at that time.
func (l *link) sleepUntil(due time.Time) bool {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.holed:
		return false
	case <-l.ended:
		return false
	}
}
