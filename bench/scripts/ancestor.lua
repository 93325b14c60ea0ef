-- A token bucket as the ancestor, a Python package, documents its own: one key,
-- the state tokens:time written with %.0f, SET and then EXPIRE, no write on a
-- denial, and the answer with what is left and when to come back.
--
-- KEYS[1] the bucket; ARGV capacity and rate, in microtokens and a second.
local key = KEYS[1]
local capacity = tonumber(ARGV[1])
local rate = tonumber(ARGV[2])
local cost = 1000000

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local tokens = capacity
local last = now
local state = redis.call('GET', key)
if state then
  local stored_tokens, stored_last = string.match(state, '^(%d+):(%d+)$')
  if stored_tokens then
    tokens = tonumber(stored_tokens)
    last = tonumber(stored_last)
  end
end

local elapsed = math.max(0, now - last)
tokens = math.min(capacity, tokens + math.floor(elapsed * rate / 1000000))

if tokens < cost then
  local retry_after = -1
  if rate > 0 then
    retry_after = math.ceil((cost - tokens) * 1000000 / rate)
  end
  return {0, tokens, retry_after}
end

tokens = tokens - cost
redis.call('SET', key, string.format('%.0f:%.0f', tokens, now))
if rate > 0 then
  redis.call('EXPIRE', key, math.ceil((capacity - tokens) / rate) + 1)
end
return {1, tokens, 0}
