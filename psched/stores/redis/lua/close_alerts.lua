#!lua flags=allow-oom
-- Closes alerts that are open. ARGV: the text; then the identity of each alert. Returns the alerts that
-- were closed.
local closed = {}
for i = 2, #ARGV do
  local identity = ARGV[i]
  local subject = alert_subject(identity)
  local number = redis.call('HGET', ALERT_IDS, identity)
  if number and redis.call('HGET', ALERT_IDS, subject) == number then
    local found = redis.call('HMGET', alert_key(number), 'tells_end', 'owner', 'next_try')
    local tells_end, owner, next_try = found[1] == '1', found[2], tonumber(found[3])
    redis.call('HDEL', ALERT_IDS, subject)
    redis.call('ZREM', ALERTS_OPEN, number)
    redis.call('HSET', alert_key(number), 'closed', integer(now_ms), 'closed_text', ARGV[1])
    -- While a monitor delivers, next_try is the end of its lease. It must not become earlier, because
    -- then another monitor would deliver the same events. The script note_deliveries makes up for it.
    if tells_end and not owner then next_try = math.min(next_try or now_ms, now_ms) end
    set_next_try(number, next_try, integer(now_ms))
    closed[#closed + 1] = read_alert(number)
  end
end
return closed
