#!lua flags=no-writes,allow-oom
-- Returns the rows with the given keys; omits keys without a row. ARGV: the keys.
local rows = {}
for _, key in ipairs(ARGV) do rows[#rows + 1] = read_row(key) or nil end
return rows
