#!lua flags=allow-oom
-- Leases due rows; the rows that have been due longest come first. ARGV: the owner, the most rows
-- to lease, alive_time, the shortest length of a lease, the horizon in seconds, then the types to
-- claim (none: all types). Returns the time as seconds and microseconds; the leased rows; for each
-- row the owner of its last lease if that lease has expired, otherwise an empty string; for each row
-- the time when that lease was claimed, or an empty string; the time of the next row to fall due within
-- the horizon, or nil; 1 if more rows might be due, otherwise 0. Returns only nil if the server has no
-- data of psched.
if redis.call('EXISTS', INFO) == 0 then return nil end
local owner, limit, alive_time, shortest, horizon = unpack(ARGV)
local types = {unpack(ARGV, 6)}

-- The columns that must contain whole numbers, by their indexes in COLUMNS.
local INTEGERS = {
  [5] = 'delay', [6] = 'next_time', [8] = 'fence', [10] = 'attempt', [13] = 'version',
  [14] = 'created_at', [15] = 'alive_time', [17] = 'retain_until',
}

-- Patterns that match the UTF-8 characters of more than one byte (RFC 3629).
local UTF8 = {
  '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]',
  '[\225-\236\238\239][\128-\191][\128-\191]',
  '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
  '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
}

local function is_utf8(key)
  for _, sequence in ipairs(UTF8) do key = key:gsub(sequence, '') end
  return not key:find('[\128-\255]')
end

-- Checks whether a row can be leased, and increments its fence and attempt. Returns nil if the row
-- can be leased, otherwise a text that says why it cannot.
local function problem(key, row)
  if row.err then return 'its row is no hash' end
  if redis.call('EXISTS', row_key(key)) == 0 then
    return 'its row is gone; was it evicted by the server, for want of memory?'
  end
  if not is_utf8(key) then return 'id: is not UTF-8' end
  for i, column in pairs(INTEGERS) do
    if row[i] and (not row[i]:find('^%-?%d+$') or #row[i] > 20) then
      redis.call('HDEL', row_key(key), column)
      return column..': was no whole number'
    end
  end
  for _, column in ipairs({'fence', 'attempt'}) do
    local grown = redis.pcall('HINCRBY', row_key(key), column, 1)
    if type(grown) == 'table' then return column..': the database refused: '..grown.err end
  end
end

local next_due = redis.call('ZRANGEBYSCORE', DUE, '('..integer(now), integer(now + horizon),
  'WITHSCORES', 'LIMIT', 0, 1)[2]
local keys, unread = due_keys(tonumber(limit), types, true)
local rows, expired, claimed, size = {}, {}, {}, 0
local more = unread or #keys == tonumber(limit)
for _, key in ipairs(keys) do
  if size > LARGEST_ANSWER then
    more = true
    break
  end
  local row = redis.pcall('HMGET', row_key(key), unpack(COLUMNS))
  local why = problem(key, row)
  if row[7] then redis.call('ZREM', HELD, held_member(row[7], key)) end
  if why then
    if not row.err then
      write_fields(key, {
        'status', 'quarantined', 'reason', why, 'reason_code', 'invalid', 'leased_by', false,
      })
    end
    set_due(key, false)
  else
    expired[#expired + 1] = row[7] or ''
    claimed[#claimed + 1] = claimed_at(row[18], row[8]) or ''
    local ends = lease_end(row[15], alive_time, shortest)
    local fell_due = redis.call('ZSCORE', DUE, key)
    end_hold(key)
    redis.call('ZADD', DUE, ends, key)
    redis.call('ZADD', HELD, 0, held_member(owner, key))
    row[8], row[10] = unpack(redis.call('HMGET', row_key(key), 'fence', 'attempt'))
    row[7], row[18], row[19], row[20] = owner, integer(now)..'#'..row[8], false, false
    redis.call('HSET', row_key(key), 'leased_by', owner, 'claimed_at', row[18])
    rows[#rows + 1] = {key, fell_due, unpack(row, 1, #row)}
    size = size + #(row[2] or '') + #(row[16] or '')
  end
end
local time = redis.call('TIME')
return {time[1], time[2], rows, expired, claimed, next_due or false, more and 1 or 0}
