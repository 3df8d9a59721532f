#!lua flags=allow-oom
-- Tries each command that the scripts of the run history use, but changes no data. Returns the names of
-- the commands that the server refuses, each followed by its reason.
local none = PREFIX..'none'
local refused = {}
for _, request in ipairs({
  {'XADD', none, 'NOMKSTREAM', 'MAXLEN', '~', 1, '*', 'key', '', 'record', ''}, {'XDEL', none, '0-1'},
  {'XRANGE', RUNS, '+', '-'}, {'XREVRANGE', RUNS, '-', '+'}, {'LPUSHX', none, ''}, {'LLEN', none},
  {'LINDEX', none, 0}, {'LRANGE', none, 0, 0}, {'LREM', none, 0, ''}, {'LTRIM', none, 0, 0},
  {'RPOP', none}, {'EXPIRE', none, 1}, {'PERSIST', none},
}) do
  local answer = redis.pcall(unpack(request))
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = request[1]
    refused[#refused + 1] = answer.err
  end
end
-- LPUSH always changes data, so it is not sent: the server only tells whether the user may send it.
local answered, allowed = pcall(redis.acl_check_cmd, 'LPUSH', none, '')
if not (answered and allowed) then
  refused[#refused + 1] = 'LPUSH'
  refused[#refused + 1] = "ERR The user executing the script can't run this command"
end
return refused
