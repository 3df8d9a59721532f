-- Scripts that read rows, and that change rows without a lease.

--- add
-- Adds all given rows, or none if a row with one of the keys exists. ARGV: the nonce of this
-- insert, then 14 values for each row. Returns nil if the rows were added, otherwise the first key
-- that exists already or is given twice.
local VALUES = 14

local seen = {}
for i = 2, #ARGV, VALUES do
  local key = ARGV[i]
  if seen[key] or redis.call('EXISTS', row_key(key)) == 1 then return key end
  seen[key] = true
end
for i = 2, #ARGV, VALUES do
  local key, kind, data, cron, timezone, delay, next_time, next_run_time, alive_time, options,
    local_time, label, lane, run_as = unpack(ARGV, i, i + VALUES - 1)
  local fields = {'type', kind, 'settled_by', ARGV[1], 'created_at', integer(now)}
  for column, value in pairs({
    data = optional_text(data), cron = optional_text(cron), timezone = optional_text(timezone),
    delay = delay ~= '0' and delay, next_time = optional_number(next_time),
    alive_time = optional_number(alive_time), options = optional_text(options),
    local_time = optional_text(local_time), label = optional_text(label),
    lane = optional_text(lane),
    run_as = optional_text(run_as),
  }) do
    if value then
      fields[#fields + 1] = column
      fields[#fields + 1] = value
    end
  end
  redis.call('HSET', row_key(key), unpack(fields))
  if lane ~= '' then redis.call('ZADD', LANES, 0, optional_text(lane)) end
  set_due(key, optional_number(next_run_time))
end
return false

--- rows: no-writes,allow-oom
-- Returns the rows with the given keys; omits keys without a row. ARGV: the keys.
local rows = {}
for _, key in ipairs(ARGV) do rows[#rows + 1] = read_row(key) or nil end
return rows

--- page: no-writes,allow-oom
-- Returns a page of rows; 1 if it is the last page, otherwise 0; and the score and the key of the
-- last row that was looked at. ARGV: the set ('due' or 'rest'), the most rows to look at, the score
-- and the key of the last row of the previous page, both empty for the first page, and the filter.
-- The filter is empty, or JSON with the fields of psched.core.selection.Selection; rows that
-- do not match are omitted. A row that cannot be read is returned, because psched tells its status.
local part, limit, score, last, filter = unpack(ARGV)
filter = filter ~= '' and cjson.decode(filter)
local is_first, keys = score == '', nil

local function includes(list, value)
  if #list == 0 then return true end
  for _, each in ipairs(list) do
    if each == value then return true end
  end
  return false
end

local function matches(key)
  if not filter then return true end
  if key:sub(1, #filter.prefix) ~= filter.prefix then return false end
  local row = redis.pcall('HMGET', row_key(key), 'type', 'status', 'leased_by', 'label')
  if row.err then return true end
  if not row[1] and redis.call('EXISTS', row_key(key)) == 0 then return true end
  local status = row[2] or 'waiting'
  if filter.due and status ~= 'waiting' then return false end
  if status == 'waiting' and row[3] then status = 'running' end
  return includes(filter.statuses, status) and includes(filter.types, row[1] or 'default')
    and (#filter.labels == 0 or includes(filter.labels, row[4]))
end

if part == 'due' then
  local rank = is_first and 0 or rank_after(score, last)
  if filter and filter.due then
    local due = redis.call('ZCOUNT', DUE, '-inf', integer(now))
    limit = math.min(limit, math.max(due - rank, 0))
  end
  keys = limit == 0 and {} or redis.call('ZRANGE', DUE, rank, rank + limit - 1)
else
  keys = redis.call('ZRANGEBYLEX', REST, is_first and '-' or '('..last, '+', 'LIMIT', 0, limit)
end
local rows, size, done = {}, 0, #keys < tonumber(ARGV[2]) and 1 or 0
for i, key in ipairs(keys) do
  last = key
  if matches(key) then
    local row, bytes = read_row(key)
    size = size + bytes
    rows[#rows + 1] = row
    if size > LARGEST_ANSWER and i < #keys then
      done = 0
      break
    end
  end
end
return {rows, done, redis.call('ZSCORE', DUE, last) or '0', last}

--- count: no-writes,allow-oom
-- Returns the number of rows: each row is in one of the two sets.
return redis.call('ZCOUNT', DUE, '-inf', '+inf') + redis.call('ZCOUNT', REST, '-inf', '+inf')

--- replace: allow-oom
-- Replaces a row if it has not changed since it was read, and writes records of the run history if it is
-- replaced. ARGV: the key; version, fence, owner, next_run_time and status as read; then the new values;
-- then the values of `write_new_records`. Returns 1, or 0 if the row has changed; then the number of
-- records that could not be written, and the reason for the last of them.
--
-- Without its flag, this script is `replace_and_record`: the server refuses it if its memory is full.
local VALUES = 30

-- Returns 1, 0 or an error.
local function replace()
  local key, version, fence, owner, due, seen_status = unpack(ARGV, 1, 6)
  local row = read_fields(key, 'version', 'fence', 'leased_by', 'created_at', 'status', 'lane')
  if not row or (row[1] or '1') ~= version or (row[2] or '0') ~= fence
      or (row[3] or '') ~= owner or not has_status(row[5], seen_status) then
    return 0
  end
  local current = tonumber(redis.call('ZSCORE', DUE, key) or '')
  -- The next_run_time of a leased row is the end of its lease, which its worker may have extended
  -- since the row was read. So next_run_time is compared only in free rows.
  if not row[3] and (current and math.floor(current)) ~= tonumber(due) then return 0 end
  local _, _, _, _, _, _, kind, data, cron, timezone, delay, next_time, next_run_time, status, reason,
    attempt, alive_time, options, created_at, retain_until, label, lane, run_as = unpack(ARGV)
  if type(redis.pcall('HINCRBY', row_key(key), 'version', row[1] and 1 or 2)) == 'table' then
    return redis.error_reply('UNFIT the version of the row '..key..' is no number that can grow')
  end
  write_fields(key, {
    'type', kind, 'data', optional_text(data), 'cron', optional_text(cron),
    'timezone', optional_text(timezone), 'delay', delay, 'next_time', optional_number(next_time),
    'status', status, 'reason', optional_text(reason), 'attempt', attempt,
    'alive_time', optional_number(alive_time), 'options', optional_text(options),
    'created_at', optional_number(created_at) or row[4],
    'retain_until', optional_number(retain_until), 'label', optional_text(label),
    'lane', optional_text(lane), 'run_as', optional_text(run_as),
    told(unpack(ARGV, 24, VALUES))
  })
  set_lane(key, row[6], optional_text(lane))
  if not row[3] then set_due(key, optional_number(next_run_time)) end
  set_retention(key, optional_number(retain_until))
  return 1
end

local replaced = replace()
if type(replaced) == 'table' then return replaced end
if replaced == 0 then return {0, 0, false} end
return {1, write_new_records(VALUES + 1)}

--- update_data
-- Replaces the data of a leased row. ARGV: key, owner, fence, data. Returns 1; or 0, without any
-- change, if the lease is no longer held.
local key, owner, fence, data = unpack(ARGV)
local row = read_fields(key, 'leased_by', 'fence', 'version')
if not row or row[1] ~= owner or (row[2] or '0') ~= fence then return 0 end
redis.call('HINCRBY', row_key(key), 'version', row[3] and 1 or 2)
redis.call('HSET', row_key(key), 'data', data)
return 1

--- delete: allow-oom
-- Deletes a row; if the row is leased or held, only gives it the status 'deleting'. ARGV: the key. Returns
-- 'removed' or 'marked', or 'missing' if there is no such row.
local key = ARGV[1]
local due = redis.call('ZSCORE', DUE, key)
local row = read_fields(key, 'leased_by', 'status', 'version')
if not row and redis.call('EXISTS', row_key(key)) == 0 and not due
    and not redis.call('ZSCORE', REST, key) then
  return 'missing'
end
local held = row and is_held(key)
-- A row that is held becomes due, so that it is claimed and removed after the hold.
if held and not row[1] and (not due or tonumber(due) > now) then set_due(key, integer(now)) end
if held or row and row[1] and due and (OBSERVED or tonumber(due) > now) then
  if row[2] ~= 'deleting' then
    redis.call('HINCRBY', row_key(key), 'version', row[3] and 1 or 2)
    redis.call('HSET', row_key(key), 'status', 'deleting')
  end
  return 'marked'
end
remove_row(key, row and row[1])
return 'removed'

--- purge: allow-oom
-- Removes rows whose retention has ended. ARGV: the most rows to remove. Returns the number of
-- removed rows.
local removed = 0
local expired = redis.call('ZRANGEBYSCORE', RETAIN, '-inf', integer(now), 'LIMIT', 0, ARGV[1])
for _, key in ipairs(expired) do
  local row = read_fields(key, 'leased_by', 'retain_until')
  local until_then = row and tonumber(row[2] or '')
  local rests = until_then and until_then <= now and not redis.call('ZSCORE', DUE, key)
  if rests and not is_held(key) then
    remove_row(key, row[1])
    removed = removed + 1
  elseif not rests then
    -- Another client has rescheduled the row or changed its retain_until, without updating the set
    -- RETAIN. So the row is not removed, but only its member of this set.
    redis.call('ZREM', RETAIN, key)
  end
end
return removed

--- marked: no-writes,allow-oom
-- Returns for each row its status, or nil if the row has no status or does not exist. ARGV: the
-- keys of the rows.
local found = {}
for _, key in ipairs(ARGV) do
  local row = read_fields(key, 'status')
  found[#found + 1] = row and row[1] or false
end
return found
