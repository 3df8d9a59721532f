#!lua flags=no-writes,allow-oom
-- Returns for each row its status, or nil if the row has no status or does not exist. ARGV: the
-- keys of the rows.
local found = {}
for _, key in ipairs(ARGV) do
  local row = read_fields(key, 'status')
  found[#found + 1] = row and row[1] or false
end
return found
