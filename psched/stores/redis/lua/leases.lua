-- Scripts that lease rows, and those of the holders of leases.

--- claim: allow-oom
-- Leases due rows; the rows that have been due longest come first. ARGV: the owner, the most rows
-- to lease, alive_time, the shortest length of a lease, the horizon in seconds; the number of leases that
-- are taken over if OBSERVED, and key, owner, fence and end of each; the number of lanes and
-- the lanes of the host, then the types to claim (none: all types). Returns the time as seconds and microseconds; the leased rows; for each
-- row the owner of its last lease if that lease has expired, otherwise an empty string; for each row
-- the time when that lease was claimed, or an empty string; the time of the next row to fall due within
-- the horizon, or nil; 1 if more rows might be due, otherwise 0. Returns only nil if the server has no
-- data of psched.
if redis.call('EXISTS', INFO) == 0 then return nil end
local owner, limit, alive_time, shortest, horizon, taken = unpack(ARGV, 1, 6)
local over, chosen = {}, 7 + 4 * taken
for i = 7, chosen - 1, 4 do over[ARGV[i]] = lease_of(unpack(ARGV, i + 1, i + 3)) end
local number = ARGV[chosen]
local lanes, types = {unpack(ARGV, chosen + 1, chosen + number)}, {unpack(ARGV, chosen + 1 + number)}

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
local keys, unread = due_keys(tonumber(limit), types, lanes, true, over)
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
    -- A row without a hash does not tell its lane.
    for _, lane in ipairs(lanes) do redis.call('ZREM', lane_key(lane), key) end
  else
    expired[#expired + 1] = row[7] or ''
    claimed[#claimed + 1] = claimed_at(row[18], row[8]) or ''
    local ends = lease_end(row[15], alive_time, shortest)
    local fell_due = redis.call('ZSCORE', DUE, key)
    end_hold(key)
    move(key, ends)
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

--- lanes: no-writes,allow-oom
-- Returns the lanes of rows that wait or are leased, at most `most` of those between two texts. ARGV: the
-- texts, most.
local after, before, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local found, size = {}, PAGE
while size == PAGE do
  local page = redis.call('ZRANGEBYLEX', LANES, '('..after, '('..before, 'LIMIT', 0, PAGE)
  size, after = #page, page[#page]
  for _, lane in ipairs(page) do
    if redis.call('ZCOUNT', lane_key(lane), '-inf', '(+inf') > 0 then found[#found + 1] = lane end
    if #found == most then return found end
  end
end
return found

--- keys_of_lanes: no-writes,allow-oom
-- Returns the keys of rows whose lanes lie between two texts. ARGV: the texts.
local found = {}
for _, lane in ipairs(redis.call('ZRANGEBYLEX', LANES, '['..ARGV[1], '('..ARGV[2])) do
  for _, key in ipairs(redis.call('ZRANGE', lane_key(lane), 0, -1)) do found[#found + 1] = key end
end
return found

--- keys_of_template: no-writes,allow-oom
-- Returns the keys of the rows that hosts have of a template. ARGV: its key, and the texts between which
-- their lanes lie. The lanes tell the keys, so that no other row is looked at.
local found = {}
for _, lane in ipairs(redis.call('ZRANGEBYLEX', LANES, '['..ARGV[2], '('..ARGV[3])) do
  local key = ARGV[1]..lane
  if redis.call('EXISTS', row_key(key)) == 1 then found[#found + 1] = key end
end
return found

--- backlog: no-writes,allow-oom
-- Counts the due rows. ARGV: the most rows to count, the number of lanes and the lanes of the
-- host, then the types to count (none: all types).
-- Returns the number of rows, and the seconds by which the oldest of them is late, 0 if there is none.
local number = ARGV[2]
local lanes, types = {unpack(ARGV, 3, 2 + number)}, {unpack(ARGV, 3 + number)}
local keys = due_keys(tonumber(ARGV[1]), types, lanes)
local late = #keys > 0 and now - tonumber(redis.call('ZSCORE', DUE, keys[1])) or 0
return {#keys, integer(late)}

--- held: no-writes,allow-oom
-- Returns the rows that an owner has leased and whose leases have not expired; if OBSERVED, whatever the
-- time is. ARGV: the owner.
local owner, rows = ARGV[1], {}
local from, to = '['..held_member(owner, ''), '('..owner..'\1'
for _, member in ipairs(redis.call('ZRANGEBYLEX', HELD, from, to)) do
  local key = member:sub(#owner + 2)
  local row = read_row(key)
  if row and row[9] == owner and row[2] and (OBSERVED or tonumber(row[2]) > now) then rows[#rows + 1] = row end
end
return rows

--- extend: allow-oom
-- Extends leases. ARGV: alive_time, the shortest length of a lease, then key, owner and fence of
-- each lease. Returns for each lease 1 if it was still held and is extended, otherwise 0.
local alive_time, shortest = ARGV[1], ARGV[2]
local held = {}
for i = 3, #ARGV, 3 do
  local key, owner, fence = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local row = read_fields(key, 'leased_by', 'fence', 'alive_time')
  local mine = row and row[1] == owner and (row[2] or '0') == fence
  if mine then move(key, lease_end(row[3], alive_time, shortest, redis.call('ZSCORE', DUE, key))) end
  held[#held + 1] = mine and 1 or 0
end
return held

--- settle: allow-oom
-- Ends leases, and writes the records of the run history that belong to those that it ends. ARGV: the
-- limits of the history (see `write_record`); then for each settlement 21 values, in the order of the
-- parameters of the function `settle`, the number of its records, and its records. Returns for each
-- settlement a value of psched.core.store_protocol.Settled; then the number of records that could not
-- be written, and the reason for the last of them.
--
-- Without its flag, this script is `settle_and_record`: the server refuses it if its memory is full.
local VALUES = 21

-- Returns the result. If the settlement was applied now, also returns true, and the seconds after
-- which the row can be purged (nil: never).
local function settle(key, owner, fence, version, seen_status, next_time, not_before, wait, rest,
    removed, retain, attempt, status, reason, ...)
  local row = read_fields(key, 'leased_by', 'fence', 'version', 'settled_by', 'status')
  if not row then return removed == '1' and 'done' or 'preempted' end
  local token = owner..'#'..fence
  local mine = row[1] == owner and (row[2] or '0') == fence
  if not mine or (row[3] or '1') ~= version or not has_status(row[5], seen_status) then
    -- If the row was settled with this token, the request was applied before and is repeated,
    -- because its answer was lost. So the result is success.
    if row[4] == token then return 'done' end
    return mine and 'redefined' or 'preempted'
  end
  if removed == '1' then
    remove_row(key, owner)
    return 'done', true
  end
  local retained = retain ~= '' and integer(now + retain)
  write_fields(key, {
    'next_time', optional_number(next_time), 'attempt', attempt, 'status', status,
    'reason', optional_text(reason), 'settled_by', token, 'retain_until', retained,
    'leased_by', false, 'claimed_at', false, told(...)
  })
  redis.call('ZREM', HELD, held_member(owner, key))
  set_due(key, rest == '0' and integer(math.max(tonumber(not_before), now + wait)))
  set_retention(key, retained)
  return 'done', true, tonumber(retain)
end

-- Whether a record is known already. This can be only if it is about an earlier lease, because the lease
-- that ends now has had no record. A quote inside a JSON text is escaped, so only the fields match.
local function is_written(key, owner, record)
  local of = record:match('"owner":"([^"]*)"')
  if of == owner then return false end
  return is_known(key, of, record:match('"scheduled_time":(%-?%d+)'), record:match('"outcome":"([^"]*)"'))
end

local limits = {tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])}
local results, lost, reason, i = {}, 0, false, 4
while i <= #ARGV do
  local result, applied, retain = settle(unpack(ARGV, i, i + VALUES - 1))
  local first, last = i + VALUES + 1, i + VALUES + ARGV[i + VALUES]
  for j = first, applied and last or 0 do
    -- A record of a row that is removed at once goes only to an existing list, so that tasks that
    -- run once leave no lists behind.
    local problem = not is_written(ARGV[i], ARGV[i + 1], ARGV[j])
      and try_to_record(limits, ARGV[i], ARGV[j], retain, ARGV[i + 9] == '1')
    if problem then lost, reason = lost + 1, problem end
  end
  results[#results + 1] = result
  i = last + 1
end
return {results, lost, reason}

--- hold: allow-oom
-- Holds schedules for extra runs, or extends such holds. ARGV: alive_time, the shortest length of a hold,
-- the marks with blanks between them, then key and holder of each row. Returns for each row 1 if it is
-- held now by the holder, otherwise 0.
--
-- A hold and a claim exclude each other, because each of them is one script: a hold requires that the row
-- has no owner, and a claim passes over a row that is held.
local alive_time, shortest, marks = ARGV[1], ARGV[2], ' '..ARGV[3]..' '
local held = {}
for i = 4, #ARGV, 2 do
  local key, holder = ARGV[i], ARGV[i + 1]
  local row = read_fields(key, 'leased_by', 'status', 'alive_time', 'held_by')
  local marked = row and marks:find(' '..(row[2] or 'waiting')..' ', 1, true)
  local mine = row and not row[1] and (row[4] == holder or not (marked or is_held(key)))
  if mine then
    local ends = lease_end(row[3], alive_time, shortest, redis.call('ZSCORE', HOLDS, key))
    redis.call('HSET', row_key(key), 'held_by', holder, 'held_until', ends)
    redis.call('ZADD', HOLDS, ends, key)
  end
  held[#held + 1] = mine and 1 or 0
end
return held

--- release: allow-oom
-- Ends holds. ARGV: key and holder of each hold; or the nonce of a dead worker, all of whose holds end.
if #ARGV == 1 then
  local dead = ARGV[1]..'.'
  for _, key in ipairs(redis.call('ZRANGE', HOLDS, 0, -1)) do
    local row = read_fields(key, 'held_by')
    if not row or not row[1] or row[1]:sub(1, #dead) == dead then end_hold(key) end
  end
  return
end
for i = 1, #ARGV, 2 do
  local row = read_fields(ARGV[i], 'held_by')
  if row and row[1] == ARGV[i + 1] then end_hold(ARGV[i]) end
end

--- release_over: allow-oom
-- Ends holds that were not extended since. ARGV: key, holder and end of each.
for i = 1, #ARGV, 3 do
  local row = read_fields(ARGV[i], 'held_by')
  if row and row[1] == ARGV[i + 1] and redis.call('ZSCORE', HOLDS, ARGV[i]) == ARGV[i + 2] then
    end_hold(ARGV[i])
  end
end

--- ended: no-writes,allow-oom
-- Returns a part of the leases that have ended, of rows that the host may claim, and with the first part
-- all such holds: key, owner, fence (nil: a hold), end, and the row's alive_time. ARGV: the member of HELD
-- after which the part begins; how many leases to read; the number of lanes and the lanes of the host, then
-- the types to claim (none: all types). Returns also the last member; nil if there are no more.
local found, number, paused, served, wanted = {}, ARGV[3], paused_types(), {}, {}
for i = 4, 3 + number do served[ARGV[i]] = true end
for i = 4 + number, #ARGV do wanted[ARGV[i]] = true end

-- Whether a claim of the host could take the row: the others must not hide what it takes over.
local function is_ours(kind, lane)
  kind = kind or 'default'
  if paused == true or paused and paused[kind] or lane and not served[lane] then return false end
  return next(wanted) == nil or wanted[kind]
end

local function note(key, owner, fence, ends, alive_time)
  if ends and tonumber(ends) <= now then
    found[#found + 1] = {key, owner, fence, ends, alive_time}
  end
end

local from, size = ARGV[1] ~= '' and '('..ARGV[1] or '-', tonumber(ARGV[2])
local members = redis.call('ZRANGEBYLEX', HELD, from, '+', 'LIMIT', 0, size)
for _, member in ipairs(members) do
  local zero = member:find('%z')
  local owner, key = member:sub(1, zero - 1), member:sub(zero + 1)
  local row = read_fields(key, 'leased_by', 'fence', 'alive_time', 'type', 'lane')
  if row and row[1] == owner and is_ours(row[4], row[5]) and not is_held(key) then
    note(key, owner, row[2] or '0', redis.call('ZSCORE', DUE, key), row[3])
  end
end
local holds = ARGV[1] == '' and redis.call('ZRANGEBYSCORE', HOLDS, '-inf', integer(now)) or {}
for _, key in ipairs(holds) do
  local row = read_fields(key, 'held_by', 'alive_time')
  if row and row[1] then note(key, row[1], false, redis.call('ZSCORE', HOLDS, key), row[2]) end
end
return {found, #members == size and members[size] or false}

--- dead: no-writes,allow-oom
-- Returns the leases of a dead worker. ARGV: the worker's nonce; the member of the set HELD after which to
-- begin (empty: begin with the worker's first); the most members to read; the fields of the worker's
-- record to return. Returns the time in milliseconds; the fields; and for each lease its member of HELD,
-- and its row, or nil if there is no such row.
local nonce, after, limit = unpack(ARGV, 1, 3)
local time = redis.call('TIME')
local from = after ~= '' and '('..after or '['..nonce..'.'
local leases = {}
-- The owners of the worker's leases begin with the nonce and a dot. The range ends before '/',
-- because '/' follows '.' in the order of bytes.
for i, member in ipairs(redis.call('ZRANGEBYLEX', HELD, from, '('..nonce..'/', 'LIMIT', 0, limit)) do
  leases[i] = {member, read_row(member:sub(member:find('%z') + 1)) or false}
end
local worker = redis.pcall('HMGET', worker_key(nonce), unpack(ARGV, 4))
return {time[1]..string.format('%03d', math.floor(time[2] / 1000)), worker.err and {} or worker, leases}

--- recover: allow-oom
-- Ends leases of a dead worker, and writes their records: their attempts are lost. ARGV: alive_time; the
-- seconds that a row must wait longer with each attempt after its first; the limits of the run history (see
-- `write_record`); then for each lease its member of the set HELD, the fence, and its record (empty: none).
-- Returns the keys of the released rows, the number of records that could not be written, and the reason.
--
-- Without its flag, this script is `recover_and_record`: the server refuses it if its memory is full.
local VALUES = 3

local alive_time, wait = ARGV[1], ARGV[2]
local limits = {tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])}
local released, lost, reason = {}, 0, false
for i = 6, #ARGV, VALUES do
  local member, fence, record = unpack(ARGV, i, i + VALUES - 1)
  local zero = member:find('%z')
  local owner, key = member:sub(1, zero - 1), member:sub(zero + 1)
  local row = read_fields(key, 'leased_by', 'fence', 'attempt', 'status', 'next_time', 'moved_at')
  local attempt = row and tonumber(row[3] or '0') or 0
  local ends = tonumber(redis.call('ZSCORE', DUE, key) or '0')
  if not row or row[1] ~= owner then
    redis.call('ZREM', HELD, member)
  elseif (row[2] or '0') == fence and (OBSERVED or ends > now) and ends <= now + alive_time + 1 then
    write_fields(key, {'leased_by', false, 'claimed_at', false, 'settled_by', owner..'#'..fence})
    -- What a client has written during the lease remains.
    if attempt > 0 and row[4] ~= 'paused' and row[5] and not row[6] then
      write_fields(key, {'reason', 'its worker died', 'reason_code', 'worker_died'})
    end
    redis.call('ZREM', HELD, member)
    -- See `psched.core.attempts.wait_after_death`. One second is added, because `now` is rounded down, and
    -- the wait would otherwise end early.
    local longer = tonumber(wait) * math.max(0, math.min(attempt - 1, 12))
    set_due(key, integer(now + (longer > 0 and longer + 1 or 0)))
    released[#released + 1] = key
    local problem = record ~= '' and try_to_record(limits, key, record)
    if problem then lost, reason = lost + 1, problem end
  end
end
return {released, lost, reason}
