#!lua
-- Inserts alerts, except those that exist, and those whose subject has an open alert. ARGV: for each alert
-- its identity, its key, the JSON object, whether a hook is told of the beginning, and whether one is told
-- of the end (1 or 0). Returns the alerts that were inserted.
local VALUES = 5
-- A number is larger than all before it, even if the server's clock was set back, and not smaller than
-- this multiple of `raised`. So the order of the numbers is that of raising, and `since` finds its place.
local PER_MS = 1024
local inserted = {}
for i = 1, #ARGV, VALUES do
  local identity, key, record, told, tells_end = unpack(ARGV, i, i + VALUES - 1)
  local subject = alert_subject(identity)
  if redis.call('HEXISTS', ALERT_IDS, identity) == 0 and redis.call('HEXISTS', ALERT_IDS, subject) == 0 then
    local last = tonumber(redis.call('HGET', ALERT_IDS, 'last') or '0')
    local number = integer(math.max(last + 1, now_ms * PER_MS))
    redis.call('HSET', ALERT_IDS, 'last', number, identity, number, subject, number)
    redis.call('HSET', alert_key(number), 'key', key, 'identity', identity, 'record', record,
      'raised', integer(now_ms), 'tells_end', tells_end)
    redis.call('ZADD', ALERTS, number, number)
    redis.call('ZADD', alerts_key(key), number, number)
    redis.call('ZADD', ALERTS_OPEN, number, number)
    if told == '1' then set_next_try(number, now_ms, false) end
    inserted[#inserted + 1] = read_alert(number)
  end
end
return inserted
