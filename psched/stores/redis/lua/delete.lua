#!lua flags=allow-oom
-- Deletes a row; if the row is leased or held, only gives it the status 'deleting'. ARGV: the key. Returns
-- 'removed' or 'marked', or 'missing' if there is no such row.
local key = ARGV[1]
local due = redis.call('ZSCORE', DUE, key)
local row = read_fields(key, 'leased_by', 'status', 'version')
if not row and redis.call('EXISTS', row_key(key)) == 0 and not due
    and not redis.call('ZSCORE', REST, key) then
  return 'missing'
end
local held = row and is_held(key)
-- A row that is held becomes due, so that it is claimed and removed after the hold.
if held and not row[1] and (not due or tonumber(due) > now) then set_due(key, integer(now)) end
if held or row and row[1] and due and tonumber(due) > now then
  if row[2] ~= 'deleting' then
    redis.call('HINCRBY', row_key(key), 'version', row[3] and 1 or 2)
    redis.call('HSET', row_key(key), 'status', 'deleting')
  end
  return 'marked'
end
remove_row(key, row and row[1])
return 'removed'
