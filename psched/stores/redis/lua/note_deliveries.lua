#!lua flags=allow-oom
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
