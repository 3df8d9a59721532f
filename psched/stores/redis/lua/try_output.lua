#!lua flags=allow-oom
-- Tries each command that only the scripts of output use, but changes no data. Returns the names of the
-- commands that the server refuses, each followed by its reason.
local none = PREFIX..'none'
local refused = {}
for _, request in ipairs({
  {'SET', none, '', 'XX', 'EX', 1}, {'GET', none}, {'GETRANGE', none, 0, 0}, {'DEL', none},
  {'HGET', OUTPUT_INFO, 'size'}, {'ZRANGE', OUTPUT, '+inf', '-inf', 'BYSCORE'},
  {'ZREMRANGEBYSCORE', none, 1, 0}, {'EXPIRE', none, 1}, {'PERSIST', none},
}) do
  local answer = redis.pcall(unpack(request))
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = request[1]
    refused[#refused + 1] = answer.err
  end
end
return refused
