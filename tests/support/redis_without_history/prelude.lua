-- The layout of the data, and the functions that several scripts call. KEYS[1] is the prefix of all
-- keys: the table's name in braces, and a colon. The braces put all keys into one hash slot.
--
--   {table}:row:KEY   a hash: the columns of a row, except its key and next_run_time; an absent
--                     column has its default
--   {table}:due       a sorted set of keys by next_run_time: rows that wait or are leased
--   {table}:rest      a sorted set of keys, all with score 0: rows that have no next_run_time
--   {table}:held      a sorted set, all with score 0: OWNER, a zero byte and KEY of each leased row
--   {table}:retain    a sorted set of keys by retain_until: rows that can be purged after this time
--   {table}:info      a hash: the version of this layout
--
-- In arguments, an empty string stands for an absent value. A text that can be empty is passed with
-- '=' before it, so that an empty text differs from an absent one.

local PREFIX = KEYS[1]
local DUE, REST, HELD = PREFIX..'due', PREFIX..'rest', PREFIX..'held'
local RETAIN, INFO = PREFIX..'retain', PREFIX..'info'

-- The fields of a row's hash, in the order in which rows are returned.
local COLUMNS = {
  'type', 'data', 'cron', 'timezone', 'delay', 'next_time', 'owner', 'fence', 'settled_by',
  'attempt', 'status', 'reason', 'version', 'created_at', 'alive_time', 'options', 'retain_until',
}

-- When the rows of an answer have more bytes of data and options than this, no row is added to it.
local LARGEST_ANSWER = 4000000

-- The longest lease in seconds, as in psched.base.lease_times.
local LONGEST_LEASE = 366 * 86400

local now = tonumber(redis.call('TIME')[1])

local function row_key(key) return PREFIX..'row:'..key end

local function held_member(owner, key) return owner..'\0'..key end

-- Converts a number to text without an exponent.
local function integer(number) return string.format('%.0f', number) end

local function optional_text(argument) return argument ~= '' and argument:sub(2) end

local function optional_number(argument) return argument ~= '' and argument end

-- Returns the values of some fields of a row; the value of an absent field is false. Returns nil if
-- the row has no hash.
local function read_fields(key, ...)
  if redis.call('EXISTS', row_key(key)) == 0 then return nil end
  local values = redis.pcall('HMGET', row_key(key), ...)
  if values.err then return nil end
  return values
end

-- Writes fields of a row. `fields` contains names and values in turn; a field whose value is false
-- is deleted.
local function write_fields(key, fields)
  local set, deleted = {}, {}
  for i = 1, #fields, 2 do
    if fields[i + 1] then
      set[#set + 1] = fields[i]
      set[#set + 1] = fields[i + 1]
    else
      deleted[#deleted + 1] = fields[i]
    end
  end
  if #set > 0 then redis.call('HSET', row_key(key), unpack(set)) end
  if #deleted > 0 then redis.call('HDEL', row_key(key), unpack(deleted)) end
end

-- Whether a row still has the status `seen` (empty: any status). Scripts compare the status besides
-- the version, because another client might set the status without increasing the version.
local function has_status(status, seen) return seen == '' or (status or 'waiting') == seen end

-- Sets the next_run_time of a row. If `time` is false, the row has no next run, so the key is moved
-- to the set REST.
local function set_due(key, time)
  if time then
    redis.call('ZADD', DUE, time, key)
    redis.call('ZREM', REST, key)
  else
    redis.call('ZREM', DUE, key)
    redis.call('ZADD', REST, 0, key)
  end
end

local function set_retention(key, time)
  if time then
    redis.call('ZADD', RETAIN, time, key)
  else
    redis.call('ZREM', RETAIN, key)
  end
end

local function remove_row(key, owner)
  redis.call('DEL', row_key(key))
  redis.call('ZREM', DUE, key)
  redis.call('ZREM', REST, key)
  redis.call('ZREM', RETAIN, key)
  if owner then redis.call('ZREM', HELD, held_member(owner, key)) end
end

-- Returns the end of a lease that begins now. The length of the lease is computed as in
-- psched.base.lease_times.lease_time. One second is added, because `now` is rounded down.
local function lease_end(own, alive_time, shortest)
  local length = math.max(tonumber(own or '') or tonumber(alive_time), tonumber(shortest))
  return integer(now + math.min(length, LONGEST_LEASE) + 1)
end

-- Returns a row and the number of bytes of its payload. The row consists of its key, next_run_time
-- and columns. If its hash cannot be read, a text that gives the reason replaces the columns.
-- Returns nil and 0 if there is no such row.
local function read_row(key)
  local due = redis.call('ZSCORE', DUE, key)
  local values = redis.pcall('HMGET', row_key(key), unpack(COLUMNS))
  if values.err then return {key, due, 'is no hash'}, 0 end
  local size = #(values[2] or '') + #(values[16] or '')
  if redis.call('EXISTS', row_key(key)) == 0 then
    if not due and not redis.call('ZSCORE', REST, key) then return nil, 0 end
    return {key, due, 'is gone'}, 0
  end
  return {key, due, unpack(values, 1, #values)}, size
end

-- If types are given to due_keys, rows of other types are read and skipped. MOST_READ is the most due
-- rows that are read, PAGE the number of rows that are read at a time.
local MOST_READ, PAGE = 50000, 500

-- Returns the keys of due rows of some types (none: of all types): at most `most` keys, those of the
-- rows that have been due longest.
local function due_keys(most, types)
  if #types == 0 then
    return redis.call('ZRANGEBYSCORE', DUE, '-inf', integer(now), 'LIMIT', 0, most)
  end
  local wanted, keys, offset = {}, {}, 0
  for _, kind in ipairs(types) do wanted[kind] = true end
  while #keys < most and offset < MOST_READ do
    local page = redis.call('ZRANGEBYSCORE', DUE, '-inf', integer(now), 'LIMIT', offset, PAGE)
    for _, key in ipairs(page) do
      local kind = redis.pcall('HGET', row_key(key), 'type')
      if #keys < most and (type(kind) == 'table' or wanted[kind or 'default']) then
        keys[#keys + 1] = key
      end
    end
    if #page < PAGE then break end
    offset = offset + PAGE
  end
  return keys
end
