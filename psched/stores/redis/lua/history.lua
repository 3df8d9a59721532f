-- Scripts of the run history, of the records of workers and of the audit trail.

--- record
-- Writes records of the run history that belong to no settlement. ARGV: the values of
-- `write_new_records`. Returns the number of records that could not be written, and the reason for the
-- last of them.
return {write_new_records(1)}

--- history_page: no-writes,allow-oom
-- Returns a page of records, the newest first. ARGV: 'runs', 'audit', 'key' or 'extra' (the extra runs of
-- a schedule); the place after the last record of the previous page (empty: begin with the newest); the
-- most records; the key if the first value is 'key' or 'extra'. Returns for each record its place, its
-- id, its key and the record; nil if the list of this key does not exist. The place is the id in the
-- stream, or the index in the key's list.
local what, place, most, key = unpack(ARGV)
local found = {}
if what == 'key' then
  if redis.call('EXISTS', runs_key(key)) == 0 then return nil end
  local first = tonumber(place) or 0
  for i, element in ipairs(redis.call('LRANGE', runs_key(key), first, first + most - 1)) do
    local id, record = element:match('^(%S+) (.*)')
    found[i] = {integer(first + i), id or '', key, record or ''}
  end
elseif what == 'extra' then
  local first, list = tonumber(place) or 0, PREFIX..'extra:'..key
  for i, element in ipairs(redis.call('LRANGE', list, first, first + most - 1)) do
    local id, mark, record = element:match('^([^ !]+)(!%w+) (.*)')
    found[i] = {integer(first + i), id or '', key..(mark or ''), record or ''}
  end
else
  local stream = what == 'runs' and RUNS or AUDIT
  local last = place == '' and '+' or '('..place
  for i, entry in ipairs(redis.call('XREVRANGE', stream, last, '-', 'COUNT', most)) do
    found[i] = {entry[1], entry[1], entry[2][2], entry[2][4] or ''}
  end
end
local page, size = {}, 0
for i, record in ipairs(found) do
  if size > LARGEST_ANSWER then break end
  page[i] = record
  size = size + #record[4]
end
return page

--- last_runs: no-writes,allow-oom
-- Returns for each of some keys its newest record that says how an attempt or an occurrence ended, as its
-- id and the record, or nil. See psched.core.history.records.RunRecord.is_end. ARGV: the keys.
local PAGE = 20

-- The fates that count even if nothing ran.
local DECISIONS = {finished = true, gave_up = true, cancelled = true, expired = true, quarantined = true,
  stopped = true}

-- A quote inside a JSON text is escaped, so only the field itself matches.
local function is_end(element)
  if element:find('"outcome":"', 1, true) then return true end
  return DECISIONS[element:match('"fate":"([^"]*)"')] and not element:find('"until":', 1, true)
end

local function last_run(key)
  local first = 0
  while true do
    local page = redis.call('LRANGE', runs_key(key), first, first + PAGE - 1)
    for _, element in ipairs(page) do
      if is_end(element) then return {element:match('^(%S+) (.*)')} end
    end
    if #page < PAGE then return false end
    first = first + PAGE
  end
end

local found = {}
for i, key in ipairs(ARGV) do found[i] = last_run(key) end
return found

--- durations: no-writes,allow-oom
-- Returns for each of some keys how long its newest whole runs took, in milliseconds. ARGV: the most runs
-- of each key, how many of its newest records are looked at, then the keys. See psched.core.history.
-- records.WHOLE.
local most, among = tonumber(ARGV[1]), tonumber(ARGV[2])
local WHOLE = {finished = true, failed = true, timed_out = true}

