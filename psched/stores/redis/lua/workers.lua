#!lua flags=no-writes,allow-oom
-- Returns the records of workers. ARGV: the earliest time of their last record, in seconds; then the
-- names of the fields to return. Returns for each worker its nonce and these fields.
local found = {}
for _, nonce in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, ARGV[1], '+inf')) do
  local fields = redis.call('HMGET', worker_key(nonce), unpack(ARGV, 2))
  if fields[1] then found[#found + 1] = {nonce, unpack(fields, 1, #ARGV - 1)} end
end
return found
