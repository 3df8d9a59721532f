-- Scripts that prepare the database, upgrade it and try what the user may do.

--- init
-- Stores the version of the layout if no version is stored, or begins the upgrade from layout 1. ARGV: the
-- version; the age in seconds after which a worker is taken to be gone; 1 if workers of layout 1 do not
-- matter, otherwise 0. Returns the version that was stored before, or nil; 'upgrading' if the rows are to be
-- upgraded now; and the nonces of the workers that must stop first.
--
-- The name of the hash of layout 1 is changed first, so that workers of that time claim nothing from now on.
-- The script upgrade, below, does the rest.
local version, gone_after, force = unpack(ARGV)
local found = redis.call('HGET', INFO, 'version')
if found then return {found, {}} end
if redis.call('EXISTS', OLD_INFO) == 0 and redis.call('EXISTS', UPGRADING) == 0 then
  redis.call('HSET', INFO, 'version', version)
  return {false, {}}
end
local old = redis.call('HGET', OLD_INFO, 'version')
if old and old ~= '1' then return {old, {}} end
if old then
  local alive = {}
  for _, nonce in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '('..integer(now - gone_after), '+inf')) do
    if not redis.call('HGET', worker_key(nonce), 'ended') then alive[#alive + 1] = nonce end
  end
  if #alive > 0 and force == '0' then return {old, alive} end
  move_info(OLD_INFO, UPGRADING)
end
return {'upgrading', {}}

--- upgrade
-- Upgrades a page of rows from layout 1. ARGV: the cursor of the scan of a set, about how many rows, the
-- version, and which set: 'rest', then 'due', and then 'end', which ends the upgrade. Then the label of each
-- row of the previous page that has one: the key, the options as they were read, the label, and the options
-- without it. Returns the cursor of the next page, '0' after the last one of a set; and the keys and the
-- options of rows that may have a label, which only psched can take out of the JSON of the options.
--
-- The field owner becomes leased_by, and each meaning that layout 1 had encoded has a field of its own:
-- * A row that an extra run had leased has its times back: its attempt was -(1000 (1000 t + n + 1) + 999),
--   plus 1 for each claim, with the next_run_time t to which it returns (0 for none), and its n attempts. The
--   digits are taken apart as text, because the number can exceed 2^53.
-- * The attempt of a row without a time was -(1000 t + 999), plus 1 for each claim, if it goes on after t.
--   Another negative attempt tells that a client had set the time during a lease.
-- * A pause was described by the reason.
local LATEST_TIME = 253402300799

local function times_in(attempt)
  local digits = (attempt or ''):match('^%-(%d+)%d%d%d$')
  local time, number = ('000'..(digits or '')):match('^(%d+)(%d%d%d)$')
  time, number = tonumber(time or '0'), tonumber(number or '0') - 1
  if number < 0 or time > LATEST_TIME then return nil end
  return time, number
end

-- The Unix seconds of a time such as 2027-01-15T12:00+01:00; the seconds can be missing.
local function instant(text)
  local year, month, day, hour, minute, second, sign, hours, minutes =
    (text or ''):match('^(%d+)-(%d+)-(%d+)T(%d+):(%d+):?(%d*)([+-])(%d+):(%d+)$')
  if not year then return nil end
  -- The year begins in March, so that a leap day is its last day.
  local years, months = tonumber(year), (tonumber(month) + 9) % 12
  if tonumber(month) < 3 then years = years - 1 end
  local days = 365 * years + math.floor(years / 4) - math.floor(years / 100) + math.floor(years / 400)
    + math.floor((153 * months + 2) / 5) + tonumber(day) - 719469
  local offset = tonumber(sign..'1') * (tonumber(hours) * 3600 + tonumber(minutes) * 60)
  local of_day = tonumber(hour) * 3600 + tonumber(minute) * 60 + tonumber('0'..second)
  return integer(days * 86400 + of_day - offset)
end

-- Gives the pause that a reason describes its fields.
local function decode_reason(key, status, reason)
  if reason == 'its worker died' then return write_fields(key, {'reason_code', 'worker_died'}) end
  if status ~= 'paused' and status ~= 'stopping' then return end
  if reason:find('^paused after ') then return write_fields(key, {'reason_code', 'paused_after_failures'}) end
  local times, note = reason:match('^paused (.-) by (.*)$')
  local first, last = (times or ''):match('^(%S+) until (%S+)$')
  local since = instant(first or times)
  if not since then return end
  local stop
  local begin = note:find('; stopped by ', 1, true) or note:find('; stopped$')
  if begin then note, stop = note:sub(1, begin - 1), note:sub(begin + 2) end
  write_fields(key, {
    'paused_at', since, 'paused_until', instant(last) or false, 'pause_note', note,
    'reason', status == 'paused' and reason or stop or 'stopped',
    'reason_code', status == 'paused' and 'paused' or 'stopped',
  })
end

for i = 5, #ARGV, 4 do
  local key, options, label, rest = unpack(ARGV, i, i + 3)
  local row = read_fields(key, 'options')
  if row and row[1] == options then write_fields(key, {'label', label, 'options', optional_text(rest)}) end
end
if ARGV[4] == 'end' then
  if redis.call('EXISTS', UPGRADING) == 1 then
    redis.call('HSET', UPGRADING, 'version', ARGV[3])
    move_info(UPGRADING, INFO)
  end
  return {'0', {}}
end
local part = ARGV[4] == 'rest' and REST or DUE
local labelled = {}
local found = redis.call('ZSCAN', part, ARGV[1], 'COUNT', ARGV[2])
for i = 1, #found[2], 2 do
  local key = found[2][i]
  local row = read_fields(key, 'owner', 'attempt', 'next_time', 'status', 'reason', 'options')
  local attempt = row and row[2] or ''
  local time, number = times_in(row and row[3] and attempt)
  if row and row[6] and row[6]:find('"label"', 1, true) then
    labelled[#labelled + 1] = key
    labelled[#labelled + 1] = row[6]
  end
  if row then decode_reason(key, row[4], row[5] or '') end
  if time then
    write_fields(key, {'attempt', integer(number), 'owner', false, 'leased_by', false, 'claimed_at', false})
    set_due(key, time > 0 and integer(time))
    if row[1] then redis.call('ZREM', HELD, held_member(row[1], key)) end
  elseif row and row[1] then
    write_fields(key, {'leased_by', row[1], 'owner', false})
  end
  if not time and attempt:match('^%-%d+$') then
    local decided = not row[3] and attempt:match('^%-(%d+)%d%d%d$')
    write_fields(key, {
      'attempt', '0', 'decided_until', decided or false, 'moved_at', row[3] and integer(now) or false,
    })
  end
end
return {found[1], labelled}

--- try: allow-oom
-- Tries each command that some scripts use, but changes no data. ARGV: 'rows', or 'history', 'output' or
-- 'alerts' for the commands that only those scripts use. Returns the names of the commands that the server
-- refuses, each followed by its reason.
local none = PREFIX..'none'
local requests = {
  rows = {
    {'HSET', INFO, 'version', ARGV[1] == 'rows' and redis.call('HGET', INFO, 'version')},
    {'HMGET', INFO, 'version'}, {'HINCRBY', INFO, 'version', 0}, {'HDEL', INFO, 'none'},
    {'DEL', none}, {'EXISTS', none}, {'ZADD', none, 'XX', 0, ''},
    {'ZREM', none, ''}, {'ZSCORE', DUE, ''}, {'ZRANK', DUE, ''}, {'ZCOUNT', DUE, 1, 0},
    {'ZRANGE', DUE, 0, 0}, {'ZRANGEBYSCORE', DUE, 1, 0}, {'ZRANGEBYLEX', HELD, '+', '-'},
  },
  history = {
    {'XADD', none, 'NOMKSTREAM', 'MAXLEN', '~', 1, '*', 'key', '', 'record', ''}, {'XDEL', none, '0-1'},
    {'XRANGE', RUNS, '+', '-'}, {'XREVRANGE', RUNS, '-', '+'}, {'LPUSHX', none, ''}, {'LLEN', none},
    {'LINDEX', none, 0}, {'LRANGE', none, 0, 0}, {'LREM', none, 0, ''}, {'LTRIM', none, 0, 0},
    {'RPOP', none}, {'EXPIRE', none, 1}, {'PERSIST', none},
  },
  output = {
    {'SET', none, '', 'XX', 'EX', 1}, {'GET', none}, {'GETRANGE', none, 0, 0}, {'DEL', none},
    {'HGET', OUTPUT_INFO, 'size'}, {'ZRANGE', OUTPUT, '+inf', '-inf', 'BYSCORE'},
    {'ZREMRANGEBYSCORE', none, 1, 0}, {'EXPIRE', none, 1}, {'PERSIST', none},
  },
  alerts = {
    {'HEXISTS', ALERT_IDS, ''}, {'HGETALL', none},
    {'ZSCAN', DUE, '0', 'COUNT', 1},
    {'ZRANGE', ALERTS, '+inf', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 0},
  },
}
local refused = {}
for _, request in ipairs(requests[ARGV[1]]) do
  local answer = redis.pcall(unpack(request))
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = request[1]
    refused[#refused + 1] = answer.err
  end
end
if ARGV[1] == 'history' then
  -- LPUSH always changes data, so it is not sent: the server only tells whether the user may send it.
  local answered, allowed = pcall(redis.acl_check_cmd, 'LPUSH', none, '')
  if not (answered and allowed) then
    refused[#refused + 1] = 'LPUSH'
    refused[#refused + 1] = "ERR The user executing the script can't run this command"
  end
end
return refused
