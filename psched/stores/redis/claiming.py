"""How due rows of a Redis server are leased; see `psched.stores.redis.scripts` for the others."""

from psched.stores.redis.lua import script

CLAIM = script(
    r"""
local owner, limit, alive_time, shortest, horizon = unpack(ARGV)
-- Of due rows that are others' at most so many are passed over, so many at a time.
local LOOKED_AT, PAGE = 50000, 500
local WHOLE = {
  [5] = 'delay', [6] = 'next_time', [8] = 'fence', [10] = 'attempt', [13] = 'version',
  [14] = 'created_at', [15] = 'alive_time', [17] = 'retain_until',
}
local UTF8 = {
  '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]',
  '[\225-\236\238\239][\128-\191][\128-\191]',
  '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
  '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
}

local function is_utf8(key)
  for _, form in ipairs(UTF8) do key = key:gsub(form, '') end
  return not key:find('[\128-\255]')
end

-- Why a row cannot be leased.
local function problem(key, got)
  if got.err then return 'its row is no hash' end
  if redis.call('EXISTS', name(key)) == 0 then
    return 'its row is gone; was it evicted by the server, for want of memory?'
  end
  if not is_utf8(key) then return 'id: is not UTF-8' end
  for i, column in pairs(WHOLE) do
    if got[i] and (not got[i]:find('^%-?%d+$') or #got[i] > 20) then
      redis.call('HDEL', name(key), column)
      return column..': was no whole number'
    end
  end
  for _, column in ipairs({'fence', 'attempt'}) do
    local grown = redis.pcall('HINCRBY', name(key), column, 1)
    if type(grown) == 'table' then return column..': the database refused: '..grown.err end
  end
end

-- The keys of those that have been due longest; of some types, if any are named.
local function first_due(most)
  if #ARGV == 5 then
    return redis.call('ZRANGEBYSCORE', DUE, '-inf', whole(now), 'LIMIT', 0, most)
  end
  local only, keys, at = {}, {}, 0
  for i = 6, #ARGV do only[ARGV[i]] = true end
  while #keys < most and at < LOOKED_AT do
    local page = redis.call('ZRANGEBYSCORE', DUE, '-inf', whole(now), 'LIMIT', at, PAGE)
    for _, key in ipairs(page) do
      local kind = redis.pcall('HGET', name(key), 'type')
      if #keys < most and (type(kind) == 'table' or only[kind or 'default']) then
        keys[#keys + 1] = key
      end
    end
    if #page < PAGE then break end
    at = at + PAGE
  end
  return keys
end

local near = redis.call('ZRANGEBYSCORE', DUE, '('..whole(now), whole(now + horizon), 'WITHSCORES',
  'LIMIT', 0, 1)
local keys = first_due(tonumber(limit))
local rows, expired, size, more = {}, {}, 0, #keys == tonumber(limit)
for _, key in ipairs(keys) do
  if size > SIZE then
    more = 1
    break
  end
  local got = redis.pcall('HMGET', name(key), COLUMNS)
  local why = problem(key, got)
  if got[7] then redis.call('ZREM', HELD, lease(got[7], key)) end
  if why then
    if not got.err then write(key, {'status', 'quarantined', 'reason', why, 'owner', false}) end
    put(key, false)
  else
    expired[#expired + 1] = got[7] and 1 or 0
    local ends = lease_end(got[15], alive_time, shortest)
    redis.call('ZADD', DUE, ends, key)
    redis.call('ZADD', HELD, 0, lease(owner, key))
    redis.call('HSET', name(key), 'owner', owner)
    got[7] = owner
    got[8], got[10] = unpack(redis.call('HMGET', name(key), 'fence', 'attempt'))
    rows[#rows + 1] = {key, ends, unpack(got, 1, #got)}
    size = size + #(got[2] or '') + #(got[16] or '')
  end
end
local time = redis.call('TIME')
return {time[1], time[2], rows, expired, near[2] or false, more and 1 or 0}
""",
    "allow-oom",
)
