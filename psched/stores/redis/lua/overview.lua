#!lua flags=no-writes,allow-oom
-- Returns what runs, what is late and what is next, without data and options: the present time; the
-- numbers of leased, of due and of resting rows; then the leased, the due, the following and the resting
-- rows. ARGV: the most due and following rows; the most leased and resting rows.
local few, many = tonumber(ARGV[1]), tonumber(ARGV[2])

-- How many rows that fall due later are looked at, most of which can be leased.
local MOST_READ = 2000

-- The columns of a row; the field '' in place of data and options does not exist.
local LIGHT = {}
for i, name in ipairs(COLUMNS) do
  LIGHT[i] = name ~= 'data' and name ~= 'options' and name or ''
end

local function light(key)
  local due, values = redis.call('ZSCORE', DUE, key), redis.pcall('HMGET', row_key(key), unpack(LIGHT))
  if values.err then return {key, due, 'is no hash'} end
  return {key, due, unpack(values, 1, #LIGHT)}
end

local function rows_of(keys)
  local rows = {}
  for i, key in ipairs(keys) do rows[i] = light(key) end
  return rows
end

local leased = {}
for i, member in ipairs(redis.call('ZRANGE', HELD, 0, many - 1)) do
  leased[i] = light(member:match('%z(.*)$') or member)
end

local following, offset = {}, 0
local later = '('..integer(now)
while #following < few and offset < MOST_READ do
  local keys = redis.call('ZRANGEBYSCORE', DUE, later, '+inf', 'LIMIT', offset, few)
  for _, key in ipairs(keys) do
    local owner = redis.pcall('HGET', row_key(key), 'leased_by')
    if #following < few and not owner then following[#following + 1] = light(key) end
  end
  if #keys < few then break end
  offset = offset + few
end

local time = redis.call('TIME')
return {
  time[1], time[2], redis.call('ZCOUNT', HELD, '-inf', '+inf'), redis.call('ZCOUNT', DUE, '-inf', integer(now)),
  redis.call('ZCOUNT', REST, '-inf', '+inf'), leased,
  rows_of(redis.call('ZRANGEBYSCORE', DUE, '-inf', integer(now), 'LIMIT', 0, few)), following,
  rows_of(redis.call('ZRANGE', REST, 0, many - 1)),
}
