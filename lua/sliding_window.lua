
-- One sliding window, as a pure function. Its twin in Go is core/bucket. What
-- token_bucket.lua says of doubles and upvalues holds here too.
--
--   state   "current:previous:start", or false for one that nobody has used
--   now     microseconds
--   limit   requests per window, at least 1
--   window  microseconds, at least 1; limit * window is at most 2^52
--   charge  whether a request that is admitted is charged
--   cost    as how many requests it counts, at least 1
--
-- Returns the same as token_bucket; what it held are the start less now, current
-- and previous.
local function sliding_window(state, now, limit, window, charge, cost)
  local was, before, from, corrupt = 0, 0, now, 0
  if state then
    corrupt = 2
    local a, b, c = state:match('^(%d+):(%d+):(%d+)$')
    if a and #a <= 16 and #b <= 16 and #c <= 16 then
      a, b, c = a + 0, b + 0, c + 0
      if a <= 4503599627370496 and b <= 4503599627370496 and c <= 9007199254740991
        and (c - now <= 60000000 or c - now <= 2 * window) then
        was, before, from, corrupt = a, b, c, 0
      end
    end
  end

  -- The anchor advances by one window, or to now when nothing counts any more.
  local current, previous, start = was, before, from
  if now - start >= 2 * window then
    current, previous, start = 0, 0, now
  elseif now - start >= window then
    previous, current, start = current, 0, start + window -- in an order that no interpreter mistakes
  end
  local left = window
  if now > start then left = start + window - now end

  -- previous * left may pass 2^53: then the window is full by far, rounded or not.
  local weight = previous * left
  local free = limit - current - (weight - weight % window) / window
  if free < cost then
    local wait = -1
    if cost <= limit then
      -- The least time into a window at which previous * left is small enough: in
      -- this one if there is one, else in the next, whose previous is current.
      local ends, counts, room = window, previous, limit - cost + 1 - current
      if room <= 0 then ends, counts, room = 2 * window, current, limit - cost + 1 end
      local need = room * window - 1
      wait = start - now + (ends - (need - need % counts) / counts)
      if wait > 9007199254740992 then wait = 9007199254740992 end
    end
    return wait - corrupt, free > 0 and free or 0, false, 0, from - now, was, before
  end
  if charge then current, free = current + cost, free - cost end

  -- Two windows, and what the start is ahead of the clock, each rounded apart:
  -- their sum may be more microseconds than a double counts.
  local ahead = start > now and start - now or 0
  local s, a = 2 * window % 1000000, ahead % 1000000
  local ttl = ((2 * window - s) + (ahead - a) + (s + a + -(s + a) % 1000000)) / 1000000
  return -corrupt, free, ('%d:%d:%d'):format(current, previous, start), ttl, from - now, was, before
end
