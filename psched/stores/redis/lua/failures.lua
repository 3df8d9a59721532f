#!lua flags=no-writes,allow-oom
-- Searches the records of all keys for failures, the newest first. ARGV: the place after the last record
-- that was looked at (empty: begin with the newest), the most records to look at, the most records to
-- return, the outcomes and the fates of failures as a JSON object of two lists, and the place before which
-- nothing is looked at, nor this place itself (empty: none). Returns the place, how many were looked at, for
-- each failure its id and the record, and the place of the first record that was looked at.
local place, most, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local PAGE = 100
local wanted = {outcome = {}, fate = {}}
for name, values in pairs(cjson.decode(ARGV[4])) do
  for _, value in ipairs(values) do wanted[name][value] = true end
end

local least = ARGV[5] == '' and '-' or '('..ARGV[5]
local found, looked, first = {}, 0, ''
while looked < most and #found < limit do
  local last = place == '' and '+' or '('..place
  local page = redis.call('XREVRANGE', RUNS, last, least, 'COUNT', math.min(PAGE, most - looked))
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    place, looked = entry[1], looked + 1
    if looked == 1 then first = place end
    -- A quote inside a JSON text is escaped, so only the fields themselves match.
    local record = entry[2][4] or ''
    if wanted.outcome[record:match('"outcome":"([^"]*)"')] or wanted.fate[record:match('"fate":"([^"]*)"')] then
      found[#found + 1] = {entry[1], record}
      if #found == limit then break end
    end
  end
end
return {place, looked, found, first}
