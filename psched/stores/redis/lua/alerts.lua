-- Scripts of alerts.

--- raise_alerts
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

--- close_alerts: allow-oom
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

--- alerts_page: no-writes,allow-oom
-- Returns a page of alerts, those that were raised last first. ARGV: 'all', 'open' or 'key'; the number of
-- the last alert of the previous page (empty: begin with the last one); the smallest number; the most
-- alerts; the key if the first value is 'key'. Returns the alerts.
local sets = {all = ALERTS, open = ALERTS_OPEN, key = alerts_key(ARGV[5] or '')}
local last = ARGV[2] == '' and '+inf' or '('..ARGV[2]
local page, size = {}, 0
for i, number in ipairs(redis.call('ZRANGE', sets[ARGV[1]], last, ARGV[3], 'BYSCORE', 'REV', 'LIMIT', 0,
    ARGV[4])) do
  if size > LARGEST_ANSWER then break end
  page[i] = read_alert(number)
  for _, value in ipairs(page[i][2]) do size = size + #value end
end
return page

--- take_alerts: allow-oom
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

--- note_deliveries: allow-oom
-- Stores the deliveries of a leased alert, and ends the lease. ARGV: the identity; the owner and the fence
-- of the lease; when the alert was closed, as its monitor knows (empty: it was open); the deliveries; the
-- next try (empty: none). Returns 1, or 0 if the lease was not held any more.
local identity, owner, fence, known, deliveries, next_try = unpack(ARGV)
local number = redis.call('HGET', ALERT_IDS, identity)
if not number then return 0 end
local held = redis.call('HMGET', alert_key(number), 'owner', 'fence', 'closed', 'tells_end')
local closed = held[3]
if held[1] ~= owner or held[2] ~= fence then return 0 end
redis.call('HSET', alert_key(number), 'deliveries', deliveries)
redis.call('HDEL', alert_key(number), 'owner')
local is_news = closed and closed ~= known and held[4] == '1'
set_next_try(number, is_news and now_ms or tonumber(next_try), closed)
return 1

--- trim_alerts: allow-oom
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
