#!lua flags=allow-oom
-- Removes rows whose retention has ended. ARGV: the most rows to remove. Returns the number of
-- removed rows.
local removed = 0
local expired = redis.call('ZRANGEBYSCORE', RETAIN, '-inf', integer(now), 'LIMIT', 0, ARGV[1])
for _, key in ipairs(expired) do
  local row = read_fields(key, 'leased_by', 'retain_until')
  local until_then = row and tonumber(row[2] or '')
  local rests = until_then and until_then <= now and not redis.call('ZSCORE', DUE, key)
  if rests and not is_held(key) then
    remove_row(key, row[1])
    removed = removed + 1
  elseif not rests then
    -- Another client has rescheduled the row or changed its retain_until, without updating the set
    -- RETAIN. So the row is not removed, but only its member of this set.
    redis.call('ZREM', RETAIN, key)
  end
end
return removed
