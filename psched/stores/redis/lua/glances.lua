-- Scripts that read rows without their data.

--- overview: no-writes,allow-oom
-- Returns what runs, what is late and what is next, without data and options: the present time; the
-- numbers of leased, of due and of resting rows; then the leased, the due, the following and the resting
-- rows. ARGV: the most due and following rows; the most leased and resting rows.
local few, many = tonumber(ARGV[1]), tonumber(ARGV[2])

-- How many rows that fall due later are looked at, most of which can be leased.
local MOST_READ = 2000

local light, rows_of = readers_without('data', 'options')

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

--- watch: no-writes,allow-oom
-- Returns rows without data, in one of four ways. ARGV: the way, then what it needs.
--
-- due: the present time, and the due rows after a place. ARGV: the most rows; the score and the key of
--   the place, both empty for the first rows.
-- leased: the place of the next page, empty after the last page; and a page of the leased rows. ARGV:
--   the most rows; the place, which is a member of the set HELD, empty for the first page.
-- page: the place of the next page, and the rows of a page. ARGV: the set ('due' or 'rest'), the cursor
--   of its scan, about how many rows, and a text that the options must contain; empty for all rows.
-- keys: the rows with the given keys. ARGV: the keys.

local light, rows_of = readers_without('data')

if ARGV[1] == 'keys' then
  local rows = {}
  for i = 2, #ARGV do
    if redis.call('EXISTS', row_key(ARGV[i])) == 1 then rows[#rows + 1] = light(ARGV[i]) end
  end
  return rows
end

if ARGV[1] == 'page' then
  local part, text = ARGV[2], ARGV[5]
  local found = redis.call('ZSCAN', part == 'due' and DUE or REST, ARGV[3], 'COUNT', ARGV[4])
  local rows = {}
  for i = 1, #found[2], 2 do
    local key = found[2][i]
    local options = text ~= '' and redis.pcall('HGET', row_key(key), 'options')
    if text == '' or type(options) == 'string' and options:find(text, 1, true) then
      rows[#rows + 1] = light(key)
    end
  end
  if found[1] ~= '0' then return {part, found[1], rows} end
  return {part == 'due' and 'rest' or '', '0', rows}
end

if ARGV[1] == 'leased' then
  local most, from = tonumber(ARGV[2]), ARGV[3] == '' and '-' or '('..ARGV[3]
  local members, rows = redis.call('ZRANGEBYLEX', HELD, from, '+', 'LIMIT', 0, most), {}
  for i, member in ipairs(members) do rows[i] = light(member:match('%z(.*)$') or member) end
  return {#members == most and members[most] or '', rows}
end

local most, score, last = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local rank = score == '' and 0 or rank_after(score, last)
local due = math.min(redis.call('ZCOUNT', DUE, '-inf', integer(now)) - rank, most)
local time = redis.call('TIME')
return {time[1], time[2], rows_of(due > 0 and redis.call('ZRANGE', DUE, rank, rank + due - 1) or {})}
