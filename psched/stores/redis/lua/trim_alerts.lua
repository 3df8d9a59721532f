#!lua flags=allow-oom
-- Deletes alerts that were closed before a time and have no delivery left. ARGV: the time in milliseconds;
-- the most alerts. Returns how many were deleted.
local old = redis.call('ZRANGE', ALERTS_OVER, '-inf', '('..ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
for _, number in ipairs(old) do
  local found = redis.call('HMGET', alert_key(number), 'key', 'identity')
  redis.call('ZREM', ALERTS_OVER, number)
  redis.call('ZREM', ALERTS, number)
  redis.call('ZREM', alerts_key(found[1] or ''), number)
  redis.call('HDEL', ALERT_IDS, found[2] or '')
  redis.call('DEL', alert_key(number))
end
return #old
