#!lua
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
