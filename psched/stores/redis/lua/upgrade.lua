#!lua
-- Upgrades a page of rows from layout 1. ARGV: the cursor of the scan of the set DUE, about how many rows,
-- and the version. Returns the cursor of the next page, '0' after the last one, with which the upgrade ends.
--
-- The field owner becomes leased_by. A row that an extra run had leased has its times back: its attempt was
-- -(1000 (1000 t + n + 1) + 999), plus 1 for each claim, with the next_run_time t to which it returns (0 for
-- none), and its n attempts. The digits are taken apart as text, because the number can exceed 2^53.
local LATEST_TIME = 253402300799

local function times_in(attempt)
  local digits = (attempt or ''):match('^%-(%d+)%d%d%d$')
  local time, number = ('000'..(digits or '')):match('^(%d+)(%d%d%d)$')
  time, number = tonumber(time or '0'), tonumber(number or '0') - 1
  if number < 0 or time > LATEST_TIME then return nil end
  return time, number
end

local found = redis.call('ZSCAN', DUE, ARGV[1], 'COUNT', ARGV[2])
for i = 1, #found[2], 2 do
  local key = found[2][i]
  local row = read_fields(key, 'owner', 'attempt', 'next_time')
  local time, number = times_in(row and row[3] and row[2])
  if time then
    write_fields(key, {'attempt', integer(number), 'owner', false, 'leased_by', false, 'claimed_at', false})
    set_due(key, time > 0 and integer(time))
    if row[1] then redis.call('ZREM', HELD, held_member(row[1], key)) end
  elseif row and row[1] then
    write_fields(key, {'leased_by', row[1], 'owner', false})
  end
end
if found[1] == '0' and redis.call('EXISTS', UPGRADING) == 1 then
  redis.call('HSET', UPGRADING, 'version', ARGV[3])
  move_info(UPGRADING, INFO)
end
return found[1]
