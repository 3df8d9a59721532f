#!lua flags=allow-oom
-- Deletes old records, changes and workers. ARGV: the time in milliseconds before which they ended; the
-- most records, and the most changes, to delete. Returns the number of deleted records, and the number
-- of deleted changes.
local before, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local deleted = 0
for _, entry in ipairs(redis.call('XRANGE', RUNS, '-', '+', 'COUNT', most)) do
  local id, key, record = entry[1], entry[2][2], entry[2][4] or ''
  if (tonumber(record:match('^%d+')) or 0) < before then
    redis.call('XDEL', RUNS, id)
    redis.call('LREM', runs_key(key), -1, id..' '..record)
    remove_extra(key, id..' '..record)
    deleted = deleted + 1
  end
end

local changes = before < 1 and {}
  or redis.call('XRANGE', AUDIT, '-', '('..integer(before)..'-0', 'COUNT', most)
for _, entry in ipairs(changes) do redis.call('XDEL', AUDIT, entry[1]) end

local seen = '('..integer(math.floor(before / 1000))
for _, nonce in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '-inf', seen, 'LIMIT', 0, most)) do
  redis.call('DEL', worker_key(nonce))
  redis.call('ZREM', WORKERS, nonce)
end
return {deleted, #changes}
