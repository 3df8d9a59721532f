#!lua
-- Writes records of the run history that belong to no settlement. ARGV: the limits of the history (see
-- `write_record`), then for each record its key, owner, scheduled time, outcome (empty: none) and the
-- record itself. Returns the number of records that could not be written, and the reason for the last
-- of them.
-- A record that is known already is not written again, see `is_known`.
local VALUES = 5

local limits = {tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])}
local lost, reason = 0, false
for i = 4, #ARGV, VALUES do
  local key, owner, scheduled_time, outcome, record = unpack(ARGV, i, i + VALUES - 1)
  if not is_known(key, owner, scheduled_time, outcome) then
    local problem = try_to_record(limits, key, record)
    if problem then lost, reason = lost + 1, problem end
  end
end
return {lost, reason}
