#!lua flags=allow-oom
-- Extends leases. ARGV: alive_time, the shortest length of a lease, then key, owner and fence of
-- each lease. Returns for each lease 1 if it was still held and is extended, otherwise 0.
local alive_time, shortest = ARGV[1], ARGV[2]
local held = {}
for i = 3, #ARGV, 3 do
  local key, owner, fence = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local row = read_fields(key, 'leased_by', 'fence', 'alive_time')
  local mine = row and row[1] == owner and (row[2] or '0') == fence
  if mine then redis.call('ZADD', DUE, lease_end(row[3], alive_time, shortest), key) end
  held[#held + 1] = mine and 1 or 0
end
return held
