#!lua flags=allow-oom
-- Ends leases of a dead worker. ARGV: the worker's nonce; alive_time; the seconds that a row must
-- wait if this was not its first attempt; the member of the set HELD after which to begin (empty:
-- begin with the worker's first); the most members to read. Returns the keys of the released rows,
-- and the member after which the next call must begin (empty: no member is left).
local nonce, alive_time, wait, after, limit = unpack(ARGV)
local from = after ~= '' and '('..after or '['..nonce..'.'
-- The owners of the worker's leases begin with the nonce and a dot. The range ends before '/',
-- because '/' follows '.' in the order of bytes.
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
