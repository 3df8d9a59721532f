#!lua flags=no-writes,allow-oom
-- Returns for each of some keys how long its newest whole runs took, in milliseconds. ARGV: the most runs
-- of each key, how many of its newest records are looked at, then the keys. See psched.core.history.
-- records.WHOLE.
local most, among = tonumber(ARGV[1]), tonumber(ARGV[2])
local WHOLE = {finished = true, failed = true, timed_out = true}

local function durations(key)
  local found = {}
  for _, element in ipairs(redis.call('LRANGE', runs_key(key), 0, among - 1)) do
    -- A quote inside a JSON text is escaped, so only the fields themselves match.
    local started, ended = element:match('"started":(%d+)'), element:match('"ended":(%d+)')
    if started and ended and WHOLE[element:match('"outcome":"([^"]*)"')] then
      found[#found + 1] = integer(ended - started)
      if #found == most then break end
    end
  end
  return found
end

local found = {}
for i = 3, #ARGV do found[i - 2] = durations(ARGV[i]) end
return found
