#!lua flags=no-writes,allow-oom
-- Returns a page of records, the newest first. ARGV: 'runs', 'audit', 'key' or 'extra' (the extra runs of
-- a schedule); the place after the last record of the previous page (empty: begin with the newest); the
-- most records; the key if the first value is 'key' or 'extra'. Returns for each record its place, its
-- id, its key and the record; nil if the list of this key does not exist. The place is the id in the
-- stream, or the index in the key's list.
local what, place, most, key = unpack(ARGV)
local found = {}
if what == 'key' then
  if redis.call('EXISTS', runs_key(key)) == 0 then return nil end
  local first = tonumber(place) or 0
  for i, element in ipairs(redis.call('LRANGE', runs_key(key), first, first + most - 1)) do
    local id, record = element:match('^(%S+) (.*)')
    found[i] = {integer(first + i), id or '', key, record or ''}
  end
elseif what == 'extra' then
  local first, list = tonumber(place) or 0, PREFIX..'extra:'..key
  for i, element in ipairs(redis.call('LRANGE', list, first, first + most - 1)) do
    local id, mark, record = element:match('^([^ !]+)(!%w+) (.*)')
    found[i] = {integer(first + i), id or '', key..(mark or ''), record or ''}
  end
else
  local stream = what == 'runs' and RUNS or AUDIT
  local last = place == '' and '+' or '('..place
  for i, entry in ipairs(redis.call('XREVRANGE', stream, last, '-', 'COUNT', most)) do
    found[i] = {entry[1], entry[1], entry[2][2], entry[2][4] or ''}
  end
end
local page, size = {}, 0
for i, record in ipairs(found) do
  if size > LARGEST_ANSWER then break end
  page[i] = record
  size = size + #record[4]
end
return page
