-- The layout of the data, and the functions that several scripts call. KEYS[1] is the prefix of all
-- keys: the table's name in braces, and a colon. The braces put all keys into one hash slot.
--
--   {table}:row:KEY   a hash: the columns of a row, except its key and next_run_time; an absent
--                     column has its default
--   {table}:due       a sorted set of keys by next_run_time: rows that wait or are leased
--   {table}:lanes     a sorted set, all with score 0: the lanes that rows have or had, see
--                     psched.core.hosts; data without it are complete
--   {table}:lane:LANE a sorted set of the keys of rows that have this lane, by next_run_time; that of
--                     rows without one is +inf
--   {table}:rest      a sorted set of keys, all with score 0: rows that have no next_run_time
--   {table}:held      a sorted set, all with score 0: OWNER, a zero byte and KEY of each leased row
--   {table}:holds     a sorted set of keys by held_until: schedules that are held for an extra run
--   {table}:retain    a sorted set of keys by retain_until: rows that can be purged after this time
--   {table}:layout    a hash: the version of this layout; and `pauses`, the standing rules that pause
--                     types, as a JSON list of objects; and `passed`, see due_keys. In layout 1 its key
--                     was {table}:info, so that a worker of that time claims nothing here
--
-- The run history; data without it are complete, and older versions of psched ignore it:
--
--   {table}:runs      a stream of the records of all keys, capped; the fields are key and record
--   {table}:runs:KEY  a list of the records of one key, the newest first; it is capped and expires.
--                     It is no stream, because Redis allocates 4 KB for the first entry of a stream
--   {table}:extra:KEY a list of the records of all extra runs of a schedule, the newest first; it is
--                     capped and expires, too
--   {table}:workers   a sorted set of nonces of workers by the time of their last record
--   {table}:worker:NONCE   a hash: the record of a worker; it expires
--   {table}:audit     a stream of changes of schedules, capped; the fields are key and record
--
-- What attempts have printed; data without it are complete, too:
--
--   {table}:output         a sorted set by number: NUMBER SIZE ENDED KEY of each record, all numbers
--   {table}:output:KEY     a sorted set by number: SCHEDULED_TIME OWNER of each record of a key; it is
--                          capped and expires
--   {table}:printed:NUMBER a JSON object, a line feed and the output, see psched.stores.redis.
--                          output; it expires
--   {table}:output_info    a hash: the last number, and the sum of all sizes
--   {table}:asked:SCHEDULED_TIME OWNER KEY   the time in milliseconds until which somebody reads the
--                          output of this attempt, which is running; it expires then
--
-- Alerts; data without them are complete, too:
--
--   {table}:alert:NUMBER  a hash: key; identity, the key, the host, the rule and `since` with zero bytes
--                         between them; record, a JSON object of what never changes; raised; tells_end,
--                         which is 1 if a hook is told of the end; and, unless absent: closed,
--                         closed_text, deliveries, next_try, owner, fence
--   {table}:alert_ids     a hash: the number of each identity; and of each identity without `since`, the
--                         number of the one alert that is open; and `last`, the last number
--   {table}:alerts        a sorted set of the numbers of all alerts, the score is the number
--   {table}:alerts:KEY    the same of the alerts of a key; of those about hosts if the key is empty
--   {table}:alerts_open   the same of the open alerts
--   {table}:alerts_due    a sorted set of numbers by next_try
--   {table}:alerts_over   a sorted set of numbers by closed: closed alerts without next_try
--
-- The field `record` in a stream is a number, a space and a JSON object. The number is the time `ended`
-- in milliseconds; it is 0 for a change, whose time is the first part of its id. An element of a key's
-- list is the id of the same record in the stream, a space and that text. In a list of extra runs, '!'
-- and the last part of the key of the extra run follow the id.
--
-- In arguments, an empty string stands for an absent value. A text that can be empty is passed with
-- '=' before it, so that an empty text differs from an absent one.

