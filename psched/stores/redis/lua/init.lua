#!lua
-- Stores the version of the layout if no version is stored. ARGV: the version. Returns the version
-- that was stored before, or nil.
local found = redis.call('HGET', INFO, 'version')
if not found then redis.call('HSET', INFO, 'version', ARGV[1]) end
return found
