#!lua flags=no-writes,allow-oom
-- Returns a page of rows; 1 if it is the last page, otherwise 0; and the score and the key of the
-- last row that was looked at. ARGV: the set ('due' or 'rest'), the most rows to look at, the score
-- and the key of the last row of the previous page, both empty for the first page, and the filter.
-- The filter is empty, or JSON with the fields of psched.core.selection.Selection; rows that
-- do not match are omitted. A row that cannot be read is returned, because psched tells its status.
local part, limit, score, last, filter = unpack(ARGV)
filter = filter ~= '' and cjson.decode(filter)
local is_first, keys = score == '', nil

local function includes(list, value)
  if #list == 0 then return true end
  for _, each in ipairs(list) do
    if each == value then return true end
  end
  return false
end

local function matches(key)
  if not filter then return true end
  if key:sub(1, #filter.prefix) ~= filter.prefix then return false end
  local row = redis.pcall('HMGET', row_key(key), 'type', 'status', 'leased_by', 'label')
  if row.err then return true end
  if not row[1] and redis.call('EXISTS', row_key(key)) == 0 then return true end
  local status = row[2] or 'waiting'
  if filter.due and status ~= 'waiting' then return false end
  if status == 'waiting' and row[3] then status = 'running' end
  return includes(filter.statuses, status) and includes(filter.types, row[1] or 'default')
    and (#filter.labels == 0 or includes(filter.labels, row[4]))
end

if part == 'due' then
  local rank = is_first and 0 or rank_after(score, last)
  if filter and filter.due then
    local due = redis.call('ZCOUNT', DUE, '-inf', integer(now))
    limit = math.min(limit, math.max(due - rank, 0))
  end
  keys = limit == 0 and {} or redis.call('ZRANGE', DUE, rank, rank + limit - 1)
else
  keys = redis.call('ZRANGEBYLEX', REST, is_first and '-' or '('..last, '+', 'LIMIT', 0, limit)
end
local rows, size, done = {}, 0, #keys < tonumber(ARGV[2]) and 1 or 0
for i, key in ipairs(keys) do
  last = key
  if matches(key) then
    local row, bytes = read_row(key)
    size = size + bytes
    rows[#rows + 1] = row
    if size > LARGEST_ANSWER and i < #keys then
      done = 0
      break
    end
  end
end
return {rows, done, redis.call('ZSCORE', DUE, last) or '0', last}
