-- One token bucket, as a pure function. Its twin in Go is core/bucket.
--
-- Lua numbers are doubles: whole numbers are exact up to 2^53. Every product
-- here is either below that or split into parts that are. Where a sum may pass
-- 2^53 it is only compared with a smaller number, and rounding never changes
-- the order of a number above 2^53 and one below.
--
-- No upvalues: Redis makes every closure anew on each call.
--
--   state     "tokens:time", or false for a bucket that nobody has used
--   now       microseconds
--   capacity  microtokens, 1e6 to 2^52
--   rate      microtokens per second, 0 to 2^52
--   charge    whether a request that is admitted is charged
--   cost      what it costs, in tokens, 1 to 2^52 / 1e6
--
-- Returns flags (1: denied, 2: the state was corrupt); the new state, false if
-- denied, and the seconds after which it may expire (0: never); and what the
-- bucket held before, as numbers: the time less now, and the tokens.
local function token_bucket(state, now, capacity, rate, charge, cost)
  local tokens, time, flags = capacity, now, 0
  if state then
    flags = 2
    local a, b = state:match('^(%d+):(%d+)$')
    if a and #a <= 16 and #b <= 16 then
      a, b = a + 0, b + 0
      if a <= 4503599627370496 and b <= 9007199254740991 then
        local ahead = b - now
        local usable = ahead <= 60000000 or rate == 0
        if not usable then
          -- ahead * rate / 1e6 <= capacity, split as below
          local s, r = ahead % 1000000, rate % 1000000
          local rest = s * r % 1000000
          local flow = (ahead - s) / 1000000 * rate + s * ((rate - r) / 1000000) + (s * r - rest) / 1000000
          usable = flow < capacity or flow == capacity and rest == 0
        end
        if usable then flags, tokens, time = 0, a, b end
      end
    end
  end

  -- The level now: min(capacity, tokens + floor(elapsed * rate / 1e6)), both
  -- factors split into millions and the rest. A stored time ahead of the clock
  -- never moves back.
  local level, stamp = tokens, time
  if now > time then
    stamp = now
    local elapsed = now - time
    local s, r = elapsed % 1000000, rate % 1000000
    local rest = s * r % 1000000
    level = tokens + (elapsed - s) / 1000000 * rate + s * ((rate - r) / 1000000) + (s * r - rest) / 1000000
  end
  if level > capacity then level = capacity end
  local price = cost * 1000000
  if level < price then return flags + 1, false, 0, time - now, tokens end
  if charge then level = level - price end

  local ttl = 0
  if rate > 0 then
    local need = capacity - level
    local rest = need % rate
    ttl = (need - rest) / rate + 1
    if rest > 0 then ttl = ttl + 1 end
    if stamp > now then
      local ahead = stamp - now
      ttl = ttl + (ahead + -ahead % 1000000) / 1000000
    end
  end
  return flags, ('%d:%d'):format(level, stamp), ttl, time - now, tokens
end
