#!lua
-- Writes records of the run history that belong to no settlement. ARGV: the limits of the history (see
-- `write_record`), then for each record its key, owner, scheduled time, outcome (empty: none) and the
-- record itself. Returns the number of records that could not be written, and the reason for the last
-- of them.
--
-- If a record of the same lease and occurrence exists, nothing is written, unless that record says that
-- the attempt was lost. Then it is removed first.
local VALUES = 5

-- How many of the newest records of a key are searched for one of the same lease.
local SEARCHED = 50

local function is_known(key, owner, scheduled_time, outcome)
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
      redis.call('XDEL', RUNS, id)
    end
  end
  return false
end

local limits = {tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])}
local lost, reason = 0, false
for i = 4, #ARGV, VALUES do
  local key, owner, scheduled_time, outcome, record = unpack(ARGV, i, i + VALUES - 1)
  local searched, known = pcall(is_known, key, owner, scheduled_time, outcome)
  if not searched or not known then
    local problem = try_to_record(limits, key, record)
    if problem then lost, reason = lost + 1, problem end
  end
end
return {lost, reason}
