#!lua flags=no-writes,allow-oom
-- Returns a page of rows, and 1 if it is the last page, otherwise 0. ARGV: the set ('due' or
-- 'rest'), the most rows to return, and the score and the key of the previous page's last row
-- (empty: return the first page). That row may have been moved or deleted since.
local part, limit, score, last = unpack(ARGV)
local is_first, keys = score == '', nil

-- Compares keys by their bytes, as a sorted set does, because Lua's comparison uses the locale.
local function is_after(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = one:byte(i), other:byte(i)
    if a ~= b then return a > b end
  end
  return #one > #other
end

-- The rank of the first row after the last page, by binary search among the rows of equal score.
local function first_rank()
  if is_first then return 0 end
  local low = redis.call('ZCOUNT', DUE, '-inf', '('..score)
  local high = redis.call('ZCOUNT', DUE, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_after(redis.call('ZRANGE', DUE, middle, middle)[1], last) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

if part == 'due' then
  local rank = first_rank()
  keys = redis.call('ZRANGE', DUE, rank, rank + limit - 1)
else
  keys = redis.call('ZRANGEBYLEX', REST, is_first and '-' or '('..last, '+', 'LIMIT', 0, limit)
end
local rows, size, done = {}, 0, #keys < tonumber(limit) and 1 or 0
for i, key in ipairs(keys) do
  local row, bytes = read_row(key)
  size = size + bytes
  rows[i] = row
  if size > LARGEST_ANSWER and i < #keys then
    done = 0
    break
  end
end
return {rows, done}
