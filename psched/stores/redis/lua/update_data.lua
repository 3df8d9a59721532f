#!lua
-- Replaces the data of a leased row. ARGV: key, owner, fence, data. Returns 1; or 0, without any
-- change, if the lease is no longer held.
local key, owner, fence, data = unpack(ARGV)
local row = read_fields(key, 'leased_by', 'fence', 'version')
if not row or row[1] ~= owner or (row[2] or '0') ~= fence then return 0 end
redis.call('HINCRBY', row_key(key), 'version', row[3] and 1 or 2)
redis.call('HSET', row_key(key), 'data', data)
return 1