local function durations(key)
  local found = {}
  for _, element in ipairs(redis.call('LRANGE', runs_key(key), 0, among - 1)) do
    -- A quote inside a JSON text is escaped, so only the fields themselves match.
    local started, ended = element:match('"started":(%d+)'), element:match('"ended":(%d+)')
    if started and ended and WHOLE[element:match('"outcome":"([^"]*)"')] then
      found[#found + 1] = integer(ended - started)
      if #found == most then break end
    end
  end
  return found
end

local found = {}
for i = 3, #ARGV do found[i - 2] = durations(ARGV[i]) end
return found

--- failures: no-writes,allow-oom
-- Searches the records of all keys for failures, the newest first. ARGV: the place after the last record
-- that was looked at (empty: begin with the newest), the most records to look at, the most records to
-- return, the outcomes and the fates of failures as a JSON object of two lists, and the place before which
-- nothing is looked at, nor this place itself (empty: none). Returns the place, how many were looked at, for
-- each failure its id and the record, and the place of the first record that was looked at.
local place, most, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local PAGE = 100
local wanted = {outcome = {}, fate = {}}
for name, values in pairs(cjson.decode(ARGV[4])) do
  for _, value in ipairs(values) do wanted[name][value] = true end
end

local least = ARGV[5] == '' and '-' or '('..ARGV[5]
local found, looked, first = {}, 0, ''
while looked < most and #found < limit do
  local last = place == '' and '+' or '('..place
  local page = redis.call('XREVRANGE', RUNS, last, least, 'COUNT', math.min(PAGE, most - looked))
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    place, looked = entry[1], looked + 1
    if looked == 1 then first = place end
    -- A quote inside a JSON text is escaped, so only the fields themselves match.
    local record = entry[2][4] or ''
    if wanted.outcome[record:match('"outcome":"([^"]*)"')] or wanted.fate[record:match('"fate":"([^"]*)"')] then
      found[#found + 1] = {entry[1], record}
      if #found == limit then break end
    end
  end
end
return {place, looked, found, first}

--- trim: allow-oom
-- Deletes old records, changes and workers. ARGV: the time in milliseconds before which they ended; the
-- most records, and the most changes, to delete. Returns the number of deleted records, and the number
-- of deleted changes.
local before, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local deleted = 0
for _, entry in ipairs(redis.call('XRANGE', RUNS, '-', '+', 'COUNT', most)) do
  local id, key, record = entry[1], entry[2][2], entry[2][4] or ''
  if (tonumber(record:match('^%d+')) or 0) < before then
    redis.call('XDEL', RUNS, id)
    redis.call('LREM', runs_key(key), -1, id..' '..record)
    remove_extra(key, id..' '..record)
    deleted = deleted + 1
  end
end

local changes = before < 1 and {}
  or redis.call('XRANGE', AUDIT, '-', '('..integer(before)..'-0', 'COUNT', most)
for _, entry in ipairs(changes) do redis.call('XDEL', AUDIT, entry[1]) end

local seen = '('..integer(math.floor(before / 1000))
for _, nonce in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '-inf', seen, 'LIMIT', 0, most)) do
  redis.call('DEL', worker_key(nonce))
  redis.call('ZREM', WORKERS, nonce)
end
return {deleted, #changes}

--- trim_key: allow-oom
-- Deletes the oldest records of a key. ARGV: the key; how many to keep; the most to delete. Returns the
-- number of deleted records.
local list, keep, most = runs_key(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local length = redis.call('LLEN', list)
local count = math.min(length - keep, most)
if count <= 0 then return 0 end
for _, element in ipairs(redis.call('LRANGE', list, -count, -1)) do
  local id = element:match('^%d+%-%d+')
  if id then redis.call('XDEL', RUNS, id) end
  remove_extra(ARGV[1], element)
end
if count == length then
  redis.call('DEL', list)
else
  redis.call('LTRIM', list, 0, length - count - 1)
end
return count

--- beat: allow-oom
-- Inserts or replaces the record of a worker. ARGV: its nonce; started and ended, in seconds (0: now;
-- empty: none); the seconds after which the record is removed (0: never); then names and values of the
-- other fields in turn. The script runs even if the memory is full, because workers are few.
local nonce, started, ended, keep = unpack(ARGV, 1, 4)
local worker, seconds = worker_key(nonce), integer(now)
redis.call('DEL', worker)
redis.call('HSET', worker, 'seen', seconds, 'started', started == '0' and seconds or started,
  unpack(ARGV, 5))
if ended ~= '' then redis.call('HSET', worker, 'ended', ended == '0' and seconds or ended) end
if keep ~= '0' then redis.call('EXPIRE', worker, keep) end
redis.call('ZADD', WORKERS, seconds, nonce)

--- workers: no-writes,allow-oom
-- Returns the records of workers. ARGV: the earliest time of their last record, in seconds; then the
-- names of the fields to return. Returns for each worker its nonce and these fields.
local found = {}
for _, nonce in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, ARGV[1], '+inf')) do
  local fields = redis.call('HMGET', worker_key(nonce), unpack(ARGV, 2))
  if fields[1] then found[#found + 1] = {nonce, unpack(fields, 1, #ARGV - 1)} end
end
return found

--- audit: allow-oom
-- Writes changes of schedules. ARGV: the most changes that are kept; then the key and the record of
-- each change. The script runs even if the memory is full, because the stream is small.
for i = 2, #ARGV, 2 do
  redis.call('XADD', AUDIT, 'MAXLEN', '~', ARGV[1], '*', 'key', ARGV[i], 'record', ARGV[i + 1])
end
