#!lua flags=allow-oom
-- Ends leases of a dead worker, and writes their records: their attempts are lost. ARGV: the worker's
-- nonce; alive_time; the seconds that a row must wait if this was not its first attempt; the member of
-- the set HELD after which to begin (empty: begin with the worker's first); the most members to read;
-- the limits of the run history (see `write_record`), or nothing, which means that no records are
-- written. Returns the keys of the released rows, the member after which the next call must begin
-- (empty: no member is left), the number of records that could not be written, and the reason.
--
-- Without its flag, this script is `recover_and_record`: the server refuses it if its memory is full.
local nonce, alive_time, wait, after, limit = unpack(ARGV)
local limits = ARGV[6] and {tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])}
local from = after ~= '' and '('..after or '['..nonce..'.'
local time = redis.call('TIME')
local milliseconds = time[1]..string.format('%03d', math.floor(time[2] / 1000))
local worker = redis.pcall('HMGET', worker_key(nonce), 'host', 'generation')

-- Converts a text that should contain a whole number to JSON; returns nil if it does not.
local function whole(text) return text and text:match('^%-?%d+$') end

local function quoted(text) return text and cjson.encode(text) end

-- Returns the record of a lost attempt. Numbers stay texts, because Lua's numbers have only 53 bits.
local function lost_record(key, row, owner)
  local started = claimed_at(row[7], row[2])
  local fields = {}
  for name, value in pairs({
    key = quoted(key), type = quoted(row[4] or 'default'), label = quoted(label_of(row[5])),
    scheduled_time = row[6], owner = quoted(owner), fence = whole(row[2]) or '0',
    attempt = whole(row[3]) or '0', ended = milliseconds, host = quoted(worker[1]),
    generation = whole(worker[2]), started = started and started..'000',
    outcome = '"lost"', reason = '"its worker died"',
  }) do
    if value then fields[#fields + 1] = '"'..name..'":'..value end
  end
  return milliseconds..' {'..table.concat(fields, ',')..'}'
end

-- The owners of the worker's leases begin with the nonce and a dot. The range ends before '/',
-- because '/' follows '.' in the order of bytes.
local found = redis.call('ZRANGEBYLEX', HELD, from, '('..nonce..'/', 'LIMIT', 0, limit)
local released, lost, reason = {}, 0, false
for _, member in ipairs(found) do
  local zero = member:find('%z')
  local owner, key = member:sub(1, zero - 1), member:sub(zero + 1)
  local row = read_fields(key, 'owner', 'fence', 'attempt', 'type', 'options', 'next_time', 'claimed_at')
  local ends = tonumber(redis.call('ZSCORE', DUE, key) or '0')
  if not row or row[1] ~= owner then
    redis.call('ZREM', HELD, member)
  elseif ends > now and ends <= now + alive_time + 1 then
    write_fields(key, {
      'owner', false, 'claimed_at', false, 'settled_by', owner..'#'..(row[2] or '0'),
      'reason', 'its worker died',
    })
    redis.call('ZREM', HELD, member)
    set_due(key, integer(now + (tonumber(row[3] or '0') > 1 and tonumber(wait) or 0)))
    released[#released + 1] = key
    if limits and whole(row[6]) then
      local problem = try_to_record(limits, key, lost_record(key, row, owner))
      if problem then lost, reason = lost + 1, problem end
    end
  end
end
return {released, #found == tonumber(limit) and found[#found] or '', lost, reason}
