#!lua flags=no-writes,allow-oom
-- Returns the standing rules that pause types, as JSON; nil if there are none.
return redis.call('HGET', INFO, 'pauses')
