#!lua flags=allow-oom
-- Leases alerts whose deliveries are due. ARGV: the owner; the milliseconds of the lease; the most alerts.
-- Returns the alerts, those due longest first.
local taken = {}
for i, number in ipairs(redis.call('ZRANGE', ALERTS_DUE, '-inf', integer(now_ms), 'BYSCORE', 'LIMIT', 0,
    ARGV[3])) do
  redis.call('HINCRBY', alert_key(number), 'fence', 1)
  redis.call('HSET', alert_key(number), 'owner', ARGV[1])
  set_next_try(number, now_ms + tonumber(ARGV[2]), false)
  taken[i] = read_alert(number)
end
return taken