local PREFIX = KEYS[1]
local DUE, REST, HELD = PREFIX..'due', PREFIX..'rest', PREFIX..'held'
local RETAIN, INFO, HOLDS, LANES = PREFIX..'retain', PREFIX..'layout', PREFIX..'holds', PREFIX..'lanes'
-- Of layout 1, and of an upgrade that has not ended.
local OLD_INFO, UPGRADING = PREFIX..'info', PREFIX..'upgrading'
local RUNS, WORKERS, AUDIT = PREFIX..'runs', PREFIX..'workers', PREFIX..'audit'
local OUTPUT, OUTPUT_INFO = PREFIX..'output', PREFIX..'output_info'
local ALERTS, ALERT_IDS = PREFIX..'alerts', PREFIX..'alert_ids'
local ALERTS_OPEN, ALERTS_DUE, ALERTS_OVER = PREFIX..'alerts_open', PREFIX..'alerts_due', PREFIX..'alerts_over'

-- The fields of a row's hash, in the order in which rows are returned.
local COLUMNS = {
  'type', 'data', 'cron', 'timezone', 'delay', 'next_time', 'leased_by', 'fence', 'settled_by',
  'attempt', 'status', 'reason', 'version', 'created_at', 'alive_time', 'options', 'retain_until',
  'claimed_at', 'held_by', 'held_until', 'decided_until', 'moved_at', 'local_time', 'reason_code',
  'paused_at', 'paused_until', 'pause_note', 'label', 'lane', 'run_as',
}

-- When the rows of an answer have more bytes of data and options than this, no row is added to it.
local LARGEST_ANSWER = 4000000

-- The longest lease in seconds, as in psched.base.lease_times.
local LONGEST_LEASE = 366 * 86400

local clock = redis.call('TIME')
local now = tonumber(clock[1])
local now_ms = now * 1000 + math.floor(clock[2] / 1000)

-- Gives the hash with the version and the pauses another key.
local function move_info(from, to)
  for _, field in ipairs({'version', 'pauses'}) do
    local value = redis.call('HGET', from, field)
    if value then redis.call('HSET', to, field, value) end
  end
  redis.call('DEL', from)
end

local function row_key(key) return PREFIX..'row:'..key end

local function lane_key(lane) return PREFIX..'lane:'..lane end

local function runs_key(key) return PREFIX..'runs:'..key end

-- If a key is that of an extra run (see psched.core.operations.extra_runs), returns the key of the list
-- of all extra runs of its schedule, and what follows the id of a record in this list.
local EXTRA_RUN = '^(.+)(!'..string.rep('%w', 16)..')$'
local function extra_list(key)
  local schedule, mark = key:match(EXTRA_RUN)
  if schedule then return PREFIX..'extra:'..schedule, mark end
end

