#!lua flags=allow-oom
-- Tries each command that the other scripts use, but changes no data. Returns the names of the
-- commands that the server refuses.
local refused = {}
for _, request in ipairs({
  {'HSET', INFO, 'version', redis.call('HGET', INFO, 'version')},
  {'HMGET', INFO, 'version'}, {'HINCRBY', INFO, 'version', 0}, {'HDEL', INFO, 'none'},
  {'DEL', PREFIX..'none'}, {'EXISTS', PREFIX..'none'}, {'ZADD', PREFIX..'none', 'XX', 0, ''},
  {'ZREM', PREFIX..'none', ''}, {'ZSCORE', DUE, ''}, {'ZRANK', DUE, ''}, {'ZCOUNT', DUE, 1, 0},
  {'ZRANGE', DUE, 0, 0}, {'ZRANGEBYSCORE', DUE, 1, 0}, {'ZRANGEBYLEX', HELD, '+', '-'},
}) do
  local answer = redis.pcall(unpack(request))
  if type(answer) == 'table' and answer.err then refused[#refused + 1] = request[1] end
end
return refused
