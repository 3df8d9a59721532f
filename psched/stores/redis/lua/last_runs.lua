#!lua flags=no-writes,allow-oom
-- Returns for each of some keys its newest record that has an outcome, as its id and the record, or nil.
-- ARGV: the keys.
local PAGE = 20

local function last_run(key)
  local first = 0
  while true do
    local page = redis.call('LRANGE', runs_key(key), first, first + PAGE - 1)
    for _, element in ipairs(page) do
      -- A quote inside a JSON text is escaped, so only the field itself matches.
      if element:find('"outcome":"', 1, true) then return {element:match('^(%S+) (.*)')} end
    end
    if #page < PAGE then return false end
    first = first + PAGE
  end
end

local found = {}
for i, key in ipairs(ARGV) do found[i] = last_run(key) end
return found
