-- The least that a token bucket on Redis does: the clock, the state as text,
-- one write with its expiry. It trusts what it reads and rounds where doubles
-- round; it says neither when to come back nor when the bucket is full.
--
-- KEYS[1] the bucket; ARGV capacity and rate, in microtokens and a second.
-- Returns the whole tokens that are left, or -1.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local capacity, rate = ARGV[1] + 0, ARGV[2] + 0
local tokens = capacity
local state = redis.call('GET', KEYS[1])
if state then
  local colon = state:find(':', 1, true)
  tokens = state:sub(1, colon - 1) + (now - state:sub(colon + 1)) * rate / 1000000
  tokens = tokens - tokens % 1
  if tokens > capacity then tokens = capacity end
end
if tokens < 1000000 then return -1 end
tokens = tokens - 1000000
local full = (capacity - tokens) / rate
redis.call('SET', KEYS[1], ('%d:%d'):format(tokens, now), 'EX', full - full % 1 + 2)
return tokens / 1000000
