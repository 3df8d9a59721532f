#!lua flags=allow-oom
-- Tries each command that only the scripts for monitors use, but changes no data. Returns the names of the
-- commands that the server refuses, each followed by its reason.
local refused = {}
for _, request in ipairs({
  {'HEXISTS', ALERT_IDS, ''}, {'HGETALL', PREFIX..'none'},
  {'ZSCAN', DUE, '0', 'COUNT', 1},
  {'ZRANGE', ALERTS, '+inf', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 0},
}) do
  local answer = redis.pcall(unpack(request))
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = request[1]
    refused[#refused + 1] = answer.err
  end
end
return refused
