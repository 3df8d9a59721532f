#!lua flags=allow-oom
-- Releases leases of a dead worker. ARGV: its nonce, alive_time, seconds that a row waits whose
-- worker has died a second time, the member of the held set after which to begin (empty: at the
-- first), how many at most. Returns the released keys, and the member after which to go on (empty:
-- that was all).
local nonce, alive_time, wait, after, limit = unpack(ARGV)
local from = after ~= '' and '('..after or '['..nonce..'.'
-- '/' follows '.' in the order of bytes.
local found = redis.call('ZRANGEBYLEX', HELD, from, '('..nonce..'/', 'LIMIT', 0, limit)
local released = {}
for _, member in ipairs(found) do
  local zero = member:find('%z')
  local owner, key = member:sub(1, zero - 1), member:sub(zero + 1)
  local row = read_fields(key, 'owner', 'fence', 'attempt')
  local ends = tonumber(redis.call('ZSCORE', DUE, key) or '0')
  if not row or row[1] ~= owner then
    redis.call('ZREM', HELD, member)
  elseif ends > now and ends <= now + alive_time + 1 then
    write_fields(key, {
      'owner', false, 'settled_by', owner..'#'..(row[2] or '0'), 'reason', 'its worker died',
    })
    redis.call('ZREM', HELD, member)
    set_due(key, integer(now + (tonumber(row[3] or '0') > 1 and tonumber(wait) or 0)))
    released[#released + 1] = key
  end
end
return {released, #found == tonumber(limit) and found[#found] or ''}
