"""What psched asks of a Redis server, as scripts; see `psched.stores.redis.lua` for the layout.

Each is one request, all of it or nothing. Whatever is written about a lease names its whole
token. With the server's memory full only those are refused that bring more data.
"""

from psched.stores.redis.lua import script

EXTEND = script(
    r"""
local held = {}
for i = 3, #ARGV, 3 do
  local key, owner, fence = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local got = read(key, 'owner', 'fence', 'alive_time')
  local mine = got and got[1] == owner and (got[2] or '0') == fence
  if mine then redis.call('ZADD', DUE, lease_end(got[3], ARGV[1], ARGV[2]), key) end
  held[#held + 1] = mine and 1 or 0
end
return held
""",
    "allow-oom",
)

DONE, REDEFINED, PREEMPTED = 0, 1, 2

SETTLE_VALUES = 14
"""Arguments for each settlement."""

SETTLE = script(
    r"""
local function settle(key, owner, fence, version, seen_status, next_time, not_before, wait, rest,
    gone, retain, attempt, status, reason)
  local got = read(key, 'owner', 'fence', 'version', 'settled_by', 'status')
  if not got then return gone == '1' and DONE or PREEMPTED end
  local token = owner..'#'..fence
  local mine = got[1] == owner and (got[2] or '0') == fence
  if not mine or (got[3] or '1') ~= version or not unchanged(got[5], seen_status) then
    if got[4] == token then return DONE end
    return mine and REDEFINED or PREEMPTED
  end
  if gone == '1' then
    remove(key, owner)
    return DONE
  end
  local retained = retain ~= '' and whole(now + retain)
  write(key, {
    'next_time', number(next_time), 'attempt', attempt, 'status', status, 'reason', given(reason),
    'settled_by', token, 'retain_until', retained, 'owner', false,
  })
  redis.call('ZREM', HELD, lease(owner, key))
  put(key, rest == '0' and whole(math.max(tonumber(not_before), now + wait)))
  keep(key, retained)
  return DONE
end

local results = {}
for i = 1, #ARGV, VALUES do results[#results + 1] = settle(unpack(ARGV, i, i + VALUES - 1)) end
return results
""".replace("VALUES", str(SETTLE_VALUES))
    .replace("DONE", str(DONE))
    .replace("REDEFINED", str(REDEFINED))
    .replace("PREEMPTED", str(PREEMPTED)),
    "allow-oom",
)

RECOVER = script(
    r"""
local nonce, alive_time, wait, after, limit = unpack(ARGV)
local from = after ~= '' and '('..after or '['..nonce..'.'
local found = redis.call('ZRANGEBYLEX', HELD, from, '('..nonce..'/', 'LIMIT', 0, limit)
local released = {}
for _, each in ipairs(found) do
  local zero = each:find('%z')
  local owner, key = each:sub(1, zero - 1), each:sub(zero + 1)
  local got = read(key, 'owner', 'fence', 'attempt')
  local ends = tonumber(redis.call('ZSCORE', DUE, key) or '0')
  if not got or got[1] ~= owner then
    redis.call('ZREM', HELD, each)
  elseif ends > now and ends <= now + alive_time + 1 then
    write(key, {
      'owner', false, 'settled_by', owner..'#'..(got[2] or '0'), 'reason', 'its worker died',
    })
    redis.call('ZREM', HELD, each)
    put(key, whole(now + (tonumber(got[3] or '0') > 1 and tonumber(wait) or 0)))
    released[#released + 1] = key
  end
end
return {released, #found == tonumber(limit) and found[#found] or ''}
""",
    "allow-oom",
)

ADD_VALUES = 10
"""Arguments for each row."""

ADD = script(
    r"""
local seen = {}
for i = 2, #ARGV, VALUES do
  local key = ARGV[i]
  if seen[key] or redis.call('EXISTS', name(key)) == 1 then return key end
  seen[key] = true
end
for i = 2, #ARGV, VALUES do
  local key, kind, data, cron, timezone, delay, next_time, next_run_time, alive_time, options =
    unpack(ARGV, i, i + VALUES - 1)
  local fields = {'type', kind, 'settled_by', ARGV[1], 'created_at', whole(now)}
  for column, value in pairs({
    data = given(data), cron = given(cron), timezone = given(timezone),
    delay = delay ~= '0' and delay, next_time = number(next_time),
    alive_time = number(alive_time), options = given(options),
  }) do
    if value then
      fields[#fields + 1] = column
      fields[#fields + 1] = value
    end
  end
  redis.call('HSET', name(key), unpack(fields))
  put(key, number(next_run_time))
end
return false
""".replace("VALUES", str(ADD_VALUES)),
)

