#!lua flags=no-writes,allow-oom
-- Returns the rows that an owner has leased and whose leases have not expired. ARGV: the owner.
local owner, rows = ARGV[1], {}
local from, to = '['..held_member(owner, ''), '('..owner..'\1'
for _, member in ipairs(redis.call('ZRANGEBYLEX', HELD, from, to)) do
  local key = member:sub(#owner + 2)
  local row = read_row(key)
  if row and row[9] == owner and row[2] and tonumber(row[2]) > now then rows[#rows + 1] = row end
end
return rows
