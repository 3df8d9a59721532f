#!lua flags=no-writes,allow-oom
-- Returns the leases of a dead worker. ARGV: the worker's nonce; the member of the set HELD after which to
-- begin (empty: begin with the worker's first); the most members to read; the fields of the worker's
-- record to return. Returns the time in milliseconds; the fields; and for each lease its member of HELD,
-- and its row, or nil if there is no such row.
local nonce, after, limit = unpack(ARGV, 1, 3)
local time = redis.call('TIME')
local from = after ~= '' and '('..after or '['..nonce..'.'
local leases = {}
-- The owners of the worker's leases begin with the nonce and a dot. The range ends before '/',
-- because '/' follows '.' in the order of bytes.
for i, member in ipairs(redis.call('ZRANGEBYLEX', HELD, from, '('..nonce..'/', 'LIMIT', 0, limit)) do
  leases[i] = {member, read_row(member:sub(member:find('%z') + 1)) or false}
end
local worker = redis.pcall('HMGET', worker_key(nonce), unpack(ARGV, 4))
return {time[1]..string.format('%03d', math.floor(time[2] / 1000)), worker.err and {} or worker, leases}
