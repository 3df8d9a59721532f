-- Scripts of the rules that pause types.

--- pauses: no-writes,allow-oom
-- Returns the standing rules that pause types, as JSON; nil if there are none.
return redis.call('HGET', INFO, 'pauses')

--- set_pauses: allow-oom
-- Replaces the standing rules that pause types, unless somebody else has changed them. ARGV: the rules
-- as they were read (empty: none), and the new ones (empty: none). Returns 1, or 0 if they have changed.
local seen, new = unpack(ARGV)
if (redis.call('HGET', INFO, 'pauses') or '') ~= seen then return 0 end
redis.call('HDEL', INFO, 'passed')
if new == '' then
  redis.call('HDEL', INFO, 'pauses')
else
  redis.call('HSET', INFO, 'pauses', new)
end
return 1
