#!lua flags=no-writes,allow-oom
-- Counts the due rows. ARGV: the most rows to count, then the types to count (none: all types).
-- Returns the number of rows, and the seconds by which the oldest of them is late, 0 if there is none.
local keys = due_keys(tonumber(ARGV[1]), {unpack(ARGV, 2)})
local late = #keys > 0 and now - tonumber(redis.call('ZSCORE', DUE, keys[1])) or 0
return {#keys, integer(late)}
