
-- Decides for any number of groups of buckets, all or nothing in each group,
-- independent of one another, in order. A key may occur in several groups, once
-- in each.
--
--   KEYS     the keys of all groups, in order; of a group in capitals also, after
--            its own, as many that they begin with
--   ARGV[1]  mode: "d" decide, "p" peek (nothing is written), "r" reset (the
--            fresh state is written); "D" and "P" are "d" and "p" with costs
--   ARGV     then runs of groups of one kind, each
--              count, kind, (p1, p2) x nkeys
--            for `count` groups; kind has one letter for each of their keys:
--            "b", p1 capacity, p2 rate, or "w", p1 limit, p2 window. With costs
--            the run's cost, what a request takes of each key, stands after kind.
--            All in capitals: a key that does not exist holds what the one that it
--            begins with holds, which is never written to but by "r"
--   ARGV     then, if there are such, "?" and runs of groups beside the others:
--            what cannot be read or written of these is nobody's error
--
-- Returns one flat array of integers: the time, then for each group
--   its keys, each
--     its wait: 0 if it admits, else the microseconds until it does, -1: never;
--       less by 2 if its state was corrupt, for a fresh bucket admits or never does
--     the numbers that it held, a fresh bucket's where it held none: the time less
--       now, and tokens for "b", or the current and the previous count for "w"
--   the verdict: admitted, and so many requests of cost 1 remain; or -1 less
--     what remains: denied, because at least one of its keys denied
-- Until when what remains grows, and is whole again, the caller computes from
-- what was held: Redis has one thread, for everyone.
--
-- A denial writes nothing. State and expiry are written by one command.

local call, pcall, mode = redis.call, redis.pcall, ARGV[1]
local costs = mode == 'D' or mode == 'P'
local charge, look, keep = mode == 'd' or mode == 'D', mode ~= 'r', mode ~= 'p' and mode ~= 'P'
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local reply, at, key, arg = {now}, 1, 0, 2
local texts, ttls -- made when a run needs them
local last, expiry -- seconds, and the same as text: many keys have the same
local set = call

while ARGV[arg] do
  if ARGV[arg] == '?' then
    set, arg = pcall, arg + 1
  end
  local count, kind, decide, p1, p2 = ARGV[arg] + 0, ARGV[arg + 1]
  local nkeys, cost = #kind, 1
  if costs then
    arg = arg + 1
    cost = ARGV[arg + 1] + 0
  end
  if nkeys > 1 then texts, ttls = texts or {}, ttls or {} end

  local keys, carry = nkeys, kind:byte() < 97 -- in capitals
  if carry then kind, keys = kind:lower(), 2 * nkeys end

  for group = 1, count do
    local allowed, least, left, text, ttl = true
    for i = 1, nkeys do
      if group == 1 or nkeys > 1 then -- else they are the last group's
        decide = kind:byte(i) == 98 and token_bucket or sliding_window -- 98: "b"
        p1, p2 = ARGV[arg + 2 * i] + 0, ARGV[arg + 2 * i + 1] + 0
      end
      local state = false
      if look then
        state = pcall('GET', KEYS[key + i])
        if carry and not state then state = pcall('GET', KEYS[key + nkeys + i]) end
        if state and state.err then
          if set == call and not state.err:find('^WRONGTYPE') then return state end
          state = '' -- as corrupt as any other text that is no state
        end
      end
      local previous
      reply[at + 1], left, text, ttl, reply[at + 2], reply[at + 3], previous = decide(state, now, p1, p2, charge, cost)
      at = at + 3
      if previous then
        at = at + 1
        reply[at] = previous
      end
      -- Where one denies nothing is charged, and what remains is that one's.
      if i == 1 or allowed and not text or allowed == not not text and left < least then least = left end
      if not text then
        allowed = false
      elseif nkeys > 1 then
        texts[i], ttls[i] = text, ttl
      end
    end
    at = at + 1
    reply[at] = allowed and least or -1 - least
    if allowed and keep then
      for i = 1, look and nkeys or keys do
        if nkeys > 1 then
          local of = i > nkeys and i - nkeys or i
          text, ttl = texts[of], ttls[of]
        end
        if ttl > 0 then
          -- As text: some servers send a number of 3e8 to SET as "3e+8".
          if ttl ~= last then last, expiry = ttl, ('%d'):format(ttl) end
          set('SET', KEYS[key + i], text, 'EX', expiry)
        else
          set('SET', KEYS[key + i], text)
        end
      end
    end
    key = key + keys
  end
  arg = arg + 2 + 2 * nkeys
end
return reply
