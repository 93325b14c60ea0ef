package sentinel

import (
	"cmp"
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/lua"
)

// A script may touch keys of one slot only, also where one node has many. So
// the decisions that gathered for a master of a cluster are cut into parts, by
// slot, and go as one pipeline of scripts on one connection: each part runs by
// itself, and is redirected by itself.

// part is what one script decides: the decisions of a batch from first up to
// end.
type part struct{ first, end int }

// bySlot sorts a batch so that parts stand together, and in each of them
// decisions of one kind.
func bySlot(a, b *waiter) int {
	return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.mode, b.mode), byKind(a, b))
}

// cut cuts the sorted batch and reports whether it takes a pipeline: one part is
// a call like any other, unless the node must be told that it is sent for.
func (ln *line) cut() bool {
	ln.parts = ln.parts[:0]
	for first := 0; first < len(ln.batch); {
		end := first + 1
		for end < len(ln.batch) && ln.batch[end].slot == ln.batch[first].slot && ln.batch[end].mode == ln.batch[first].mode {
			end++
		}
		ln.parts = append(ln.parts, part{first, end})
		first = end
	}
	return len(ln.parts) > 1 || ln.batch[0].asking
}

// runParts is run where the batch has several parts. What was answered before
// the connection broke counts.
func runParts(ctx context.Context, ln *line, leader *waiter) (against *storeFailure) {
	cmds := make([]*redis.IntSliceCmd, len(ln.parts))
	if !pipeline(ctx, ln, cmds) {
		against = badReply(errors.New("a reply that cannot be read"))
		failTogether(ln.batch, leader, against)
		return against
	}
	for i, p := range ln.parts {
		batch := ln.batch[p.first:p.end]
		reply, err := cmds[i].Result()
		var failure *storeFailure
		if err != nil {
			failure = failureOf(err)
		} else {
			failure = share(batch[0].mode, batch, reply)
		}
		if failure == nil {
			continue
		}
		failTogether(batch, leader, failure)
		if !failure.aboutCluster() && (against == nil || failure.kind == kindConnection) {
			against = failure
		}
	}
	return against
}

// pipeline sends each part once, as call does: after NOSCRIPT, where nothing ran,
// once more behind the script itself. It reports false where go-redis could not
// read what came.
func pipeline(ctx context.Context, ln *line, cmds []*redis.IntSliceCmd) (ok bool) {
	defer func() {
		if recover() != nil { // see call
			ok = false
		}
	}()
	ln.args = ln.args[:0]
	pipe := ln.conn.Pipeline()
	for i := range cmds {
		p := ln.parts[i]
		from := len(ln.args)
		ln.beside = besides(ln.beside[:0], ln.batch[p.first:p.end])
		ln.args = encodeCall(ln.args, ln.batch[p.first].mode, ln.groups[p.first:p.end], ln.beside...)
		cmds[i] = redis.NewIntSliceCmd(ctx, ln.args[from:len(ln.args):len(ln.args)]...)
		enqueue(ctx, pipe, cmds[i], ln.batch[p.first].asking)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	again := ln.conn.Pipeline()
	for i := range cmds {
		if !isNoScript(cmds[i].Err()) {
			continue
		}
		if again.Len() == 0 {
			again.ScriptLoad(ctx, lua.Decide)
		}
		cmds[i] = redis.NewIntSliceCmd(ctx, cmds[i].Args()...)
		enqueue(ctx, again, cmds[i], ln.batch[ln.parts[i].first].asking)
	}
	if again.Len() > 0 {
		_, _ = again.Exec(ctx)
	}
	return true
}

func enqueue(ctx context.Context, pipe redis.Pipeliner, cmd redis.Cmder, asking bool) {
	if asking {
		_ = pipe.Process(ctx, redis.NewStatusCmd(ctx, "asking"))
	}
	_ = pipe.Process(ctx, cmd) // only queues
}
