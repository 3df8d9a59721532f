#!lua
-- Writes the version of the layout if there is none. ARGV: the version. Returns the version that
-- was there before, or nil.
local found = redis.call('HGET', INFO, 'version')
if not found then redis.call('HSET', INFO, 'version', ARGV[1]) end
return found
