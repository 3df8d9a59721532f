-- Scripts of what attempts have printed.

--- write_output
-- Writes what attempts have printed, and deletes the oldest output if all of it takes too much. ARGV: the
-- seconds after which a record is removed (0: never); the most records of one key (0: no limit); the
-- budget in bytes (0: no limit); whether the attempts are still running (1 or 0); then for each record
-- its key, the scheduled time, a space and the owner, the time `ended`, the size, and the text. A record
-- of the same attempt is replaced. Of running attempts, only what was asked for is written, and not if
-- there is a record that was written after the attempt's end.
local VALUES = 5
local keep, most_per_key, budget = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local running = ARGV[4] == '1'

local function may_write(key, attempt)
  if not running then return true end
  local text = read_output(key, attempt)
  if text then return is_live(text) end
  return redis.call('GET', asked_key(key, attempt))
end

local written = 0
for i = 5, #ARGV, VALUES do
  local key, attempt = unpack(ARGV, i, i + 1)
  if may_write(key, attempt) then
    write_output(keep, most_per_key, unpack(ARGV, i, i + VALUES - 1))
    if not running then redis.call('DEL', asked_key(key, attempt)) end
    written = written + 1
  end
end
-- Several are deleted for each that is written, so what exceeds a smaller budget is gone after a while.
if budget > 0 then trim_output(0, budget, 5 * written) end

--- output_page: no-writes,allow-oom
-- Returns a page of the output of a key, the newest first. ARGV: the key; the number of the last record of
-- the previous page (empty: begin with the newest); the most records; the scheduled time, and the number
-- of the attempt (empty: any). Returns the number after which the next page begins (nil: there is none);
-- then for each record its number, the scheduled time, a space and the owner, and the text.
local LOOKED_AT = 500
local key, place, most, time, attempt = unpack(ARGV)
local last = place == '' and '+inf' or '('..place
local found = redis.call('ZRANGE', output_key(key), last, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, LOOKED_AT,
  'WITHSCORES')
local page, size, next_place = {}, 0, false
for i = 1, #found, 2 do
  if #page == tonumber(most) or size > LARGEST_ANSWER then return {next_place, page} end
  local printed = printed_key(found[i + 1])
  local wanted = (time == '' or found[i]:match('^%S+') == time)
    and (attempt == '' or redis.call('GETRANGE', printed, 0, 40):match('^{"attempt":(%d+)') == attempt)
  local text = wanted and redis.call('GET', printed)
  if text then
    page[#page + 1] = {found[i + 1], found[i], text}
    size = size + #text
  end
  next_place = found[i + 1]
end
return {#found == 2 * LOOKED_AT and next_place, page}

--- output_of: no-writes,allow-oom
-- Returns the output of an attempt. ARGV: the key; the scheduled time, a space and the owner. Returns the
-- number of the record, the scheduled time, a space and the owner, and the text (nothing: there is none).
local text, number = read_output(ARGV[1], ARGV[2])
return text and {number, ARGV[2], text} or {}

--- ask_output
-- Notes that somebody reads the output of a running attempt. ARGV: the key; the scheduled time, a space
-- and the owner; the present time, and the time until which it is read, in milliseconds. Returns 1 if it
-- was read already, 0 if not. No effect if the output was written after the attempt's end.
local key, attempt, present, wanted = unpack(ARGV)
local text = read_output(key, attempt)
if text and not is_live(text) then return 0 end
local asked = asked_key(key, attempt)
local before = tonumber(redis.call('GET', asked) or '0')
if before < tonumber(wanted) then redis.call('SET', asked, wanted, 'PXAT', wanted) end
return before > tonumber(present) and 1 or 0

--- asked_output: no-writes,allow-oom
-- Finds the running attempts whose output somebody reads. ARGV: the present time in milliseconds; then
-- for each attempt its key, and the scheduled time, a space and the owner. Returns the numbers of those
-- that are read, from 0 on.
local present, found = tonumber(ARGV[1]), {}
for i = 2, #ARGV, 2 do
  local asked = redis.call('GET', asked_key(ARGV[i], ARGV[i + 1]))
  if asked and tonumber(asked) > present then found[#found + 1] = i / 2 - 1 end
end
return found

--- trim_output: allow-oom
-- Deletes the oldest output. ARGV: the time in milliseconds before which it ended; the budget in bytes;
-- the most records to delete. Returns the number of deleted records.
return trim_output(tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]))