-- If a key is that of an extra run, removes a record from the list of all extra runs of its schedule.
-- `element` is that of the list of the key.
local function remove_extra(key, element)
  local extra, mark = extra_list(key)
  local id = extra and element:match('^%S+')
  if id then redis.call('LREM', extra, -1, id..mark..element:sub(#id + 1)) end
end

local function output_key(key) return PREFIX..'output:'..key end

local function printed_key(number) return PREFIX..'printed:'..number end

local function asked_key(key, attempt) return PREFIX..'asked:'..attempt..' '..key end

local function alert_key(number) return PREFIX..'alert:'..number end

local function alerts_key(key) return PREFIX..'alerts:'..key end

local function worker_key(nonce) return PREFIX..'worker:'..nonce end

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

-- The names and values of fields that are written together, for `write_fields`. The arguments are those
-- of the function `_told` in psched.stores.redis.encoding.
local function told(decided_until, moved_at, local_time, code, paused_at, paused_until, note)
  return 'decided_until', optional_number(decided_until), 'moved_at', optional_number(moved_at),
    'local_time', optional_text(local_time), 'reason_code', optional_text(code), 'paused_at', optional_number(paused_at),
    'paused_until', optional_number(paused_until), 'pause_note', optional_text(note)
end

-- Whether a row still has the status `seen` (empty: any status). Scripts compare the status besides
-- the version, because another client might set the status without increasing the version.
local function has_status(status, seen) return seen == '' or (status or 'waiting') == seen end

-- Returns the lane of a row; nil or false if it has none. While there are none at all, no row is read.
local function lane_of(key)
  if redis.call('EXISTS', LANES) == 0 then return nil end
  local lane = redis.pcall('HGET', row_key(key), 'lane')
  return type(lane) ~= 'table' and lane
end

-- Sets the next_run_time of a row that has one.
local function move(key, time)
  redis.call('ZADD', DUE, time, key)
  local lane = lane_of(key)
  if lane then redis.call('ZADD', lane_key(lane), time, key) end
end

-- Notes that the lane of a row has changed.
local function set_lane(key, before, lane)
  if before == lane then return end
  if before then redis.call('ZREM', lane_key(before), key) end
  if not lane then
    -- The searches for rows without a lane may have passed over it.
    redis.call('HDEL', INFO, 'passed')
    return
  end
  redis.call('ZADD', LANES, 0, lane)
  redis.call('ZADD', lane_key(lane), redis.call('ZSCORE', DUE, key) or '+inf', key)
end

-- Sets the next_run_time of a row. If `time` is false, the row has no next run, so the key is moved
-- to the set REST.
local function set_due(key, time)
  if time then
    if tonumber(time) < now then redis.call('HDEL', INFO, 'passed') end
    move(key, time)
    redis.call('ZREM', REST, key)
  else
    local lane = lane_of(key)
    if lane then redis.call('ZADD', lane_key(lane), '+inf', key) end
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
  local lane = lane_of(key)
  if lane then redis.call('ZREM', lane_key(lane), key) end
  redis.call('DEL', row_key(key))
  redis.call('ZREM', DUE, key)
  redis.call('ZREM', REST, key)
  redis.call('ZREM', RETAIN, key)
  redis.call('ZREM', HOLDS, key)
  if owner then redis.call('ZREM', HELD, held_member(owner, key)) end
end

-- Whether an extra run of the schedule with this key is going on. If OBSERVED, psched.stores.observations
-- decides when holds and leases end; the scripts find only rows that nobody holds, and those that it names.
local function is_held(key)
  local ends = redis.call('ZSCORE', HOLDS, key)
  return ends and (OBSERVED or tonumber(ends) > now)
end

-- Other clients might have left only a part of the hold, or have replaced the row by what is no hash.
local function end_hold(key)
  redis.call('ZREM', HOLDS, key)
  redis.pcall('HDEL', row_key(key), 'held_by', 'held_until')
end

-- Returns the end of a lease that begins now. The length of the lease is computed as in
-- psched.base.lease_times.lease_time. One second is added, because `now` is rounded down. If OBSERVED, the end
-- is later than `before`, the present one of the same lease, also if the clock stands still.
local function lease_end(own, alive_time, shortest, before)
  local length = math.max(tonumber(own or '') or tonumber(alive_time), tonumber(shortest))
  local ends = now + math.min(length, LONGEST_LEASE) + 1
  return integer(OBSERVED and math.max(ends, (tonumber(before or '') or 0) + 1) or ends)
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

-- Returns a function that reads a row without the given columns, and one that reads several.
local function readers_without(...)
  local columns, left_out = {}, {}
  for _, name in ipairs({...}) do left_out[name] = true end
  -- The field '' does not exist.
  for i, name in ipairs(COLUMNS) do columns[i] = left_out[name] and '' or name end
  local function read(key)
    local due, values = redis.call('ZSCORE', DUE, key), redis.pcall('HMGET', row_key(key), unpack(columns))
    if values.err then return {key, due, 'is no hash'} end
    return {key, due, unpack(values, 1, #columns)}
  end
  local function read_all(keys)
    local rows = {}
    for i, key in ipairs(keys) do rows[i] = read(key) end
    return rows
  end
  return read, read_all
end

-- Returns the types that standing rules pause now, as the keys of a table; nil if there is none, true
-- if everything is paused. Returns also when the first of these rules ends.
local function paused_types()
  local text = redis.call('HGET', INFO, 'pauses')
  if not text then return nil end
  local is_json, rules = pcall(cjson.decode, text)
  if not is_json or type(rules) ~= 'table' then return nil end
  local paused, ends = nil, math.huge
  for _, rule in pairs(rules) do
    if type(rule) == 'table' and (type(rule['until']) ~= 'number' or rule['until'] > now) then
      if type(rule.type) ~= 'string' then return true end
      paused = paused or {}
      paused[rule.type] = true
      if type(rule['until']) == 'number' then ends = math.min(ends, rule['until']) end
    end
  end
  return paused, ends
end

-- Whether a key sorts after another one. Keys are compared by their bytes, as in a sorted set,
-- because Lua's own comparison uses the locale.
local function is_after(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = one:byte(i), other:byte(i)
    if a ~= b then return a > b end
  end
  return #one > #other
end

-- If types are given to due_keys, or types are paused, rows of other types are read and skipped. So are
-- rows that are held for extra runs, and rows that have a lane: those are in the set of their lane.
-- MOST_READ is the most due rows that are read, PAGE the number of rows that are read at a time.
local MOST_READ, PAGE = 50000, 500

-- For so many seconds, due_keys does not read rows of paused types again. A version of psched that
-- does not know the field `passed` can meanwhile add a row with an earlier time.
local PASSED_FOR = 60

-- Whether a row that was found in a set belongs there, given its lane and its score in the set. A version of
-- psched that does not know lanes, and which still runs beside, changes the set DUE alone: so that set is
-- right, and the row's entry in the set of its lane is mended if the script may write.
local function belongs(key, set, lane, score, writes)
  if set == DUE then
    if lane and writes and redis.call('ZSCORE', lane_key(lane), key) ~= score then
      redis.call('ZADD', LANES, 0, lane)
      redis.call('ZADD', lane_key(lane), score, key)
    end
    return not lane
  end
  local due = redis.call('ZSCORE', DUE, key)
  if due == score and lane and lane_key(lane) == set then return true end
  if writes and lane and lane_key(lane) == set then
    redis.call('ZADD', set, due or '+inf', key)
  elseif writes then
    redis.call('ZREM', set, key)
  end
  return false
end

-- A lease that was not extended since: its owner, fence and end.
local function lease_of(owner, fence, ends) return table.concat({owner, fence or '0', ends}, '\0') end

-- Returns a function that tells whether a due row can be claimed, given its key, the set in which it was
-- found, and its score there; and whether it is passed over by every claim from that set for now. `over`
-- tells of rows that can be claimed though they are leased, by their keys: see lease_of.
local function chooser(types, paused, writes, over)
  local wanted = {}
  for _, kind in ipairs(types) do wanted[kind] = true end
  local holds = redis.call('ZCOUNT', HOLDS, OBSERVED and '-inf' or '('..integer(now), '+inf') > 0
  return function(key, set, score)
    local row = redis.pcall('HMGET', row_key(key), 'type', 'lane', 'leased_by', 'fence')
    if row.err then return not (holds and is_held(key)), false end
    local kind = row[1] or 'default'
    local passed = not belongs(key, set, row[2], score, writes) or paused and paused[kind]
    local takes = #types == 0 or wanted[kind]
    takes = takes and (not OBSERVED or not row[3] or over[key] == lease_of(row[3], row[4], score))
    return takes and not passed and not (holds and is_held(key)), passed
  end, holds
end

-- Returns the keys of due rows of some lanes, and of the rows without a lane, that are of some types (none:
-- of all types) and that no rule pauses: at most `most` keys, those of the rows that have been due longest.
--
-- Very many rows of a paused type, or of a lane, can be due. Rows that are due later must be found
-- nevertheless. So if `remembers` is true, the field `passed` of INFO is written: a time before now, up to
-- which all due rows in DUE are of paused types or have a lane, and the time when it must not be used any
-- more. The search begins after them. The field is deleted when the rules change, or a row gets a time
-- before now. Returns also whether the search has ended early, and the next one continues it.
local function due_keys(most, types, lanes, remembers, over)
  local paused, ends = paused_types()
  if paused == true then return {}, false end
  local has_lanes = redis.call('EXISTS', LANES) == 1
  local can_claim, holds = chooser(types, paused, remembers, over or {})
  if not OBSERVED and #types == 0 and not paused and not holds and not has_lanes then
    return redis.call('ZRANGEBYSCORE', DUE, '-inf', integer(now), 'LIMIT', 0, most), false
  end
  local begin, forgotten = (redis.call('HGET', INFO, 'passed') or ''):match('^(%d+) (%d+)$')
  if not (paused or has_lanes) or not forgotten or tonumber(forgotten) <= now then begin, forgotten = nil, nil end
  local found, times, more = {}, {}, false

  local function search(set)
    local passed, time, only_passed, size, offset, keys = nil, nil, true, PAGE, 0, 0
    local first = set == DUE and begin and '('..begin or '-inf'
    while keys < most and size == PAGE and (offset < MOST_READ or (only_passed and not passed)) do
      local page = redis.call('ZRANGEBYSCORE', set, first, integer(now), 'WITHSCORES', 'LIMIT', offset, PAGE)
      size, offset = #page / 2, offset + PAGE
      for i = 1, #page, 2 do
        local takes, is_passed = can_claim(page[i], set, page[i + 1])
        local score = math.floor(tonumber(page[i + 1]))
        if only_passed and time and score > time and time < now then passed = time end
        time, only_passed = score, only_passed and is_passed
        if keys < most and takes then
          keys = keys + 1
          found[#found + 1] = page[i]
          times[page[i]] = tonumber(page[i + 1])
        end
      end
    end
    if set ~= DUE or not remembers or not passed then return end
    more = offset >= MOST_READ and keys < most
    if offset > PAGE then
      forgotten = forgotten or integer(math.min(now + PASSED_FOR, ends or math.huge))
      redis.call('HSET', INFO, 'passed', integer(passed)..' '..forgotten)
    end
  end

  search(DUE)
  local without = #found
  for _, lane in ipairs(has_lanes and lanes or {}) do search(lane_key(lane)) end
  if #found > without then
    table.sort(found, function(a, b)
      if times[a] ~= times[b] then return times[a] < times[b] end
      return a ~= b and is_after(b, a)
    end)
    while #found > most do found[#found] = nil end
  end
  return found, more
end

-- Removes the oldest records from a key's list: those that ended before a time in milliseconds, at
-- most `most`.
local function drop_old(list, before, most)
  for _ = 1, most do
    local oldest = redis.call('LINDEX', list, -1)
    local ended = oldest and tonumber(oldest:match('^%S+ (%d+)'))
    if not ended or ended >= before then return end
    redis.call('RPOP', list)
  end
end

-- Writes a record of the run history, and removes old records of the same key. `limits` contains the
-- most records of all keys, the most of one key, and the age in seconds after which records are
-- removed; the last two can be 0, which means no limit. `expires` is the number of seconds after
-- which the key's list is removed (nil: that age). If `exists` is true, the record is written to the
-- key's list only if there is one.
local function write_record(limits, key, record, expires, exists)
  local most, most_per_key, keep = unpack(limits)
  local id = redis.call('XADD', RUNS, 'MAXLEN', '~', most, '*', 'key', key, 'record', record)
  -- Removes old elements from a list of this length, to which one was added.
  local function trim_list(list, length, list_expires)
    if length == 0 then return end
    if most_per_key > 0 and length > most_per_key then redis.call('LTRIM', list, 0, most_per_key - 1) end
    if keep > 0 then
      -- Two are removed for each that is written, so all old ones are gone after a while.
      if length > 1 then drop_old(list, (now - keep) * 1000, 2) end
      redis.call('EXPIRE', list, integer(math.min(list_expires or keep, keep)))
    elseif list_expires then
      redis.call('EXPIRE', list, integer(list_expires))
    else
      redis.call('PERSIST', list)
    end
  end
  local list = runs_key(key)
  trim_list(list, redis.call(exists and 'LPUSHX' or 'LPUSH', list, id..' '..record), expires)
  local extra, mark = extra_list(key)
  if extra then trim_list(extra, redis.call('LPUSH', extra, id..mark..' '..record)) end
end

-- Calls write_record; if the server refuses one of its commands, returns the reason instead of
-- raising an error, because the calling script must not stop between its writes.
local function try_to_record(...)
  local done, problem = pcall(write_record, ...)
  if not done then return type(problem) == 'table' and problem.err or tostring(problem) end
end

-- How many of the newest records of a key are searched for one of the same lease.
local SEARCHED = 50

local function find_known(key, owner, scheduled_time, outcome)
  local list = runs_key(key)
  for _, element in ipairs(redis.call('LRANGE', list, 0, SEARCHED - 1)) do
    -- Decoding costs much more than searching for the owner, which few records contain.
    local found = element:find(owner, 1, true)
    local id, text
    if found then id, text = element:match('^(%S+) %d+ (.*)') end
    local is_json, other = pcall(cjson.decode, text or '')
    if is_json and type(other) == 'table' and other.owner == owner
        and other.scheduled_time == tonumber(scheduled_time) then
      if other.outcome ~= 'lost' or outcome == 'lost' then return true end
      redis.call('LREM', list, 1, element)
      remove_extra(key, element)
      redis.call('XDEL', RUNS, id)
    end
  end
  return false
end

-- Whether a record of the same lease and occurrence exists. If that record says that the attempt was
-- lost, and `outcome` says something else, that record is removed, and the answer is false. The answer
-- is also false if the server refuses a command of the search.
local function is_known(...)
  local searched, known = pcall(find_known, ...)
  return searched and known
end

-- Writes records of the run history, except those that are known already, see `is_known`. ARGV contains
-- from this index on the limits of the history (see `write_record`), then for each record its key, owner,
-- scheduled time, outcome (empty: none) and the record itself. Returns the number of records that could
-- not be written, and the reason for the last of them.
local function write_new_records(first)
  local limits = {tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])}
  local lost, reason = 0, false
  for i = first + 3, #ARGV, 5 do
    local key, owner, scheduled_time, outcome, record = unpack(ARGV, i, i + 4)
    if not is_known(key, owner, scheduled_time, outcome) then
      local problem = try_to_record(limits, key, record)
      if problem then lost, reason = lost + 1, problem end
    end
  end
  return lost, reason
end

-- Returns when the lease with this fence was claimed, given the field claimed_at, which is this time, '#'
-- and the fence. Returns nil if an older version of psched has claimed the lease: that one leaves the
-- field of an earlier lease as it is.
local function claimed_at(field, fence)
  local time, of = (field or ''):match('^(%d+)#(%d+)$')
  return of == (fence or '0') and time or nil
end

-- Returns the rank in the set of times of the first row after a place: the score and the key of a row,
-- which may have been moved or deleted since. Among the rows with the same score, a binary search finds
-- the first key after this key.
local function rank_after(score, last)
  local low = redis.call('ZCOUNT', DUE, '-inf', '('..score)
  local high = redis.call('ZCOUNT', DUE, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_after(redis.call('ZRANGE', DUE, middle, middle)[1], last) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- Deletes a record of output, given its member of the set OUTPUT.
local function remove_output(member)
  local number, size, key = member:match('^(%d+) (%d+) %d+ (.*)')
  redis.call('ZREM', OUTPUT, member)
  if not number then return end
  redis.call('HINCRBY', OUTPUT_INFO, 'size', '-'..size)
  redis.call('DEL', printed_key(number))
  redis.pcall('ZREMRANGEBYSCORE', output_key(key), number, number)
end

-- Deletes the record of output with this number, if there is one.
local function remove_numbered_output(number)
  for _, member in ipairs(redis.call('ZRANGE', OUTPUT, number, number, 'BYSCORE')) do
    remove_output(member)
  end
end

-- Returns the text and the number of the record of an attempt; nil if there is none. `attempt` is the
-- scheduled time, a space and the owner.
local function read_output(key, attempt)
  local number = redis.call('ZSCORE', output_key(key), attempt)
  local text = number and redis.call('GET', printed_key(number))
  if text then return text, number end
end

-- Whether a text of output was written while the attempt ran.
local function is_live(text) return text:match('^[^\n]*"is_live":true') ~= nil end

-- Writes a record of output; one of the same attempt is replaced. `keep` is the number of seconds after
-- which it is removed (0: never), `most_per_key` the most records of one key (0: no limit).
local function write_output(keep, most_per_key, key, attempt, ended, size, text)
  local index = output_key(key)
  local replaced = redis.call('ZSCORE', index, attempt)
  local number = integer(redis.call('HINCRBY', OUTPUT_INFO, 'last', 1))
  if keep > 0 then
    redis.call('SET', printed_key(number), text, 'EX', keep)
  else
    redis.call('SET', printed_key(number), text)
  end
  if replaced then remove_numbered_output(replaced) end
  redis.call('ZADD', OUTPUT, number, number..' '..size..' '..ended..' '..key)
  redis.call('HINCRBY', OUTPUT_INFO, 'size', size)
  redis.call('ZADD', index, number, attempt)
  if most_per_key > 0 then
    local excess = redis.call('ZRANGE', index, 0, -most_per_key - 1, 'WITHSCORES')
    for j = 2, #excess, 2 do remove_numbered_output(excess[j]) end
  end
  redis.call(unpack(keep > 0 and {'EXPIRE', index, keep} or {'PERSIST', index}))
end

-- Returns how many bytes all output may take: the budget, but at most a quarter of the memory that
-- the server may use, because schedules need the rest.
local function most_output(budget)
  local memory = redis.pcall('INFO', 'memory')
  local limit = type(memory) == 'string' and tonumber(memory:match('maxmemory:(%d+)')) or 0
  return limit > 0 and math.min(budget, limit / 4) or budget
end

-- Looks at the oldest records of output, at most `most`. Deletes those that ended before a time in
-- milliseconds, and the oldest until the sizes of the others fit into the budget. Returns how many it
-- has deleted.
local function trim_output(before, budget, most)
  local total = tonumber(redis.call('HGET', OUTPUT_INFO, 'size') or '0')
  local excess = total - most_output(budget)
  if excess <= 0 and before <= 0 then return 0 end
  local deleted = 0
  for _, member in ipairs(redis.call('ZRANGE', OUTPUT, 0, most - 1)) do
    local size, ended = member:match('^%d+ (%d+) (%d+) ')
    if not size or excess > 0 or tonumber(ended) < before then
      remove_output(member)
      excess = excess - (size or 0)
      deleted = deleted + 1
    end
  end
  return deleted
end

-- The identity of an alert without the last part: of those with the same one, at most one is open.
local function alert_subject(identity) return identity:match('^.*%z') end

-- Sets or deletes when the next delivery of an alert is due. `closed` is when it was closed; false: it
-- is open.
local function set_next_try(number, next_try, closed)
  if next_try then
    redis.call('HSET', alert_key(number), 'next_try', integer(next_try))
    redis.call('ZADD', ALERTS_DUE, integer(next_try), number)
    redis.call('ZREM', ALERTS_OVER, number)
  else
    redis.call('HDEL', alert_key(number), 'next_try')
    redis.call('ZREM', ALERTS_DUE, number)
    if closed then redis.call('ZADD', ALERTS_OVER, closed, number) end
  end
end

-- Returns the number of an alert and its hash.
local function read_alert(number) return {number, redis.call('HGETALL', alert_key(number))} end