REPLACE = script(
    r"""
local key, version, fence, owner, due, seen_status = unpack(ARGV, 1, 6)
local got = read(key, 'version', 'fence', 'owner', 'created_at', 'status')
if not got or (got[1] or '1') ~= version or (got[2] or '0') ~= fence
    or (got[3] or '') ~= owner or not unchanged(got[5], seen_status) then
  return 0
end
local stands = tonumber(redis.call('ZSCORE', DUE, key) or '')
-- A lease's end may have moved meanwhile; a free row's due time may not.
if not got[3] and (stands and math.floor(stands)) ~= tonumber(due) then return 0 end
local _, _, _, _, _, _, kind, data, cron, timezone, delay, next_time, next_run_time, status, reason,
  attempt, alive_time, options, created_at, retain_until = unpack(ARGV)
if type(redis.pcall('HINCRBY', name(key), 'version', got[1] and 1 or 2)) == 'table' then
  return redis.error_reply('UNFIT the version of the row '..key..' is no number that can grow')
end
write(key, {
  'type', kind, 'data', given(data), 'cron', given(cron), 'timezone', given(timezone),
  'delay', delay, 'next_time', number(next_time), 'status', status, 'reason', given(reason),
  'attempt', attempt, 'alive_time', number(alive_time), 'options', given(options),
  'created_at', number(created_at) or got[4], 'retain_until', number(retain_until),
})
if not got[3] then put(key, number(next_run_time)) end
keep(key, number(retain_until))
return 1
""",
    "allow-oom",
)

UPDATE_DATA = script(
    r"""
local key, owner, fence, data = unpack(ARGV)
local got = read(key, 'owner', 'fence', 'version')
if not got or got[1] ~= owner or (got[2] or '0') ~= fence then return 0 end
redis.call('HINCRBY', name(key), 'version', got[3] and 1 or 2)
redis.call('HSET', name(key), 'data', data)
return 1
""",
)

MISSING, REMOVED, MARKED = 0, 1, 2

DELETE = script(
    r"""
local key = ARGV[1]
local due = redis.call('ZSCORE', DUE, key)
local got = read(key, 'owner', 'status', 'version')
if not got and redis.call('EXISTS', name(key)) == 0 and not due
    and not redis.call('ZSCORE', REST, key) then
  return MISSING
end
if got and got[1] and due and tonumber(due) > now then
  if got[2] ~= 'deleting' then
    redis.call('HINCRBY', name(key), 'version', got[3] and 1 or 2)
    redis.call('HSET', name(key), 'status', 'deleting')
  end
  return MARKED
end
remove(key, got and got[1])
return REMOVED
""".replace("MISSING", str(MISSING))
    .replace("REMOVED", str(REMOVED))
    .replace("MARKED", str(MARKED)),
    "allow-oom",
)

PURGE = script(
    r"""
local removed = 0
local ended = redis.call('ZRANGEBYSCORE', RETAIN, '-inf', whole(now), 'LIMIT', 0, ARGV[1])
for _, key in ipairs(ended) do
  local got = read(key, 'owner', 'retain_until')
  local until_then = got and tonumber(got[2] or '')
  if until_then and until_then <= now and not redis.call('ZSCORE', DUE, key) then
    remove(key, got[1])
    removed = removed + 1
  else
    -- Somebody has put it back to work who need not know of this set.
    redis.call('ZREM', RETAIN, key)
  end
end
return removed
""",
    "allow-oom",
)

INIT = script(
    r"""
local found = redis.call('HGET', INFO, 'version')
if not found then redis.call('HSET', INFO, 'version', ARGV[1]) end
return found
"""
)

TRY = script(
    r"""
local refused = {}
for _, request in ipairs({
  {'HSET', INFO, 'version', redis.call('HGET', INFO, 'version')},
  {'HMGET', INFO, 'version'}, {'HINCRBY', INFO, 'version', 0}, {'HDEL', INFO, 'none'},
  {'DEL', p..'none'}, {'EXISTS', p..'none'}, {'ZADD', p..'none', 'XX', 0, ''},
  {'ZREM', p..'none', ''}, {'ZSCORE', DUE, ''}, {'ZRANK', DUE, ''}, {'ZCOUNT', DUE, 1, 0},
  {'ZRANGE', DUE, 0, 0}, {'ZRANGEBYSCORE', DUE, 1, 0}, {'ZRANGEBYLEX', HELD, '+', '-'},
}) do
  local answer = redis.pcall(unpack(request))
  if type(answer) == 'table' and answer.err then refused[#refused + 1] = request[1] end
end
return refused
""",
    "allow-oom",
)
