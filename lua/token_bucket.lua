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
-- Returns the wait, 0 if the request is admitted, else the microseconds until the
-- bucket, untouched, admits it, -1: never; the requests of cost 1 that it would
-- admit at this instant, after the charge; the new state, false if denied, and
-- the seconds after which it may expire (0: never); and what the bucket held
-- before, as numbers: the time less now, and the tokens. A corrupt state is that
-- of a fresh bucket, which denies for ever or not at all: its wait is less by 2.
local function token_bucket(state, now, capacity, rate, charge, cost)
  local tokens, time, corrupt = capacity, now, 0
  if state then
    corrupt = 2
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
        if usable then corrupt, tokens, time = 0, a, b end
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
  if level < price then
    local wait, left = -1, (level - level % 1000000) / 1000000
    if price <= capacity and rate > 0 then
      -- From what was stored, for the level has been rounded down. Whole seconds,
      -- then the least number of microseconds in which the rest flows in: the
      -- quotient of doubles, rounded down, is that or one less. over is rest * 1e6 -
      -- micros * rate, exact by halves of 26 bits.
      local rest = (price - tokens) % rate
      local micros = math.floor(rest * 1000000 / rate)
      local low, rlow = rest % 67108864, rate % 67108864
      local over = (low * 1000000 - micros * rlow) + ((rest - low) * 1000000 - micros * (rate - rlow))
      if over > 0 then micros = micros + 1 end
      wait = (price - tokens - rest) / rate * 1000000 + (time - now) + micros
      if wait > 9007199254740992 then wait = 9007199254740992 end
    end
    return wait - corrupt, left, false, 0, time - now, tokens
  end
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
  return -corrupt, (level - level % 1000000) / 1000000, ('%d:%d'):format(level, stamp), ttl, time - now, tokens
end
