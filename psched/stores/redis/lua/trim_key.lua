#!lua flags=allow-oom
-- Deletes the oldest records of a key. ARGV: the key; how many to keep; the most to delete. Returns the
-- number of deleted records.
local list, keep, most = runs_key(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local length = redis.call('LLEN', list)
local count = math.min(length - keep, most)
if count <= 0 then return 0 end
for _, element in ipairs(redis.call('LRANGE', list, -count, -1)) do
  local id = element:match('^%d+%-%d+')
  if id then redis.call('XDEL', RUNS, id) end
  remove_extra(ARGV[1], element)
end
if count == length then
  redis.call('DEL', list)
else
  redis.call('LTRIM', list, 0, length - count - 1)
end
return count
