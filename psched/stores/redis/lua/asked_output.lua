#!lua flags=no-writes,allow-oom
-- Finds the running attempts whose output somebody reads. ARGV: the present time in milliseconds; then
-- for each attempt its key, and the scheduled time, a space and the owner. Returns the numbers of those
-- that are read, from 0 on.
local present, found = tonumber(ARGV[1]), {}
for i = 2, #ARGV, 2 do
  local asked = redis.call('GET', asked_key(ARGV[i], ARGV[i + 1]))
  if asked and tonumber(asked) > present then found[#found + 1] = i / 2 - 1 end
end
return found
