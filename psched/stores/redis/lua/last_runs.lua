#!lua flags=no-writes,allow-oom
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
