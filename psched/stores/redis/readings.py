"""The scripts that only read; see `psched.stores.redis.scripts` for the others."""

from psched.stores.redis.lua import script

_READS = ("no-writes", "allow-oom")

LOOK = script(
    r"""
local rows = {}
for _, key in ipairs(ARGV) do rows[#rows + 1] = row(key) or nil end
return rows
""",
    *_READS,
)

HELD = script(
    r"""
local owner, rows = ARGV[1], {}
local from, to = '['..lease(owner, ''), '('..owner..'\1'
for _, each in ipairs(redis.call('ZRANGEBYLEX', HELD, from, to)) do
  local key = each:sub(#owner + 2)
  local found = row(key)
  if found and found[9] == owner and found[2] and tonumber(found[2]) > now then
    rows[#rows + 1] = found
  end
end
return rows
""",
    *_READS,
)

MARKED = script(
    r"""
local found = {}
for _, key in ipairs(ARGV) do
  local got = read(key, 'status')
  found[#found + 1] = got and got[1] or false
end
return found
""",
    *_READS,
)

# Of a sorted set, what comes after a member and its score, whether or not it is still there.
PAGE = script(
    r"""
local part, limit, score, last = unpack(ARGV)
local first, keys = score == '', nil

-- In the order of their bytes, which is the set's; Lua has another, by the locale.
local function is_after(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = one:byte(i), other:byte(i)
    if a ~= b then return a > b end
  end
  return #one > #other
end

local function begins()
  if first then return 0 end
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
  local from = begins()
  keys = redis.call('ZRANGE', DUE, from, from + limit - 1)
else
  keys = redis.call('ZRANGEBYLEX', REST, first and '-' or '('..last, '+', 'LIMIT', 0, limit)
end
local rows, size, done = {}, 0, #keys < tonumber(limit) and 1 or 0
for i, key in ipairs(keys) do
  local found, bytes = row(key)
  size = size + bytes
  rows[i] = found
  if size > SIZE and i < #keys then
    done = 0
    break
  end
end
return {rows, done}
""",
    *_READS,
)
